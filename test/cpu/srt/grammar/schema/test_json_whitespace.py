"""White space between the tokens of JSON: the model's default, compact on demand, and the guide's
typed program on the embedded model."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from helpers.paths import ROOT
from helpers.tiny_model import write_config
from helpers.toy_tokenizer import byte_level

pytest.importorskip("torch")

GUIDE = ROOT / "docs" / "language.md"
TYPED = re.compile(r"```python\n(from pydantic.*?)```\n\n```text\n(.*?)```", re.DOTALL)
SHEET = {
    "type": "object", "required": ["name", "age", "city"], "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"},
        "city": {"type": "string", "maxLength": 12},
    },
}  # fmt: skip
TEXT = "Nora Hill is 34 and lives in Lisbon."


@pytest.fixture(scope="module")
def embedded() -> Iterator[sgl.Engine]:
    with sgl.Engine(log_level="warning", max_total_tokens=4096) as engine:
        yield engine


@sgl.function
def extract(s, whitespace, max_tokens=64):
    s += sgl.user("The person as JSON: " + TEXT)
    given = {"max_tokens": max_tokens, "whitespace_pattern": whitespace}
    s += sgl.assistant(sgl.gen("sheet", json_schema=SHEET, **given))


def test_the_guides_typed_program_is_right(embedded: sgl.Engine) -> None:
    found = TYPED.search(GUIDE.read_text(encoding="utf-8"))
    assert found is not None
    program, shown = found.groups()
    printed = io.StringIO()
    sgl.set_default_backend(embedded)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(program, "guide.py", "exec"), {"sgl": sgl, "__name__": "guide"})
    finally:
        sgl.set_default_backend(None)
    assert printed.getvalue() == shown


def test_one_space_by_default_and_none_on_demand(embedded: sgl.Engine) -> None:
    assert embedded.get_server_info()["json_whitespace_pattern"] == "[ ]?"
    states = {
        whitespace: extract.run(whitespace, temperature=0, backend=embedded)
        for whitespace in (None, "[ ]?", "")
    }
    sheet = '{"name": "Nora Hill", "age": 34, "city": "Lisbon"}'
    assert states[None]["sheet"] == states["[ ]?"]["sheet"] == sheet
    compact = states[""]["sheet"]
    assert json.dumps(json.loads(compact), separators=(",", ":")) == compact
    forced = {key: state.get_meta_info("sheet")["forced_tokens"] for key, state in states.items()}
    assert forced[""] > forced[None]


def test_a_cut_answer_says_so_with_the_line(embedded: sgl.Engine) -> None:
    state = extract.run(None, 6, temperature=0, backend=embedded)
    line = inspect.getsourcelines(extract.func)[1] + 4
    with pytest.raises(sgl.InvalidOutput, match=r"stopped at max_tokens=6: .*; raise") as refusal:
        state.value("sheet")
    assert isinstance(refusal.value, sgl.ProgramError)
    assert str(refusal.value).endswith(f"raise max_tokens at {__file__}:{line}")
    assert refusal.value.text == state["sheet"]


@pytest.mark.parametrize(
    ("declared", "settings", "pattern"),
    [
        (None, {}, "[ ]?"),
        ("", {}, ""),
        ("[ ]{0,2}", {}, "[ ]{0,2}"),
        ("[ ]{0,2}", {"constrained_json_whitespace_pattern": ""}, ""),
        ("[ ]{0,2}", {"constrained_json_disable_any_whitespace": True}, ""),
        (None, {"constrained_json_whitespace_pattern": r"\n?"}, r"\n?"),
    ],
)
def test_the_model_has_a_default_and_the_flags_win(
    tmp_path: Path, declared: str | None, settings: dict[str, Any], pattern: str
) -> None:
    with engine(tmp_path, declared, **settings) as made:
        assert made.get_server_info()["json_whitespace_pattern"] == pattern
        texts = [extract.run(w, backend=made, seed=7)["sheet"] for w in (None, pattern)]
        assert texts[0] == texts[1]
        if pattern == "":
            assert not re.search(r"[:,{]\s|\s[:,}]", re.sub(r'"[^"]*"?', "s", texts[0]))


@pytest.mark.parametrize(
    ("declared", "complaint"),
    [
        ("x", "generation_config.json: whitespace pattern 'x': character 0"),
        (r"\s*", "generation_config.json: whitespace pattern '\\\\s*' may match more than 8"),
        (5, "generation_config.json: json_whitespace_pattern is 5; it must be a string"),
    ],
)
def test_a_bad_default_of_a_model_is_refused(tmp_path: Path, declared: Any, complaint: str) -> None:
    with pytest.raises((sgl.BackendError, ValueError), match=re.escape(complaint)):
        engine(tmp_path, declared)


def engine(directory: Path, declared: Any, **settings: Any) -> sgl.Engine:
    """One with random weights, whose model declares a pattern unless ``declared`` is None."""
    byte_level(directory)
    write_config(directory, vocab_size=512)
    if declared is not None:
        content = {"json_whitespace_pattern": declared}
        (directory / "generation_config.json").write_text(json.dumps(content))
    return sgl.Engine(
        model_path=str(directory), load_format="dummy", dtype="float32", device="cpu",
        max_total_tokens=2000, context_length=512, threads=1, log_level="warning", **settings,
    )  # fmt: skip
