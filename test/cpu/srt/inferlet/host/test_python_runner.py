"""Programs in Python in the sandbox: what they may do, what ends them, and that they can be played
again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

pytest.importorskip("wasmtime", reason="the extra [inferlet] is not installed")
pytest.importorskip("componentize_py", reason="the extra [inferlet] is not installed")

from helpers.guest_bench import Call, GuestBench, python
from sglang.srt.inferlet.host.host_messages import GuestLimits
from sglang.srt.inferlet.host.host_process import GuestEnded

# The first test builds the runner, where the cache of this machine has none.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LIMITS = GuestLimits(turn_cpu=0.5, calls=1000, calls_bytes=1 << 20)
SLOW = GuestLimits(turn_cpu=20.0)  # memory is used up first
FULL = "memory is 67108864 bytes"


@pytest.fixture(scope="module")
def bench() -> Iterator[GuestBench]:
    made = GuestBench()
    yield made
    made.close()


def hello(call: Call) -> object:
    return f"answer to {call['call']} {call['id']}"


def played(bench: GuestBench, source: str, limits: GuestLimits = LIMITS) -> Call:
    return bench.run(bench.play(bench.launch(python(source), limits), hello))


def test_a_program_awaits_its_answers(bench: GuestBench) -> None:
    source = """
import asyncio
async def main(ctx):
    first = await ctx.receive()
    both = await asyncio.gather(ctx.receive(), ctx.receive())
    return [ctx.get_arg(), first, *both]
"""
    value = [["one"], *(f"answer to receive {number}" for number in (1, 2, 3))]
    assert played(bench, source) == {"error": "", "value": value}


def test_a_plain_function_waits_inside_of_its_turn(bench: GuestBench) -> None:
    source = """
def main(ctx):
    ctx.log("begin")
    first = ctx.wait(ctx.receive())
    return [first, ctx.wait(ctx.receive())]
"""
    value = ["answer to receive 2", "answer to receive 3"]
    assert played(bench, source) == {"error": "", "value": value}


def test_bytes_cross_as_base64(bench: GuestBench) -> None:
    source = """
async def main(ctx):
    ctx.send_blob(b"\\x00\\xff")
    return (await ctx.receive_blob()).hex()
