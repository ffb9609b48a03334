"""Structure of the packages: its numbers may only fall.

Targets: at most 12 packages and modules on the top level of ``sglang``, no back arrows, no cycles,
no homonyms, the rings within their limits.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from tools.structure import (
    BOTH_RIGHT,
    CEILINGS,
    Module,
    Structure,
    above,
    lowered,
    main,
    measure,
    measure_modules,
    read,
)


@cache
def project() -> dict[str, Module]:
    return read()


@cache
def today() -> Structure:
    return measure_modules(project())


def test_no_number_is_above_its_ceiling() -> None:
    ceilings = json.loads(CEILINGS.read_text(encoding="utf-8"))
    numbers = today().numbers()
    assert above(numbers, ceilings) == [], "python -m tools.structure --names prints what counts"
    assert lowered(numbers, ceilings) == ceilings, "run python -m tools.structure --lower"


def planted(folder: Path, **files: str) -> Structure:
    """Measure a project of these files; ``__`` in a name is a slash."""
    for package in ("sglang", "srt"):
        (folder / "python" / package).mkdir(parents=True)
        (folder / "python" / package / "__init__.py").touch()
    for name, source in files.items():
        path = folder / "python" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(source)
    return measure(folder)


LAZY = "def f():\n    from sglang.{0} import x\n"
TYPED = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sglang.{0} import x\n"
BY_NAME = "from importlib import import_module\nTABLE = ('sglang.{0}',)\nimport_module(TABLE[0])\n"


@pytest.mark.parametrize("source", [LAZY, TYPED, BY_NAME])
def test_a_hidden_import_closes_a_cycle(tmp_path: Path, source: str) -> None:
    found = planted(
        tmp_path,
        sglang__low=source.format("high"),
        sglang__high="from sglang.middle import y",
        sglang__middle="import sglang.low",
    )
    names = ["sglang.high", "sglang.low", "sglang.middle"]
    assert found.cycles == [names]
    assert found.packages[0].cycles == [names]
    assert found.packages[0].back == [("sglang.low", "sglang.high")]
    assert found.packages[0].levels == 3
    assert found.numbers()["top level of sglang"] == 3


def test_packages_may_be_cyclic_where_files_are_not(tmp_path: Path) -> None:
    found = planted(
        tmp_path,
        sglang__one__a="from sglang.two.b import x",
        sglang__one__c="",
        sglang__two__b="",
        sglang__two__d="from sglang.one import c",
    )
    assert found.cycles == []
    assert found.packages[0].cycles == [["sglang.one", "sglang.two"]]


def test_the_runtime_may_import_nothing_of_the_language_but_ir(tmp_path: Path) -> None:
    found = planted(
        tmp_path,
        sglang__state="",
        sglang__ir__nodes="",
        srt__engine__engine="import sglang.state\nfrom sglang.ir import nodes",
        srt__engine__loop="import sglang.srt.engine.engine",
        srt__command="import sglang.state",
        srt__entrypoints__engine="import sglang.state",
    )
    assert found.between == [("sglang.srt.engine.engine", "sglang.state")]
    assert found.numbers()["back arrows"] == 1


def test_a_lazy_import_downwards_is_no_back_arrow(tmp_path: Path) -> None:
    found = planted(tmp_path, sglang__a=LAZY.format("b"), sglang__b="")
    assert (found.cycles, found.packages[0].back, found.packages[0].levels) == ([], [], 2)


def test_homonyms_are_classes_or_modules_of_one_name(tmp_path: Path) -> None:
    found = planted(
        tmp_path,
        sglang__plan="class Plan: ...",
        sglang__utils="class Plan: ...",
        srt__engine__routes="class Plan: ...\nclass Other: ...",
        srt__memory__routes="",
        srt__models__llama="class Other: ...",
        srt__engine__plan="",
    )
    assert found.homonyms == {
        "class Plan": ["sglang.plan.Plan", "sglang.srt.engine.routes.Plan"],
        "module plan": ["sglang.plan", "sglang.srt.engine.plan"],
    }


def test_a_third_place_of_an_allowed_name_is_a_homonym(tmp_path: Path) -> None:
    both = {"sglang__batch": "", "srt__core__batch": ""}
    assert planted(tmp_path / "two", **both).homonyms == {}
    found = planted(tmp_path / "three", srt__worker__batch="", **both)
    assert list(found.homonyms) == ["module batch"]


def test_the_allowed_homonyms_exist() -> None:
    modules = project()
    assert len(BOTH_RIGHT) <= 10
    for name, places in BOTH_RIGHT.items():
        found = {module for module in modules if module.rpartition(".")[2] == name}
        assert places <= found, name
        assert len(places) <= 3, name


CODE = '''"""Text.

More."""

# comment
x = """a

b"""  # three lines


class C:
    """Text."""

    def f(self):
        "Text."
        return x
'''


def test_rings_count_lines_of_code(tmp_path: Path) -> None:
    found = planted(tmp_path, srt__core__a=CODE, srt__worker__b="x = 1\n", srt__models__c="x = 1")
    assert found.rings["inner ring"] == 6 + 1
    assert found.rings["language proper"] == 0


def test_ceilings_only_fall() -> None:
    assert above({"cycles": 3}, {"cycles": 2}) == ["cycles: 3; at most 2"]
    assert lowered({"cycles": 1}, {"cycles": 2}) == {"cycles": 1}
    assert lowered({"cycles": 3}, {"cycles": 2}) == {"cycles": 2}
    ring = "code lines of the inner ring"
    assert lowered({ring: 100}, {}) == {ring: 9000}


def test_the_report_is_a_table_or_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.structure.measure", today)
    assert main([]) == 0
    table = capsys.readouterr().out
    assert "sglang.srt.engine" in table
    assert "homonyms" in table
    assert main(["--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["numbers"]["homonyms"] == len(told["homonyms"])
