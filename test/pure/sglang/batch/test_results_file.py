"""results_file: what has been done is not done again and reads the same; nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from helpers.counted import Counted
from hypothesis import given
from hypothesis import strategies as st

PIXEL = b"\x89PNG\r\n\x1a\n" + bytes(20)


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


@sgl.function
def program(s, number, ending=""):
    s += sgl.system("Count.") + sgl.user(f"From {number} {ending}")
    with s.assistant():
        s += sgl.gen("x")
    s["list"] = [number, {"half": number / 2}, None]
    return {"number": number}


@sgl.function
def returns_the_word_for_media(s):
    s += "a" + sgl.gen("x")
    s["kept"] = {"$media": [1, "b"]}
    return {"$media": None}


@sgl.function
def simple(s, ending):
    s += ending + sgl.gen("x")


@sgl.function
def shown(s, value):
    s += f"{value} " + sgl.gen("x")


def reading(state: sgl.ProgramState) -> Any:
    """All that can be read of a state."""
    names = ("x", "list")
    return (
        state.text(), state.messages(), [state[name] for name in names],
        [state.get_meta_info(name) for name in names], state.ret_value, repr(state.usage),
        list(state.text_iter()), list(state.text_iter("x")), state.error(), "x" in state,
    )  # fmt: skip


def items(count: int) -> list[tuple[int]]:
    return [(number,) for number in range(count)]


def test_the_second_batch_runs_nothing_and_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first, again = Counted(), Counted()
    states = program.run_batch(items(5), backend=first, results_file=path)
    assert first.calls == 5
    restored = program.run_batch(items(5), backend=again, results_file=str(path))
    assert again.calls == 0
    assert [reading(state) for state in restored] == [reading(state) for state in states]
    more = program.run_batch(items(8), backend=again, results_file=path)
    assert again.calls == 3
    assert [state.ret_value["number"] for state in more] == list(range(8))
    assert len(path.read_text().splitlines()) == 8


def test_an_event_loop_uses_the_same_file(tmp_path: Path) -> None:
    async def run(backend: Counted) -> list[Any]:
        states = program.arun_batch(items(5), backend=backend, results_file=tmp_path / "r")
        return [reading(state) async for state in states]

    first, again = Counted(), Counted()
    states = program.run_batch(items(3), backend=first, results_file=tmp_path / "r")
    read = asyncio.run(run(again))
    assert (first.calls, again.calls) == (3, 2)
    assert read[:3] == [reading(state) for state in states]


def test_other_programs_arguments_and_parameters_do_not_match(tmp_path: Path) -> None:
    def calls(function: sgl.SglFunction, items: list[Any], **options: Any) -> int:
        backend = Counted()
        function.run_batch(items, backend=backend, results_file=tmp_path / "r", **options)
        return backend.calls

    assert calls(simple, [("a",)]) == 1
    assert calls(simple, [{"ending": "a"}]) == 0
    assert calls(simple.bind(ending="a"), [()]) == 0
    assert calls(simple, [("a",)], temperature=0.5) == 1
    assert calls(simple, [("a",)], max_tokens=128) == 0  # the default
    assert calls(simple, [("b",)]) == 1
    assert calls(sgl.function(lambda s, ending: None), [("a",)]) == 0
    assert calls(simple, [("a",)]) == 0


@pytest.mark.parametrize(
    ("value", "other"),
    [((1, 2), [1, 2]), ({"b": 1, "a": 2}, {"a": 2, "b": 1}), ({1: 1}, {"1": 1}), ([()], [[]])],
)
def test_arguments_of_one_json_are_told_apart(tmp_path: Path, value: Any, other: Any) -> None:
    def text(argument: Any) -> str:
        options: dict[str, Any] = {"backend": Counted(), "results_file": tmp_path / "r"}
        (state,) = shown.run_batch([{"value": argument}], **options)
        return state.text()

    texts = text(value), text(other)
    assert texts[0] != texts[1]
    assert (text(value), text(other)) == texts


PROMPT, LATER = "One ", 0


def helper(text: str) -> str:
    return PROMPT + text


@sgl.function
def reading_around(s, ending):
    global LATER
    LATER += 1
    s += helper(ending) + sgl.gen("x")
    return s.text()


def made(prompt: str, end: str) -> sgl.SglFunction:
    @sgl.function
    def inner(s, ending, *, last=end):
        s += prompt + ending + last
        return s.text()

    return inner


def test_what_a_program_reads_tells_it_from_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def texts(program: sgl.SglFunction) -> Any:
        path = tmp_path / "r"
        return program.run_batch([("b",)], backend=sgl.Mock(["."]), results_file=path)[0].ret_value

    assert [texts(made(*ends)) for ends in ("ac", "xc", "az", "ac")] == ["abc", "xbc", "abz", "abc"]
    assert texts(reading_around) == "One b."
    monkeypatch.setattr(sys.modules[__name__], "PROMPT", "Two ")
    assert texts(reading_around) == texts(reading_around) == "Two b."
    assert LATER == 2, "what a program sets is no part of what it is"


COUNT_KEYS = """
import sys, sglang as sgl
@sgl.function
def among(s, word):
    if word in {"a", "bc", "def", "ghij", "klmno"}:
        s += "known"
