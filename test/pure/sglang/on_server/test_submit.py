"""Submitted programs: futures, futures as arguments, failures, cancels, and the replayed state."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
import zlib

import pytest
import sglang as sgl
from helpers.fake_program_server import FakeProgramServer, refusal
from helpers.random_programs import made, random_program
from sglang.backend.base import Backend
from sglang.errors import (
    BadRequest,
    ConnectionFailed,
    ProgramError,
    TraceError,
    UnknownVariable,
    Unsupported,
)
from sglang.on_server import server_session
from sglang.on_server.answered_backend import ProgramMismatch
from sglang.on_server.server_session import LOOP, ServerSession

IMAGE = b"\x89PNG\r\n\x1a\n" + bytes(16)
ADDRESS = f"data:image/png;base64,{base64.b64encode(IMAGE).decode()}"


@sgl.function
def write(s, task):
    s += "Write code of " + task + ".\nCode:"
    s += sgl.gen("code", max_tokens=8)
    s += "\nTest:"
    s += sgl.gen("test", max_tokens=8)


@sgl.function
def review(s, code, test="none"):
    s += "Review " + code + " and " + test + ":"
    s += sgl.gen("review", max_tokens=8)
    return s["review"]


def script(prompt, params):
    last = prompt.text.rsplit("\n", 1)[-1]
    return f" {last.split()[-1]} of {len(prompt.text)} chars"


@pytest.fixture
def server():
    return FakeProgramServer(script)


def held(server):
    """Have the model wait; return what lets it go on."""
    event = asyncio.Event()
    server.hold = event
    return lambda: LOOP.loop.call_soon_threadsafe(event.set)


def test_two_outputs_are_two_sequential_texts(server):
    plain = write.run("snake", backend=server)
    submitted = write.submit("snake", backend=server)
    assert submitted["code"].get("latency") == plain["code"]
    assert submitted["test"].get() == plain["test"]
    assert plain["code"] != plain["test"]
    assert submitted.result().text() == plain.text()
    assert submitted.state() == "done"


def test_body_is_that_of_a_plain_run(server):
    write.run("snake", backend=server, temperature=0.5, seed=7)
    write.submit("snake", backend=server, temperature=0.5, seed=7).result()
    own, sent = server.calls[:2], server.calls[2:4]
    assert [call.prompt.text for call in own] == [call.prompt.text for call in sent]
    for plain, submitted in zip(own, sent):
        assert submitted.params.seed == plain.params.seed == 7
        assert submitted.params.temperature == plain.params.temperature == 0.5
        assert submitted.params.max_new_tokens == plain.params.max_new_tokens == 8


def test_submit_returns_before_anything_ran(server):
    go = held(server)
    submitted = write.submit("snake", backend=server)
    with pytest.raises(TimeoutError, match=r"variable 'code' is not there after 0\.01 s"):
        submitted["code"].get(timeout=0.01)
    assert submitted.state() in ("waiting", "running")
    go()
    assert submitted["code"].get(timeout=10).startswith(" Code")


def test_future_is_an_argument(server):
    plain = write.run("snake", backend=server)
    want = review.run(plain["code"], plain["test"], backend=server).ret_value
    go = held(server)
    first = write.submit("snake", backend=server)
    second = review.submit(first["code"], test=first["test"])
    third = review.submit(second["review"], backend=server)
    go()
    assert second.result().ret_value == want
    assert "none" in third.result().text()
    graph = server.submissions[1]["graph"]
    assert set(graph["arguments"]["code"]) == {"var"}
    assert not [path for path, _ in server.others if path == "/v1/get"]


def test_futures_in_a_list_are_arguments(server):
    @sgl.function
    def reduce(s, parts, end):
        for part in parts:
            s += part + "\n"
        s += end + sgl.gen("all")

    parts = [write.submit(task, backend=server)["code"] for task in ("a", "b", "c")]
    state = reduce.submit(parts, "Sum:", backend=server).result()
    texts = [part.get() for part in parts]
    assert state.text().startswith("\n".join(texts) + "\nSum:")
    assert set(server.submissions[3]["graph"]["arguments"]) == {
        "parts_0", "parts_1", "parts_2", "end"
    }  # fmt: skip


def test_error_reaches_every_dependent_get(server):
    def fails(prompt, params):
        if "Test:" in prompt.text:
            raise RuntimeError("no more words")
        return script(prompt, params)

    server._script = fails
    first = write.submit("snake", backend=server)
    second = review.submit(first["test"], backend=server)
    third = review.submit(second["review"], backend=server)
    assert first["code"].get()
    for future in (first["test"], second["review"], third["review"]):
        with pytest.raises(ProgramError, match="no more words") as caught:
            future.get(timeout=10)
        assert caught.value.filename == __file__
    with pytest.raises(ProgramError, match="no more words"):
        first.result()
    with pytest.raises(ProgramError, match="no more words"):
        write.run("snake", backend=server, on="server")
    assert first.state() == "failed"


def test_cancel_ends_both_sides(server):
    held(server)
    first = write.submit("snake", backend=server)
    second = review.submit(first["code"], backend=server)
    asyncio.run_coroutine_threadsafe(second.variables(), LOOP.loop).result(10)
    first.cancel()
    for future in (first["code"], second["review"]):
        with pytest.raises(sgl.SglangError):
            future.get(timeout=10)
    with pytest.raises(sgl.SglangError):
        first.result()
    assert ("/v1/cancel", {"submission_id": "run0", "session_id": "session0"}) in server.others
    assert first.state() == "cancelled"


def test_cancelled_arun_cancels_the_program(server):
    held(server)

    async def main():
        task = asyncio.create_task(write.arun("snake", backend=server, on="server"))
        while not server.submissions:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not server.others:
            await asyncio.sleep(0.01)

    asyncio.run(main())
    assert server.others[0][0] == "/v1/cancel"


def test_text_is_streamed(server):
    server._script = lambda prompt, params: " one two three four five"
    go = held(server)
    submitted = write.submit("snake", backend=server)
    pieces = iter(submitted["code"])
    go()
    found = list(pieces)
    assert "".join(found) == " one two three four five"

    async def read():
        other = write.submit("snake", backend=server)
        return [piece async for piece in other["test"]], await other["code"], await other

    pieces, code, state = asyncio.run(read())
    assert "".join(pieces) == code == state["test"] == " one two three four five"


def test_arun_and_stream_give_the_state(server):
    plain = write.run("snake", backend=server).text()
    assert asyncio.run(write.arun("snake", backend=server, on="server")).text() == plain
    state = write.run("snake", backend=server, on="server", stream=True)
    assert "".join(state.text_iter()) == plain
    assert state.usage.calls == 2


def test_state_goes_on_after_the_program(server):
    state = write.run("snake", backend=server, on="server")
    plain = write.run("snake", backend=server)
    for each in (state, plain):
        each += "\nMore:"
        each += sgl.gen("more")
    assert state["more"] == plain["more"]


def test_tools_run_in_the_client(server):
    threads = []

    def calc(text):
        threads.append(threading.current_thread())
        return len(text)

    async def look():
        return "seen"

    @sgl.function
    def program(s):
        s += "Q" + sgl.gen("q") + sgl.tool("n", calc, of="q", timeout=5) + sgl.tool("see", look)
        s["given"] = "abc"
        s += sgl.tool("m", calc, of="given") + sgl.gen("end")

    plain = program.run(backend=server)
    state = program.run(backend=server, on="server")
    assert made(state) == made(plain)
    assert [body["value"] for path, body in server.others if path == "/v1/set"] == [
        state["n"], "seen", "3"]  # fmt: skip


def test_failed_tool_ends_the_program(server):
    def bad(text):
        raise OSError("no such page")

    @sgl.function
    def program(s):
        s += "Q" + sgl.gen("q") + sgl.tool("n", bad, of="q")

    with pytest.raises(ProgramError, match=r"tool 'bad' raised OSError: no such page at .*\.py"):
        program.run(backend=server, on="server")
    assert "/v1/cancel" in [path for path, _ in server.others]


def test_typed_values_are_those_of_a_run(server):
    server._script = ["34", "34"]

    @sgl.function
    def program(s):
        s += sgl.gen("n", dtype=int)

    assert program.run(backend=server).value("n") == 34
    submitted = program.submit(backend=server)
    assert submitted["n"].value() == 34
    assert submitted["n"].get() == "34"


def test_flow_that_needs_an_argument_makes_it_a_constant(server):
    @sgl.function
    def program(s, word, times):
        s += word
        for letter in word:
            s += letter * times

    state = program.run("ab", 2, backend=server, on="server")
    assert state.text() == "abaabb"
    assert server.submissions[0]["graph"]["arguments"] == {}
    write.run("snake", backend=server, on="server")
    assert server.submissions[1]["graph"]["arguments"] == {"task": "snake"}


def test_flow_that_needs_an_answer_is_refused_with_the_line(server):
    @sgl.function
    def program(s):
        s += sgl.gen("x")
        if s["x"] == "yes":
            s += "!"

    with pytest.raises(TraceError, match=r"variable 'x' is not known .* at .*test_submit.py:\d+"):
        program.submit(backend=server)
    assert not server.submissions


def test_exception_with_an_open_value_can_be_shown(server):
    @sgl.function
    def program(s, word, of_answer):
        s += sgl.gen("x")
        raise ValueError("not good: " + (s["x"] if of_answer else word))

    with pytest.raises(ValueError, match="not good: lamp"):
        program.run("lamp", False, backend=server, on="server")
    with pytest.raises(TraceError, match=r"in the ValueError that is raised; .*submit.py:\d+"):
        program.run("lamp", True, backend=server, on="server")


def test_other_backends_refuse(server, tmp_path):
    for backend in (sgl.Mock(), Backend(), sgl.Recorder(server, tmp_path / "calls.jsonl")):
        name = type(backend).__name__
        with pytest.raises(Unsupported, match=f"the {name} backend runs no programs on a server"):
            write.submit("snake", backend=backend)
        with pytest.raises(Unsupported, match="without on='server'"):
            write.run("snake", backend=backend, on="server")


def test_options_are_checked(server):
    with pytest.raises(ValueError, match="on is 'moon'; give 'server'"):
        write.run("snake", backend=server, on="moon")
    with pytest.raises(ValueError, match="criteria is 'fast'"):
        write.submit("snake", backend=server, criteria="fast")
    with pytest.raises(ValueError, match="criteria name 'x'; the program makes"):
        write.submit("snake", backend=server, criteria={"x": "latency"})
    with pytest.raises(TypeError):
        write.submit(backend=server)
    with pytest.raises(UnknownVariable, match="makes no variable 'x'"):
        write.submit("snake", backend=server)["x"]
    with pytest.raises(ValueError, match="ttft_ms"):
        write.submit("snake", backend=server)["code"].get({"ttft_ms": 0})


def test_criteria_are_sent(server):
    submitted = write.submit("snake", backend=server, criteria={"test": {"ttft_ms": 50}})
    submitted.result()
    write.submit("snake", backend=server, criteria="throughput").result()
    sent = [body["criteria"] for body in server.submissions]
    assert sent == [{"test": {"ttft_ms": 50}}, {"*": "throughput"}]
    go = held(server)
    later = write.submit("snake", backend=server)
    threading.Timer(0.05, go).start()
    assert later["test"].get({"tpot_ms": 30})
    assert [body["criteria"] for path, body in server.others] == [{"tpot_ms": 30}]


def test_refused_submission_is_raised_everywhere(server):
    server.refuse = refusal("the graph has 9 steps; at most 8 (--max-program-steps)")
    submitted = write.submit("snake", backend=server)
    with pytest.raises(ProgramError, match="--max-program-steps"):
        submitted["code"].get()
    with pytest.raises(ProgramError, match="--max-program-steps"):
        submitted.result()

    @sgl.function
    def silent(s):
        s += "nothing to generate"

    with pytest.raises(BadRequest, match="--max-program-steps"):
        silent.run(backend=server, on="server")


def test_lost_connection_is_opened_again(server):
    plain = write.run("snake", backend=server).text()
    server.lose = [0, 1]
    assert write.run("snake", backend=server, on="server").text() == plain
    server.lose = [0] * 9
    with pytest.raises(sgl.SglangError, match="connection"):
        write.run("snake", backend=server, on="server")


def test_connection_that_never_opens_fails(server):
    server.refuse = ConnectionFailed("nobody there")
    with pytest.raises(ProgramError, match="nobody there"):
        write.run("snake", backend=server, on="server")


def test_expired_session_is_opened_again(server):
    write.run("snake", backend=server, on="server")
    server.sessions.discard("session0")
    assert write.run("snake", backend=server, on="server").text()


def test_expired_session_is_opened_again_once_for_all_programs(server):
    """The answer to the second program arrives when the first one has another session."""
    write.run("snake", backend=server, on="server")
    server.sessions.discard("session0")
    late, asked = asyncio.Event(), threading.Event()
    plain = server.program_events

    async def events(path, body):
        if body["session_id"] == "session0" and not asked.is_set():
            asked.set()
            await late.wait()
        async for event in plain(path, body):
            yield event

    server.program_events = events
    second = write.submit("bird", backend=server)
    assert asked.wait(10)
    first = write.submit("snake", backend=server)
    first.result()
    LOOP.loop.call_soon_threadsafe(late.set)
    second.result()
    LOOP.run(first.call, "/v1/get", first["code"], {})
    LOOP.run(second.call, "/v1/get", second["code"], {})
    assert {body["session_id"] for body in server.submissions[1:]} == {"session1"}
    assert {body["session_id"] for _, body in server.others} == {"session1"}


def test_variable_of_another_session_is_sent_as_its_value(server):
    first = write.submit("snake", backend=server)
    own = review.submit(first["code"])
    other = review.submit(first["code"], session=ServerSession(server))
    assert other["review"].get(timeout=10) == own["review"].get(timeout=10)
    sent = [body["graph"]["arguments"]["code"] for body in server.submissions[1:]]
    assert first["code"].get() in sent
    assert [set(value) for value in sent if isinstance(value, dict)] == [{"var"}]


def test_full_session_is_closed_once_its_programs_are_forgotten(server, monkeypatch):
    monkeypatch.setattr(server_session, "MOST_PROGRAMS", 2)
    kept = write.submit("snake", backend=server)
    for _ in range(4):
        write.run("snake", backend=server, on="server")
    assert server.opened == 3
    late = review.submit(kept["code"], backend=server)
    assert late["review"].get(timeout=10)
    assert "session0" not in server.closed
    del kept, late
    gc.collect()
    for _ in range(3):
        write.run("snake", backend=server, on="server")
        gc.collect()
    assert {"session0", "session1"} <= set(server.closed)


def test_other_prompt_on_the_server_is_an_error(server):
    original = server.program_events

    async def changed(path, body):
        async for event in original(path, body):
            if event.get("event") == "done":
                event["prompt"] = {**event["prompt"], "sha256": "0" * 64}
            yield event

    server.program_events = changed
    with pytest.raises(ProgramError, match="are not the") as caught:
        write.run("snake", backend=server, on="server")
    assert isinstance(caught.value.__cause__, ProgramMismatch)


def test_future_is_no_text(server):
    submitted = write.submit("snake", backend=server)
    with pytest.raises(TypeError, match="cannot be formatted"):
        f"{submitted['code']}"
    assert "VariableFuture('code'" in repr(submitted["code"])


def test_waiting_in_the_own_loop_is_refused(server):
    submitted = write.submit("snake", backend=server)

    async def inside():
        with pytest.raises(sgl.SglangError, match="await the future"):
            submitted["code"].get()
        return await submitted["code"]

    assert LOOP.run(inside) == submitted["code"].get()


class SeededServer(FakeProgramServer):
    """Answers with what the prompt's checksum says."""

    WORDS = ("<think>hm</think>so", " red", " blue\n", " a zz b", "{}", "")

    def _reply(self, call):
        number = zlib.crc32(call.prompt.text.encode())
        if call.kind == "select":
            return call.options[number % len(call.options)]
        seed, n = call.params.seed or 0, call.params.n or 1
        texts = [
            "".join(self.WORDS[(number + seed >> (3 * k + i)) % 6] for k in range(4))
            for i in range(n)
        ]
        return texts if n > 1 else texts[0]


