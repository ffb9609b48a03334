"""Every example on the embedded model, in process and over HTTP, with its answer."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sglang as sgl
from helpers.paths import ROOT

pytest.importorskip("torch")
EXAMPLES = ROOT / "examples"


def on_the_way(path: list[str]) -> None:
    """The steps are free to choose; they must lead there."""
    value = 12
    for step in path:
        sign, number = step.split()
        assert sign == "*"
        value *= int(number)
    assert value == 2652


def mostly_right(counts: tuple[int, int]) -> None:
    right, total = counts
    assert total == 55
    assert right >= 50


def clara(sheet: Any) -> None:
    assert (sheet.name, sheet.age) == ("Clara Stone", 34)
    assert (sheet.role, sheet.city) == ("painter", "Madrid")


def all_differ(texts: list[str]) -> None:
    """The model's, and those under two adapters."""
    assert len(set(texts)) == 3


ANSWERS: dict[str, Any] = {
    "chat": ["Nice to meet you, Nora.", "Your name is Nora.", "You live in Lisbon."],
    "few_shot": ["rope dusty", "book happy", "chair clean"],
    "json_sheet": clara,
    "skeleton": {"lamp": "30", "clock": "75", "rope": "12"},
    "timeline": {"lamp": "30", "rope": "12"},
    "conversations": ["You live in Lisbon.", "You live in Cairo.", "You live in Porto."],
    "judge": ({"clarity": 8, "style": 2, "evidence": 8, "humor": 5}, 23),
    "classify_batch": ["positive", "negative"] * 4,
    "tool_loop": [str(417 * 23), str(128 * 45)],
    "model_calls_tools": [str(417 * 23), str(128 * 45), "Paris"],
    "tools_in_program": [str(417 * 23), str(128 * 45)],
    "streaming": ["1. lamp", "2. clock", "3. rope", "4. book"],
    "tree_search": on_the_way,
    "demo": mostly_right,
    "adapters": all_differ,
    "image_questions": [],  # the embedded model reads text only
}


@pytest.fixture(scope="module", params=["engine", "http"])
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    settings: dict[str, Any] = {"max_total_tokens": 32768, "log_level": "warning", "device": "cpu"}
    started: Any = sgl.Engine(**settings) if request.param == "engine" else sgl.Runtime(**settings)
    sys.path.insert(0, str(EXAMPLES))
    sgl.set_default_backend(started)
    yield
    sgl.set_default_backend(None)
    sys.path.remove(str(EXAMPLES))
    started.shutdown()


def test_every_example_is_tested() -> None:
    elsewhere = {"connect", "parrot_snake_game"}  # the latter in test_programs_on_server
    programs = {path.stem for path in EXAMPLES.glob("*.py")} - elsewhere
    assert programs == set(ANSWERS)
    lengths = {p.name: len(p.read_text().splitlines()) for p in EXAMPLES.glob("*.py")}
    assert {n for n, lines in lengths.items() if lines >= 60} <= {"demo.py"}


@pytest.mark.parametrize("name", sorted(ANSWERS))
@pytest.mark.usefixtures("backend")
def test_the_answer_is_right(name: str) -> None:
    answer = importlib.import_module(name).main()
    expected = ANSWERS[name]
    if callable(expected):
        expected(answer)
    else:
        assert answer == expected


def test_the_demo_as_a_user_starts_it() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("parameters on", "tokens/s", "came from the cache", "Falcon", "answers right"):
        assert word in done.stdout
