"""``sglang schema``: the doctor's findings, its instances, its exit codes."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from sglang.srt.cli import main
from sglang.srt.grammar.schema.keyword_report import examine

SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "person",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8, "x-order": 1},
        "age": {"type": "integer", "minimum": 0, "maximum": 150, "maxLength": 3},
        "site": {"type": "string", "format": "uri"},
        "color": {"type": "string", "format": "our-color"},
        "a/b": {"$ref": "#/$defs/used"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"used": {"type": "null"}, "idle": {"type": "array", "uniqueItems": True}},
}


def run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: Any, *flags: str
) -> tuple[int, str]:
    path = tmp_path / "file"
    path.write_text(text if isinstance(text, str) else json.dumps(text), encoding="utf-8")
    code = main(["schema", str(path), *flags])
    return code, capsys.readouterr().out


def report(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: Any, *flags: str) -> Any:
    return json.loads(run(tmp_path, capsys, text, "--json", *flags)[1])


def test_keyword_by_keyword() -> None:
    states = {one.pointer: one.state for one in examine(SCHEMA)}
    assert states["/title"] == states["/$schema"] == "annotation"
    assert states["/properties/name/minLength"] == states["/required"] == "enforced"
    assert states["/properties/name/x-order"] == "unknown"
    assert states["/properties/age/maxLength"] == "enforced"
    assert states["/properties/site/format"] == "enforced"
    assert states["/properties/color/format"] == "annotation"
    assert states["/properties/a~1b/$ref"] == states["/$defs/used/type"] == "enforced"
    assert states["/$defs"] == "place"
    assert states["/$defs/idle/uniqueItems"] == "not met"
    count = sum(1 for _ in states)
    assert count == len(examine(SCHEMA)) == 23


def test_every_refusal_is_found() -> None:
    schema = {
        "type": "object",
        "properties": {
            "t": {"type": "array", "uniqueItems": True},
            "r": {"$ref": "http://a/b"},
            "p": {"type": "number", "multipleOf": 0.1},
            "d": {"$dynamicRef": "#d"},
        },
    }
    found = {one.pointer: one.note for one in examine(schema) if one.state == "refused"}
    assert set(found) == {"/properties/t/uniqueItems", "/properties/r/$ref",
                          "/properties/p/multipleOf", "/properties/d/$dynamicRef"}  # fmt: skip
    assert all(found.values())


def test_a_schema_that_is_enforced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(tmp_path, capsys, SCHEMA)
    assert code == 0
    assert "/properties/name/minLength  enforced" in out
    assert "path: llguidance" in out
    found = report(tmp_path, capsys, SCHEMA)
    validator = Draft202012Validator(SCHEMA)
    assert validator.is_valid(json.loads(found["sample"]))
    assert validator.is_valid(json.loads(found["allowed"]))
    assert not validator.is_valid(json.loads(found["refused"]))
    assert found["notes"] == ["both validated with jsonschema."]
    assert found == report(tmp_path, capsys, SCHEMA)
    assert found["sample"] != report(tmp_path, capsys, SCHEMA, "--seed", "7")["sample"]


def test_white_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(tmp_path, capsys, SCHEMA, "--whitespace", "[ ]{0,3}", "--seed", "3")
    assert Draft202012Validator(SCHEMA).is_valid(json.loads(found["sample"]))
    assert run(tmp_path, capsys, SCHEMA, "--whitespace", " *")[0] == 1


def test_a_schema_that_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = {"properties": {"a": {"type": "array", "uniqueItems": True}}}
    code, out = run(tmp_path, capsys, schema)
    assert code == 1
    assert "/properties/a/uniqueItems  refused  " in out
    assert "refused: json_schema at /properties/a/uniqueItems: " in out
    found = report(tmp_path, capsys, schema)
    assert found["path"] == ""
    assert found["sample"] is found["allowed"] is found["refused"] is None


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"$ref":"#"}', "[" * 99_999, '{"type":"x"}'])
def test_what_is_no_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    code, out = run(tmp_path, capsys, text)
    assert code == 1
    assert "refused: json_schema" in out


@pytest.mark.parametrize(
    ("flag", "text", "path"),
    [("--regex", "[a-c]{3}-\\d+\n", "fsm"), ("--regex", "yes|no", "trie"),
     ("--choices", '["a","b"]', "trie"), ("--ebnf", 'root ::= "a" [0-9]+', "llguidance"),
     ("--structural-tag", '{"type":"structural_tag","triggers":["<f"],"structures":[{"begin":"<f>",'
      '"schema":{"type":"null"},"end":"</f>"}]}', "llguidance"),
     ("--json-schema", '{"type":"boolean"}', "llguidance")],
)  # fmt: skip
def test_other_kinds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, text: str, path: str
) -> None:
    found = report(tmp_path, capsys, text, flag)
    assert found["path"] == path
    assert found["sample"] is not None
    assert run(tmp_path, capsys, text, flag)[0] == 0


def test_a_regex_that_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(tmp_path, capsys, "(a", "--regex")
    assert code == 1
    assert out.startswith("refused: regex")


def test_a_file_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "/no/such/file"]) == 2
    assert "No such file" in capsys.readouterr().err


def test_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"type":"null"}'))
    assert main(["schema", "-"]) == 0
    assert "sample: null" in capsys.readouterr().out


def test_a_terminal_that_has_ascii_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, out = tmp_path / "file", io.BytesIO()
    file.write_text('{"enum": ["né"], "title": "né"}', encoding="utf-8")
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding="ascii"))
    assert main(["schema", str(file)]) == 0
    sys.stdout.flush()
    assert b"n\\xe9" in out.getvalue()


@pytest.mark.parametrize("command", ["schema", "serve", "doctor"])
def test_an_interrupt_during_an_import_shows_no_traceback(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("sglang.srt.cli.import_module", interrupted)
    assert main([command]) == 130
