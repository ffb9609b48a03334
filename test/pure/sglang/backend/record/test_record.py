"""Recordings: what was recorded is replayed, whatever the order, and nothing else is."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from helpers.programs import VALUES, program_of, programs
from helpers.programs import Recorder as Digest
from helpers.threads import running_threads
from hypothesis import given, settings
from sglang import errors
from sglang.backend.base import Backend, Choose, Commit, Complete, Completion, Prompt
from sglang.backend.mock import decided
from sglang.backend.record.call_file import _likeness
from sglang.ir.chat_template import TEMPLATES, ChatTemplate
from sglang.ir.choices import token_length_normalized
from sglang.ir.params import DEFAULTS, GenParams


def outcome(program: sgl.SglFunction, backend: Backend, loop: bool = False, **options):
    sgl.set_default_backend(backend)  # programs that it runs use it too
    try:
        if loop:
            state = asyncio.run(program.arun(**VALUES, **options))
        else:
            state = program.run(**VALUES, **options)
    finally:
        sgl.set_default_backend(None)
    stream = state._executor.stream
    return state.text(), state.messages(), dict(stream.variables), dict(stream.meta)


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("record") / "run.jsonl"


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(operations=programs())
def test_a_replay_says_what_the_recorded_run_said(path: Path, operations: list) -> None:
    program, backend = program_of(operations), Digest()
    with sgl.Recorder(backend, path) as recorder:
        expected = outcome(program, recorder)
    lines = lines_of(path)[1:]
    assert Counter(line["kind"] for line in lines).total() == backend.calls.total()
    replay = sgl.Replay(path)
    assert outcome(program, replay, use_thread=False) == expected
    assert outcome(program, replay) == expected  # once more, from the first answers on
    assert outcome(program, replay, loop=True) == expected


@sgl.function
def ask(s, question):
    s += sgl.user(question) + sgl.assistant(sgl.gen("answer", stop="."))


def record(path: Path, backend: Backend, *questions: str, **options) -> list[sgl.ProgramState]:
    with sgl.Recorder(backend, path) as recorder:
        return [ask.run(question, backend=recorder, **options) for question in questions]


def test_the_same_call_gets_its_answers_in_turn_and_then_again(tmp_path: Path) -> None:
    record(tmp_path / "r", sgl.Mock(["one", "two"]), "Q", "Q")
    replay = sgl.Replay(tmp_path / "r")
    said = [ask.run("Q", backend=replay)["answer"] for _ in range(5)]
    assert said == ["one", "two", "one", "two", "one"]


class Adapted(sgl.Mock):
    """Chooses by the adapter."""

    def choose(self, prompt: Prompt, options: Any, method: Any) -> Any:
        return decided("no" if prompt.lora_path else "yes", options, method)


def test_a_select_by_an_adapter_is_another_call(tmp_path: Path) -> None:
    calls = [
        Choose(Prompt("Q", lora_path=name), ("yes", "no"), token_length_normalized)
        for name in ("", "x")
    ]
    with sgl.Recorder(Adapted(), tmp_path / "r") as recorder:
        assert [call.do(recorder).text for call in calls] == ["yes", "no"]
    replay = sgl.Replay(tmp_path / "r")
    assert [call.do(replay).text for call in reversed(calls)] == ["no", "yes"]


def test_meta_info_unicode_and_several_texts_come_back(tmp_path: Path) -> None:
    text = "é \u2028 ⟨日本⟩ \ud800 \x00 \r\n"
    (state,) = record(tmp_path / "r", sgl.Mock([[text, "b"]]), "Q " + text, n=2)
    again = ask.run("Q " + text, backend=sgl.Replay(tmp_path / "r"), n=2)
    assert again["answer"] == state["answer"] == [text, "b"]
    assert again.get_meta_info("answer") == state.get_meta_info("answer")


def test_what_a_program_depends_on_of_its_backend_is_kept(tmp_path: Path) -> None:
    backend = sgl.Mock(constraints=["regex"], speculates="chat")
    backend.chat_template = ChatTemplate("own", {"user": ("<u>", "</u>")}, stop=("#",))
    backend.messages_only = True
    record(tmp_path / "r", backend)
    replay = sgl.Replay(tmp_path / "r")
    assert replay.chat_template == backend.chat_template
    assert replay.constraints == {"regex"}
    assert (replay.speculates, replay.messages_only) == ("chat", True)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_every_template_comes_back(tmp_path: Path, name: str) -> None:
    record(tmp_path / "r", sgl.Mock(chat_template=name))
    assert sgl.Replay(tmp_path / "r").chat_template == TEMPLATES[name]


@pytest.mark.parametrize("loop", [False, True])
def test_the_pieces_of_a_stream_come_again(tmp_path: Path, loop: bool) -> None:
    def pieces(backend: Backend) -> list[str]:
        async def listened() -> list[str]:
            return [piece.text async for piece in backend.astream(Prompt("Q"), DEFAULTS)]

        if loop:
            return asyncio.run(listened())
        return [piece.text for piece in backend.stream(Prompt("Q"), DEFAULTS)]

    recorder = sgl.Recorder(sgl.Mock(["once upon a time"]), tmp_path / "r")
    expected = pieces(recorder)
    assert expected == ["once", "once upon", "once upon a", "once upon a time"]
    assert pieces(sgl.Replay(tmp_path / "r")) == expected
    (line,) = lines_of(tmp_path / "r")[1:]
    assert [added for _, added in line["pieces"]] == ["once", " upon", " a", " time"]


def test_a_streamed_call_equals_the_call_without_streaming(tmp_path: Path) -> None:
    recorder = sgl.Recorder(sgl.Mock(["a b", "c d"]), tmp_path / "r")
    list(recorder.stream(Prompt("P"), GenParams()))
    recorder.complete(Prompt("Q"), GenParams())
    replay = sgl.Replay(tmp_path / "r")
    assert replay.complete(Prompt("P"), GenParams())[0].text == "a b"
    assert [piece.text for piece in replay.stream(Prompt("Q"), GenParams())] == ["c d"]


class Lost(sgl.Mock):
    def stream(self, prompt, params):
        yield Completion("half")
        raise errors.RateLimited("slow down", 429, request_id="r1")


def test_a_stream_that_broke_off_breaks_off_again(tmp_path: Path) -> None:
    with sgl.Recorder(Lost(), tmp_path / "r") as recorder, pytest.raises(errors.RateLimited):
        list(recorder.stream(Prompt("P"), GenParams()))
    stream = sgl.Replay(tmp_path / "r").stream(Prompt("P"), GenParams())
    assert next(stream).text == "half"
    with pytest.raises(errors.RateLimited, match=r"^slow down; request id r1$") as raised:
        next(stream)
    assert (raised.value.status, raised.value.request_id) == (429, "r1")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (sgl.BackendError("gone"), sgl.BackendError, "gone"),
        (errors.Unsupported("no"), errors.Unsupported, "no"),
        (ValueError("bad"), sgl.BackendError, "ValueError: bad"),
        (TypeError(), sgl.BackendError, "TypeError: "),
    ],
)
def test_errors_come_back(tmp_path: Path, error: Exception, kind: type, message: str) -> None:
    with pytest.raises(sgl.ProgramError) as recorded:
        record(tmp_path / "r", sgl.Mock([error]), "Q")
    with pytest.raises(sgl.ProgramError) as replayed:
        ask.run("Q", backend=sgl.Replay(tmp_path / "r"))
    assert type(replayed.value.__cause__) is kind
    assert str(replayed.value.__cause__) == message
    assert recorded.value.filename == replayed.value.filename


def test_an_aborted_call_is_not_recorded(tmp_path: Path) -> None:
    recorder = sgl.Recorder(sgl.Mock(delay=20), tmp_path / "r")

    async def cancelled() -> None:
        task = asyncio.create_task(recorder.acomplete(Prompt("P"), GenParams()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert len(lines_of(tmp_path / "r")) == 1


IMAGE = b"\x89PNG\r\n\x1a\n1"


@sgl.function
def varied(
    s, text="The cat sat on the mat. What did it do?", limit=16, image=IMAGE, choices=("a",)
):
    s += sgl.image(image) + text + sgl.gen("x", max_tokens=limit) + sgl.select("y", choices)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"text": "The cat sat on the hat. What did it do?"},
            r"nearest prompt of a gen differs from character 26 on: recorded "
            r"'.*on the mat. What.*', asked '.*on the hat",
        ),
        ({"limit": 17}, "same prompt, but max_new_tokens recorded 16, asked 17"),
        ({"image": IMAGE + b"2"}, "same prompt, but media recorded"),
        ({"choices": ["a", "b"]}, r"same prompt, but options recorded \['a'\], asked \['a', 'b'\]"),
    ],
)
def test_an_unknown_call_tells_what_is_nearest(tmp_path: Path, changed: dict, message: str) -> None:
    with sgl.Recorder(sgl.Mock(lambda prompt, params: "a"), tmp_path / "r") as recorder:
        for text in ("A dog. What did it do?", "The cat sat on the mat. What did it do?"):
            varied.run(text, backend=recorder)
    replay = sgl.Replay(tmp_path / "r")
    assert varied.run(backend=replay)["y"] == "a"
    with pytest.raises(sgl.ProgramError, match=message):
        varied.run(**changed, backend=replay)


def test_an_unknown_hint_is_no_error_and_an_unknown_kind_is(tmp_path: Path) -> None:
    record(tmp_path / "r", sgl.Mock(["x"]), "Q")
    replay = sgl.Replay(tmp_path / "r")
    assert Commit(Prompt("new")).do(replay) == {}
    with pytest.raises(sgl.BackendError, match="it has no select"):
        replay.choose(Prompt("P"), ["a"], sgl.greedy_token_selection)


def test_a_last_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "r"
    record(path, sgl.Mock(["one", "two"]), "P", "Q")
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    replay = sgl.Replay(path)
    assert ask.run("P", backend=replay)["answer"] == "one"
    with pytest.raises(sgl.ProgramError, match="has no such call"):
        ask.run("Q", backend=replay)
    path.write_bytes(whole.replace(b'"kind"', b"kind", 1))
    with pytest.raises(ValueError, match=r"r:2 is not JSON"):
        sgl.Replay(path)


@pytest.mark.parametrize("text", ["", "{}\n", '{"sglang_recording": 99}\n', "[1]\n", "hello\n"])
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r").write_text(text)
    with pytest.raises(ValueError, match=r"r is no recording of format 1|r:1 is"):
        sgl.Replay(tmp_path / "r")


def test_a_closed_recorder_does_not_lose_calls_silently(tmp_path: Path) -> None:
    recorder = sgl.Recorder(sgl.Mock(), tmp_path / "r")
    recorder.shutdown()
    with pytest.raises(sgl.BackendError, match="is closed"):
        recorder.commit(Prompt("P"))


def test_many_threads_write_and_read_whole_lines(tmp_path: Path) -> None:
    recorder = sgl.Recorder(sgl.Mock(lambda prompt, params: prompt.text * 50), tmp_path / "r")

    def together(backend: Backend, seen: list) -> None:
        def calls(number: int) -> None:
            for i in range(20):
                seen.extend(Complete(Prompt(f"{number % 2} {i} "), GenParams()).do(backend))

        threads = [threading.Thread(target=calls, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    recorded: list = []
    replayed: list = []
    together(recorder, recorded)
    together(sgl.Replay(tmp_path / "r"), replayed)
    assert len(lines_of(tmp_path / "r")) == 161
    assert Counter(map(repr, recorded)) == Counter(map(repr, replayed))


def test_a_replay_needs_no_threads(tmp_path: Path) -> None:
    @sgl.function
    async def wide(s):
        forks = s.fork(50)
        forks += lambda i: f"{i}" + sgl.gen("x") + sgl.select("y", ["a", "b"])
        await forks.ajoin()

    with sgl.Recorder(sgl.Mock(), tmp_path / "r") as recorder:
        expected = asyncio.run(wide.arun(backend=recorder))
    before = running_threads()
    seen = []
    replay = sgl.Replay(tmp_path / "r")
    original = replay.complete

    def counted(prompt, params):
        seen.append(running_threads())
        return original(prompt, params)

    replay.complete = counted  # type: ignore[method-assign]
    state = asyncio.run(wide.arun(backend=replay))
    assert state["x"] == expected["x"]
    assert state["y"] == expected["y"]
    assert max(seen) <= before


def test_the_nearest_of_long_prompts_is_found_by_few_comparisons(tmp_path: Path) -> None:
    class Word(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Word.compared += 1
            return str.__eq__(self, other)

    class Text(str):
        def split(self, *_: object) -> list:
            return [Word(word) for word in str.split(self)]

    count = 400
    near, far = "the cat sat in " * count, "the dog ran off " * count
    assert _likeness(Text(near), Text("the cat sat on " * count)) == 0.75
    assert _likeness(Text(far), Text("the cat sat on " * count)) == 0.25
    assert Word.compared < 100 * count


def test_a_line_that_is_no_call_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with sgl.Recorder(sgl.Mock("a"), path):
        pass
    path.write_text(path.read_text() + '{"kind": "gen"}\n')
    with pytest.raises(ValueError, match=r"run.jsonl:2 is .* no call of a recording"):
        sgl.Replay(path)
