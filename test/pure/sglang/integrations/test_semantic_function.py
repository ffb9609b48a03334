"""Semantic functions: docstrings with placeholders as programs, here and on a server."""

from __future__ import annotations

import runpy

import pytest
import sglang as sgl
from helpers.fake_program_server import FakeProgramServer
from helpers.paths import ROOT


@sgl.semantic_function(code={"max_tokens": 3, "transform": sgl.transforms.strip()}, temperature=0)
def engineer(task, style: str = "plain"):
    """Write {{input:style}} code of {{ input : task }}.
    Code: {{output:code}}
    Again: {{input:code}}
    Test: {{output:test}}
    Done."""


TEXT = "Write plain code of a game.\nCode:  x = 1\nAgain: x = 1\nTest:  assert x\nDone."


def _server():
    return FakeProgramServer({"Code: ": " x = 1 and more", "Test: ": " assert x"})


def test_outputs_are_generated_in_order():
    server = _server()
    for state in (
        engineer.run("a game", backend=server),
        engineer.run(task="a game", backend=server, on="server"),
        engineer.compile(style="plain").run("a game", backend=server),
    ):
        assert state.text() == TEXT
        assert state.ret_value == {"code": "x = 1", "test": " assert x"}
        assert state["code_text"] == " x = 1"
    params = [call.params for call in server.calls[:2]]
    assert [p.max_new_tokens for p in params] == [3, 128]
    assert [p.temperature for p in params] == [0, 0]


def test_inputs_stay_open_in_what_is_sent():
    server = _server()
    engineer.submit("a game", backend=server).result()
    assert server.submissions[0]["graph"]["arguments"] == {"style": "plain", "task": "a game"}


def test_what_makes_no_sense_is_refused():
    def function(text, *names):
        func = eval(f"lambda {', '.join(names)}: None")
        func.__name__, func.__doc__ = "f", text
        return func

    for text, names, message in [
        ("", (), "has no docstring"),
        ("{{input:x}}{{output:y}}", (), "input 'x', which is none of its parameters"),
        ("{{output:y}}", ("x",), "parameter 'x', but no {{input:x}}"),
        ("{{input:x}}", ("x",), "generates nothing"),
        ("{{out:y}}", (), "placeholder '{{out:y}}'"),
        ("{{output:a b}}", (), "placeholder '{{output:a b}}'"),
        ("{{output:y}}{{output:y}}", (), "output 'y' twice"),
        ("{{input:x}}{{output:x}}", ("x",), "output 'x' twice, or as an input"),
        ("{{input:y}}{{output:y}}", (), "no output further up"),
    ]:
        with pytest.raises(ValueError, match=message):
            sgl.semantic_function(function(text, *names))
    with pytest.raises(TypeError, match="max_words"):
        sgl.semantic_function(max_words=3)(function("{{output:y}}"))
    with pytest.raises(TypeError, match="transform of output 'y'"):
        sgl.semantic_function(y={"transform": "strip"})(function("{{output:y}}"))


def test_example_is_two_programs_without_a_message_between():
    example = runpy.run_path(str(ROOT / "examples" / "parrot_snake_game.py"))
    server = FakeProgramServer({"Code: ": " print(1)", "test code: ": " assert True"})
    assert example["write_snake_game"](server) == (" print(1)", " assert True")
    second = server.submissions[1]["graph"]["arguments"]
    assert set(second["code"]) == {"var"}


def test_example_without_a_url_says_how_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["example"])
    with pytest.raises(SystemExit, match=r"usage: python .* URL"):
        runpy.run_path(str(ROOT / "examples" / "parrot_snake_game.py"), run_name="__main__")
