"""``sglang models`` and docs/models.md list as verified the cases of the parity tests.

Run as a program it writes both anew:
``PYTHONPATH=test python test/cpu/srt/models/test_verified.py``.
"""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import asdict
from typing import Any

from helpers import hf_models, vision
from helpers.parity import LENGTHS, MODELS, Case, all_cases
from helpers.paths import ROOT
from sglang.srt.cli import main
from sglang.srt.layers.rotary import Rope, Rotary
from sglang.srt.layers.tape_writer import missing_word
from sglang.srt.layers.weight import OutlinePlace
from sglang.srt.models import registry
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.models.model_spec import ModelSpec
from sglang.srt.models.verified import FILE, Verified, table, verified
from sglang.srt.numeric.host_arrays import FLOAT32, HOST

PAGE = ROOT / "docs" / "models.md"
BEGIN, END = (
    "<!-- architectures: written by test/cpu/srt/models/test_verified.py -->",
    "<!-- end -->",
)


def found() -> dict[str, Verified]:
    """Verified models, computed from the cases of the parity tests, ordered by name."""
    cases: dict[str, list[Any]] = {}
    for case in all_cases():
        cases.setdefault(case.architecture, []).append(case)
    split = runpy.run_path(str(MODELS / "test_split_parity.py"))
    ranks = split["FIRST"].keys() - split["WHOLE"].keys()
    return {name: row(name, cases[name], name in ranks) for name in sorted(cases)}


def row(name: str, cases: list[Any], ranks: bool) -> Verified:
    family = registry.MODELS[name]
    ropes: set[str] = set()
    windows: set[int] = set()
    sees: set[str] = set()
    for case in cases:
        if not isinstance(case, Case):
            sees |= {"image"} if len(case.sizes) == 1 else {"images"} if case.sizes else set()
            sees |= {"video"} if case.frames else set()
            continue
        spec = spec_of(case)
        windows |= {w for w in spec.windows if 0 < w < max(LENGTHS)}
        if rotates(outline(case)):
            ropes |= {rope.type for rope in vars(spec).values() if isinstance(rope, Rope)}
    return Verified(
        about(family), len(cases), "layers" if missing_word(outline(cases[0])) else "tape",
        tuple(sorted(sees)), tuple(sorted(ropes)), tuple(sorted(windows)), ranks,
    )  # fmt: skip


def rotates(model: Any) -> bool:
    """Whether any layer has a rotary embedding."""
    return any(
        isinstance(value, Rotary)
        for layer in model.layers
        for part in vars(layer).values()
        for value in getattr(part, "__dict__", {}).values()
    )


def spec_of(case: Any) -> ModelSpec:
    if isinstance(case, Case):
        config = hf_models.config(case.architecture, **case.settings)
    else:
        config = vision.config(case.architecture)
    family = registry.lookup(case.architecture)
    return family.read(Fields(config.to_dict(), "config.json"), case.architecture)


def outline(case: Any) -> DecoderModel:
    """The case's model without weights."""
    family = registry.lookup(case.architecture)
    return family(spec_of(case), OutlinePlace(HOST, FLOAT32), 1)


def about(family: Any) -> str:
    """The first paragraph of the model's file, in one line."""
    text = sys.modules[family.__module__].__doc__ or ""
    return " ".join(text.split("\n\n")[0].split())


def page_with(rows: dict[str, Verified]) -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, behind = rest.partition(END)
    return "\n".join([f"{before}{BEGIN}", "", *table(rows), "", f"{END}{behind}"])


def test_every_architecture_is_verified() -> None:
    assert set(found()) == set(registry.MODELS)


def test_what_is_said_is_what_is_tested() -> None:
    rows = found()
    stale = "stale: run PYTHONPATH=test python test/cpu/srt/models/test_verified.py"
    assert verified() == rows, stale
    assert PAGE.read_text(encoding="utf-8") == page_with(rows), stale


def test_the_command_lists_them(capsys: Any) -> None:
    assert main(["models", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(FILE.read_text(encoding="utf-8"))
    assert main(["models", "llamaFor"]) == 0
    text = capsys.readouterr().out
    assert "LlamaForCausalLM" in text
    assert "Touvron" in text
    assert "Qwen" not in text
    assert main(["models", "no such"]) == 1


if __name__ == "__main__":
    rows = found()
    written = {name: asdict(row) for name, row in rows.items()}
    FILE.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page_with(rows), encoding="utf-8")
