"""Programs in JavaScript in the sandbox: what they may do, what ends them, and that they can be
played again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import msgspec
import pytest

pytest.importorskip("wasmtime", reason="the extra [inferlet] is not installed")

from helpers.guest_bench import Call, GuestBench, javascript, javascript_runner
from sglang.srt.inferlet.host.guest_engine import imports_of, make_engine
from sglang.srt.inferlet.host.host_messages import GuestLimits
from wasmtime.component import Component

# The first test builds the runner, where the cache of this machine has none.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LIMITS = GuestLimits(turn_cpu=0.5, calls=1000, calls_bytes=1 << 20)
SLOW = GuestLimits(turn_cpu=20.0)  # memory is used up first
FULL = "memory is 67108864 bytes"


@pytest.fixture(scope="module")
def bench() -> Iterator[GuestBench]:
    javascript_runner()
    made = GuestBench()
    yield made
    made.close()


def hello(call: Call) -> object:
    return f"answer to {call['call']} {call['id']}"


def main(*lines: str) -> str:
    return "\n  ".join(["async function main(ctx) {", *lines]) + "\n}\n"


def played(
    bench: GuestBench, source: str, limits: GuestLimits = LIMITS, log: list[str] | None = None
) -> Call:
    return bench.run(bench.play(bench.launch(javascript(source), limits), hello, log))


def test_the_runner_imports_random_bytes_alone(bench: GuestBench) -> None:
    engine = make_engine()
    component = Component.deserialize_file(engine, str(javascript_runner()))
    [found] = imports_of(component, engine)
    assert found.startswith("wasi:random/random@")


def test_a_program_awaits_its_answers(bench: GuestBench) -> None:
    source = main(
        "const first = await ctx.receive();",
        "const both = await Promise.all([ctx.receive(), ctx.receive()]);",
        "return [ctx.get_arg(), first, ...both];",
    )
    value = [["one"], *(f"answer to receive {number}" for number in (1, 2, 3))]
    assert played(bench, source) == {"error": "", "value": value}


def test_a_turn_ends_when_no_promise_can_go_on(bench: GuestBench) -> None:
    long = "for (let i = 0; i < 5000; i++) await null;"
    log: list[str] = []
    source = main(long, "const got = await ctx.receive();", long, "ctx.send(got);", long)
    assert played(bench, source, log=log)["error"] == ""
    assert [[call["call"] for call in json.loads(turn)] for turn in log] == [
        ["receive"], ["send", "exit"],
    ]  # fmt: skip


def test_bytes_cross_as_base64(bench: GuestBench) -> None:
    source = main(
        "ctx.send_blob(new Uint8Array([1, 0, 255]).subarray(1));",
        "ctx.store_set('k', new Uint8Array([7]).buffer);",
        "return [...await ctx.receive_blob()];",
    )
    log: list[str] = []
    found = bench.run(bench.play(bench.launch(javascript(source)), lambda call: "AP8=", log))
    assert found["value"] == [0, 255]
    sent, stored, _ = json.loads(log[0])
    assert (sent["blob"], stored["value"]) == ("AP8=", "Bw==")


def test_the_console_writes_lines_of_the_log(bench: GuestBench) -> None:
    log: list[str] = []
    played(bench, main("console.log('a', 1, {b: [2]});", "console.error('c\\nd');"), log=log)
    lines = [call["message"] for call in json.loads(log[0]) if call["call"] == "log"]
    assert lines == ['a 1 {"b":[2]}', "c", "d"]


def test_a_timer_is_a_call(bench: GuestBench) -> None:
    log: list[str] = []
    source = main(
        "clearTimeout(setTimeout(() => ctx.send('never'), 1));",
        "return await new Promise((resolve) => setTimeout(resolve, 1500, 'late'));",
    )
    assert played(bench, source, log=log)["value"] == "late"
    assert [call["seconds"] for call in json.loads(log[0])] == [0.001, 1.5]


def test_a_refused_call_is_an_error_with_its_code(bench: GuestBench) -> None:
    source = main(
        "try { await ctx.receive(); }",
        "catch (error) { return [error instanceof CallError, error.code, error.message]; }",
    )
    run = bench.launch(javascript(source))
    bench.run(run.turn(None))
    answer = '[{"id":1,"error":{"code":"denied","message":"no"}}]'
    calls = json.loads(bench.run(run.turn(answer)))
    assert calls[0]["value"] == [True, "denied", "no"]
    bench.host.end(run)


ERRORS = {
    "an error": (main("await ctx.receive();", "null.x;"), "at main (program.js:3:3): null.x;"),
    "in a function": (
        "function f() {\n  throw new Error('boo');\n}\n" + main("await ctx.receive();", "f();"),
        "Error: boo\n    at f (program.js:2:9): throw new Error('boo');\n"
        "    at main (program.js:6:3): f();",
    ),
    "at the top": ("\nlet a = b;\n", "at the top (program.js:2:9): let a = b;"),
    "a syntax error": (main("", "cons x;"), "SyntaxError: "),
    "its line": (main("", "cons x;"), "at the top (program.js:3): cons x;"),
    "no main": ("let x = 1;", "the program has no main; begin it with `async function main(ctx)"),
    "no error": (main("throw 'a text';"), "a text"),
    "recursion": (main("function f() { return f() + 1; }", "f();"), "too much recursion"),
    "a memory bomb": (main("new Uint8Array(1 << 30);"), "out of memory; "),
    "memory in pieces": (
        main("for (const a = [];;) a.push(new Uint8Array(1 << 20));"), "out of memory; ",
    ),
    "memory in objects": (main("for (const a = [];;) a.push({});"), "out of memory; "),
    "a long text": (main("for (let s = 'x';;) s += s;"), "allocation size overflow"),
    "a request": (main("await fetch('/');"), "fetch is not defined"),
    "a value that is no data": (main("return 5n;"), "BigInt"),
    "a cycle": (main("const a = []; a.push(a); return a;"), "cyclic"),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_told_with_its_line(bench: GuestBench, name: str) -> None:
    source, text = ERRORS[name]
    error = played(bench, source, SLOW if "memory" in name else LIMITS)["error"]
    assert text in error, error
    assert len(error) < 20_000


ENDED = {
    "spin": (main("while (true);"), "turn_cpu", "turn_cpu is 0.5 s"),
    "spin at the top": ("while (true);", "turn_cpu", "turn_cpu is 0.5 s"),
    "promises without end": (main("while (true) await null;"), "turn_cpu", "turn_cpu is 0.5 s"),
    "a catastrophic regex": (
        main("return /(a+)+b/.test('a'.repeat(40));"), "turn_cpu or trap", "",
    ),
    "huge messages": (
        main("for (let i = 0; i < 500; i++) ctx.send('x'.repeat(5000));"), "calls_bytes",
        "calls_bytes is 1048576",
    ),
    "a module": (main("await import('node:fs');"), "trap", "unreachable"),
    "many calls": (
        main("for (let i = 0; i < 5000; i++) ctx.send('');"), "calls", "calls is 1000",
    ),
    "a log flood": (main("for (;;) console.log('x'.repeat(1000));"), "memory or trap", FULL),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDED)
def test_a_hostile_program_ends_alone(bench: GuestBench, name: str) -> None:
    source, code, message = ENDED[name]
    beside = bench.launch(javascript(main("while (true) await ctx.receive();")))
    bench.run(beside.turn(None))
    found, told = bench.ending(javascript(source), SLOW if "memory" in code else LIMITS)
    assert found in code.split(" or "), told
    assert message in told
    [call] = json.loads(bench.run(beside.turn('[{"id":1,"value":""}]')))
    assert call == {"call": "receive", "id": 2}
    assert bench.host.restarts == 0
    bench.host.end(beside)


@pytest.mark.parametrize(
    ("work", "turns", "memory"),
    [
        ("", 1500, 14),
        ("kept = new Uint8Array(1 << 20);", 150, 64),
        ("kept = Array.from({ length: 20000 }, (_, i) => ({ i }));", 150, 64),
        ("kept = 'x'.repeat(1 << 18).split('').reverse().join('');", 40, 64),
    ],
    ids=["turns", "bytes", "objects", "texts"],
)
def test_what_is_used_no_more_is_collected(
    bench: GuestBench, work: str, turns: int, memory: int
) -> None:
    source = main(
        "let kept;", f"for (let i = 0; i < {turns}; i++) {{ await ctx.receive(); {work} }}",
        "return 'done';",
    )  # fmt: skip
    assert played(bench, source, GuestLimits(memory=memory << 20))["value"] == "done"


def test_a_program_that_nothing_can_wake_is_ended(bench: GuestBench) -> None:
    source = main("await ctx.receive();", "await new Promise(() => 1);")
    assert played(bench, source)["error"] == "the program waits, but for no call's answer"


DICE = main(
    "const seen = [];",
    "for (let i = 0; i < 12; i++) {",
    "  const bytes = [...crypto.getRandomValues(new Uint8Array(4))];",
    "  ctx.send(`${Math.random()} ${bytes} ${crypto.randomUUID()}`);",
    "  ctx.send(`${new Date().toISOString()} ${Date()} ${Date.now()} ${performance.now()}`);",
    "  seen.push(await ctx.receive());",
    "}",
    "return seen;",
)


def test_the_same_answers_give_the_same_calls(bench: GuestBench) -> None:
    logs: list[list[str]] = [[], []]
    for log in logs:
        bench.run(bench.play(bench.launch(javascript(DICE)), hello, log))
    assert logs[0] == logs[1]
    assert len(logs[0]) == 13
    clocks = json.loads(logs[0][0])[1]["message"]
    assert clocks.startswith("1970-01-01T00:00:00.000Z Thu Jan 01 1970")
    assert clocks.endswith(" 0 0")


def test_another_seed_gives_other_numbers(bench: GuestBench) -> None:
    logs: list[list[str]] = [[], []]
    for seed, log in zip((b"one", b"two"), logs):
        image = msgspec.structs.replace(javascript(DICE), seed=seed)
        bench.run(bench.play(bench.launch(image), hello, log))
    first, second = (json.loads(log[0])[0]["message"].split() for log in logs)
    assert all(one != two for one, two in zip(first, second))


def test_a_run_goes_on_in_another_host(bench: GuestBench) -> None:
    logs: list[list[str]] = [[], []]
    bench.run(bench.play(bench.launch(javascript(DICE)), hello, logs[0]))

    def answer(call: Call) -> object:
        if call["call"] == "receive" and len(logs[1]) in (1, 4):
            os.kill(bench.host.pid, signal.SIGKILL)
        return hello(call)

    before = bench.host.restarts
    bench.run(bench.play(bench.launch(javascript(DICE)), answer, logs[1]))
    assert logs[0] == logs[1]
    assert bench.host.restarts == before + 2