among.run_batch([("a",)], backend=sgl.Mock([]), results_file=sys.argv[1])
"""


def test_a_program_with_a_set_is_known_in_another_process(tmp_path: Path) -> None:
    """The order of a set of texts is another one in each process."""
    for seed in "123":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", COUNT_KEYS, str(tmp_path / "r")]
        subprocess.run(command, check=True, env=environment)
    assert len((tmp_path / "r").read_text().splitlines()) == 1


def test_items_equal_to_each_other_are_each_kept(tmp_path: Path) -> None:
    replies = [str(number) for number in range(6)]
    states = simple.run_batch(
        [("a",)] * 3, backend=sgl.Mock(replies), num_threads=1, results_file=tmp_path / "r"
    )
    assert [state["x"] for state in states] == ["0", "1", "2"]
    mock = sgl.Mock(replies[3:])
    states = simple.run_batch(
        [("a",)] * 5, backend=mock, num_threads=1, results_file=tmp_path / "r"
    )
    assert [state["x"] for state in states] == ["0", "1", "2", "3", "4"]


def test_errors_are_not_kept(tmp_path: Path) -> None:
    batch = [("fine ",), ("bad ",), ("good ",)]
    with pytest.raises(sgl.BatchError, match="1 of 3"):
        simple.run_batch(batch, backend=Counted(), results_file=tmp_path / "r")
    backend = Counted()
    backend._said = lambda prompt: [sgl.backend.base.Completion("mended")]  # type: ignore
    states = simple.run_batch(batch, backend=backend, results_file=tmp_path / "r")
    assert [state["x"] for state in states] == ["a b", "mended", "a b"]
    assert backend.calls == 1


@pytest.mark.slow
@given(st.data())
def test_a_file_cut_anywhere_goes_on(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "r"
        states = program.run_batch(items(4), backend=Counted(), num_threads=1, results_file=path)
        whole = path.read_bytes()
        cut = whole[: data.draw(st.integers(0, len(whole)))]
        path.write_bytes(cut)
        backend = Counted()
        restored = program.run_batch(items(4), backend=backend, results_file=path)
        assert [reading(state) for state in restored] == [reading(state) for state in states]
        assert backend.calls == 4 - cut.count(b"\n")
        lines = path.read_bytes().splitlines()
        assert sorted(lines) == sorted(whole.splitlines())


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    for text in ("name,age\nBo,3", "notes", '{"name": "Bo"}\n'):
        path = tmp_path / "r"
        path.write_text(text)
        with pytest.raises(ValueError, match=r"line 1 of .* a file of its own"):
            simple.run_batch([("a",)], backend=Counted(), results_file=path)
        assert path.read_text() == text


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ((1, 2), "variable 'made' is a tuple"),
        ({1: 2}, "variable 'made' is a dict"),
        ([{"a": {2}}], "variable 'made' is a dict with set"),
        (Mood.GOOD, "variable 'made' is a Mood"),
    ],
)
def test_a_value_that_is_no_json_is_named(tmp_path: Path, value: Any, complaint: str) -> None:
    @sgl.function
    def sets(s):
        s["made"] = value

    @sgl.function
    def returns(s):
        return value

    for function, what in [(sets, complaint), (returns, "the program returns a")]:
        with pytest.raises(TypeError, match=f"{what}.*cannot keep"):
            function.run_batch([()], backend=Counted(), results_file=tmp_path / "r")
    with pytest.raises(TypeError, match=r"argument 'ending' is a bytes.*such as a path"):
        simple.run_batch([(b"x",)], backend=Counted(), results_file=tmp_path / "r")


def test_media_and_types_come_back(tmp_path: Path) -> None:
    @sgl.function
    def looks(s):
        s += sgl.user("See " + sgl.image(PIXEL))
        s += sgl.assistant(sgl.gen("n", dtype=int) + sgl.gen("mood", schema=Mood))
        s += sgl.assistant(sgl.gen("r", regex="[a-z]+") + sgl.gen("l", schema=list[int]))
        s += sgl.assistant(sgl.gen("j", json_schema={"type": "array"}))
        s += sgl.assistant(sgl.gen("e", ebnf="x") + sgl.gen("t", structural_tag={"type": "x"}))

    def run() -> sgl.ProgramState:
        kinds = ["ebnf", "structural_tag"]
        mock = sgl.Mock(["7", '"good"', "abc", "[1]", "[2]", "e", "t"], constraints=kinds)
        (state,) = looks.run_batch([()], backend=mock, results_file=tmp_path / "r")
        return state

    first, restored = run(), run()
    assert len((tmp_path / "r").read_text().splitlines()) == 1
    assert restored.messages() == first.messages()
    assert "data:image/png" in json.dumps(restored.messages())
    for name, value in {
        "n": 7,
        "mood": Mood.GOOD,
        "r": "abc",
        "j": [2],
        "e": "e",
        "t": "t",
    }.items():
        assert restored.value(name) == first.value(name) == value
    assert restored["l"] == "[1]"
    with pytest.raises(sgl.SglangError, match=r"made for list\[int\], which the results file"):
        restored.value("l")


def test_a_dict_of_a_program_may_have_any_key(tmp_path: Path) -> None:
    for _ in range(2):
        [state] = returns_the_word_for_media.run_batch(
            [{}], backend=Counted(), results_file=tmp_path / "run.jsonl"
        )
        assert state["kept"] == {"$media": [1, "b"]}
        assert state.ret_value == {"$media": None}


def test_the_bar_shows_restored_items_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simple.run_batch([("a",)] * 3, backend=Counted(), results_file=tmp_path / "r")
    states = simple.run_batch(
        [("a",)] * 5, backend=Counted(), results_file=tmp_path / "r", progress_bar=True,
        generator_style=True,
    )  # fmt: skip
    assert "3/5" in capsys.readouterr().err
    for _ in range(4):
        next(states)
    assert len((tmp_path / "r").read_text().splitlines()) >= 4  # before the batch has ended
    assert len(list(states)) == 1
    assert "5/5" in capsys.readouterr().err