"""
    log: list[str] = []
    run = bench.launch(python(source))
    found = bench.run(bench.play(run, lambda call: "AP8=", log))
    assert found["value"] == "00ff"
    assert json.loads(log[0])[0] == {"call": "send_blob", "id": 1, "blob": "AP8="}


def test_a_print_is_a_line_of_the_log(bench: GuestBench) -> None:
    log: list[str] = []
    run = bench.launch(python("async def main(ctx):\n    print('a')\n    print('b\\nc')\n"))
    bench.run(bench.play(run, hello, log))
    lines = [call["message"] for call in json.loads(log[0]) if call["call"] == "log"]
    assert lines == ["a", "b", "c"]


BODY = "async def main(ctx):\n    "
ERRORS = {
    "an error": (BODY + "x = 1\n    return x / 0", 'program.py", line 3, in main\n    return x'),
    "a syntax error": ("async def main(:", "SyntaxError"),
    "no main": ("x = 1", "the program has no main; begin it with `async def main(ctx):`"),
    "an exit": (BODY + "import sys; sys.exit(3)", "SystemExit: 3"),
    "recursion": (BODY + "def f(): return f()\n    f()", "RecursionError"),
    "a memory bomb": (BODY + "return len('x' * (1 << 30))", "MemoryError"),
    "memory in pieces": (
        BODY + "found = []\n    while True: found.append(bytearray(1 << 20))", "MemoryError",
    ),
    "a file": (BODY + "return open('/etc/passwd').read()", "FileNotFoundError"),
    "a directory": (BODY + "import os; return os.listdir('/')", "FileNotFoundError"),
    "a socket": (
        BODY + "import socket; return socket.create_connection(('127.0.0.1', 80), 1)", "Error",
    ),
    "a process": (BODY + "import subprocess; return subprocess.run(['ls'])", "Error"),
    "a thread": (BODY + "import threading; threading.Thread(target=print).start()", "Error"),
    "a sleep": (BODY + "import time; time.sleep(3600)", "use `await asyncio.sleep(seconds)`"),
    "a value that is no data": (BODY + "return {1}", "a call has a set"),
    "a number that JSON lacks": (BODY + "return float('nan')", "JSON"),
    "half a surrogate pair": (BODY + "return '\\ud800'", "surrogates not allowed"),
    "an error that has one": (BODY + "raise ValueError('\\ud800')", "ValueError: \\ud800"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_told_with_its_line(bench: GuestBench, name: str) -> None:
    source, text = ERRORS[name]
    error = played(bench, source)["error"]
    assert text in error, error
    assert len(error) < 20_000


ENDED = {
    "spin": (BODY + "while True: pass", "turn_cpu", "turn_cpu is 0.5 s"),
    "a catastrophic regex": (
        BODY + "import re; return re.match('(a+)+b', 'a' * 40)", "turn_cpu", "turn_cpu is 0.5 s",
    ),
    "recursion with a raised limit": (
        BODY + "import sys; sys.setrecursionlimit(10**9)\n    def f(): return f() + 1\n    f()",
        "trap", "call stack exhausted",
    ),
    "a huge answer": (BODY + "return 'x' * (2 << 20)", "calls_bytes", "calls_bytes is 1048576"),
    "many calls": (BODY + "for _ in range(5000): ctx.send('')", "calls", "calls is 1000"),
    "a log flood": (BODY + "while True: print('x' * 1000)", "memory or trap", FULL),
    "a million calls": (
        BODY + "for _ in range(10**6): ctx.send('x' * 50)", "memory or trap", FULL,
    ),
    "a hard exit": (BODY + "import os; os._exit(0)", "trap", "wasi:cli/exit"),
    "an abort": (BODY + "import os; os.abort()", "trap", "unreachable"),
    "malformed calls": (
        BODY + "import sglang.inferlet.guest as g; g.dumped = lambda calls: '[{'", "malformed",
        "no JSON list",
    ),
    "a sleep below the library": (
        BODY + "import select; select.select([], [], [], 3600)", "trap", "wasi:",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDED)
def test_a_hostile_program_ends_alone(bench: GuestBench, name: str) -> None:
    source, code, message = ENDED[name]
    beside = bench.launch(python(BODY + "while True: await ctx.receive()"))
    bench.run(beside.turn(None))
    limits = SLOW if "memory" in code else LIMITS
    found, told = bench.ending(python(source), limits)
    assert found in code.split(" or "), told
    assert message in told
    [call] = json.loads(bench.run(beside.turn('[{"id":1,"value":""}]')))
    assert call == {"call": "receive", "id": 2}
    assert bench.host.restarts == 0
    bench.host.end(beside)


DICE = """
import os, random, uuid
async def main(ctx):
    seen = []
    for _ in range(12):
        ctx.send(f"{random.random()} {os.urandom(4).hex()} {sorted({'a', 'b', 'c'})} {hash('x')}")
        seen.append(await ctx.receive())
    return [seen, id(seen), str(uuid.uuid4())]
"""


def test_the_same_answers_give_the_same_calls(bench: GuestBench) -> None:
    logs: list[list[str]] = [[], []]
    for log in logs:
        bench.run(bench.play(bench.launch(python(DICE)), hello, log))
    assert logs[0] == logs[1]
    assert len(logs[0]) == 13


def test_another_seed_gives_other_numbers(bench: GuestBench) -> None:
    import msgspec

    logs: list[list[str]] = [[], []]
    for seed, log in zip((b"one", b"two"), logs):
        image = msgspec.structs.replace(python(DICE), seed=seed)
        bench.run(bench.play(bench.launch(image), hello, log))
    assert logs[0][0] != logs[1][0]


PLAIN = "def main(ctx):\n    return [ctx.wait(ctx.receive()) for _ in range(6)]"


@pytest.mark.parametrize("source", [DICE, PLAIN])
def test_a_run_goes_on_in_another_host(bench: GuestBench, source: str) -> None:
    logs: list[list[str]] = [[], []]
    bench.run(bench.play(bench.launch(python(source)), hello, logs[0]))

    def answer(call: Call) -> object:
        if call["call"] == "receive" and len(logs[1]) in (1, 4):
            os.kill(bench.host.pid, signal.SIGKILL)
        return hello(call)

    before = bench.host.restarts
    bench.run(bench.play(bench.launch(python(source)), answer, logs[1]))
    assert logs[0] == logs[1]
    assert bench.host.restarts == before + 2


def test_runs_that_have_ended_leave_nothing(bench: GuestBench) -> None:
    before = bench.host.running
    for _ in range(20):
        run = bench.launch(python(BODY + "await ctx.receive()"))
        bench.run(run.turn(None))
        bench.host.end(run)
        with pytest.raises(GuestEnded, match="was ended"):
            bench.run(run.turn("[]"))
    assert bench.host.running == before