@pytest.mark.parametrize("first", range(0, 50, 10))
@pytest.mark.parametrize("seeded", [False, True])
def test_random_program_makes_the_same_everywhere(first, seeded):
    server = SeededServer()
    for seed in range(first, first + 10):
        program = random_program(seed, seeded)
        plain = made(program.run("Where?", backend=server))
        assert made(program.compile().run("Where?", backend=server)) == plain, seed
        assert made(program.run("Where?", backend=server, on="server")) == plain, seed


@pytest.mark.parametrize("image", [IMAGE, ADDRESS], ids=["bytes", "address"])
def test_random_program_with_images_makes_the_same(image):
    server = SeededServer()
    for seed in range(8):
        program = random_program(seed, media=True)
        plain = made(program.run("Where?", image=image, backend=server))
        assert made(program.compile(image=image).run("Where?", backend=server)) == plain, seed
        assert made(program.run("Where?", image=image, backend=server, on="server")) == plain, seed


def test_a_backend_that_is_dropped_is_freed():
    server = FakeProgramServer(["a", "b"])
    write.submit("x", backend=server).result()
    known = weakref.ref(server)
    del server
    until = time.monotonic() + 60
    while known() is not None and time.monotonic() < until:
        gc.collect()
    assert known() is None


LEAVES = """
import asyncio
import sglang as sgl
from helpers.fake_program_server import FakeProgramServer
from sglang.on_server.server_session import LOOP

@sgl.function
def program(s):
    s += "Q" + sgl.gen("x")

server = FakeProgramServer()
server.hold = asyncio.Event()
submitted = program.submit(backend=server)
LOOP.run(submitted.variables)
"""


def test_process_that_leaves_a_program_ends_quietly():
    ended = subprocess.run(
        [sys.executable, "-c", LEAVES],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")
