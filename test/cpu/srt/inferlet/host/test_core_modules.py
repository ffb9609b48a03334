"""Core modules in the sandbox: the committed one, and those that break the contract."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("wasmtime", reason="the extra [inferlet] is not installed")

from helpers.guest_bench import GuestBench, compiled, module
from helpers.paths import ROOT
from sglang.srt.inferlet.host.compiling import ProgramRefused, precompile
from sglang.srt.inferlet.host.host_messages import GuestLimits
from sglang.srt.inferlet.host.host_process import GuestEnded, HostRun
from wasmtime import wat2wasm

pytestmark = pytest.mark.slow
EXAMPLE = ROOT / "examples" / "inferlets" / "wasm" / "completion"


@pytest.fixture(scope="module")
def bench() -> Iterator[GuestBench]:
    made = GuestBench()
    yield made
    made.close()


def text(alloc: str, turn: str, more: str = "", memory: str = "1") -> str:
    return f"""(module (memory (export "memory") {memory}) {more}
      (func (export "alloc") (param i32) (result i32) {alloc})
      (func (export "turn") (param i32 i32) (result i64) {turn}))"""


def said(data: str, more: str = "", offset: int = 16) -> str:
    """A module each of whose turns gives one text."""
    escaped = data.replace('"', "\\22")
    packed = offset << 32 | len(data)
    return text("i32.const 4096", f"i64.const {packed}", f'(data (i32.const {offset}) "{escaped}")')


def test_the_committed_module_is_its_source() -> None:
    source = EXAMPLE.with_suffix(".wat").read_text()
    assert EXAMPLE.with_suffix(".wasm").read_bytes() == wat2wasm(source)
    assert EXAMPLE.with_suffix(".wasm").stat().st_size < 500


def test_the_committed_module_completes_a_text(bench: GuestBench, tmp_path: Path) -> None:
    path = tmp_path / "completion.wasm"
    path.write_bytes(EXAMPLE.with_suffix(".wasm").read_bytes())
    long = "x" * 200_000  # more than its memory has at the start
    asked = []

    def answer(call: dict[str, object]) -> object:
        asked.append(call)
        return {"text": long}

    found = bench.run(bench.play(bench.launch(compiled(path)), answer))
    assert found == {"error": "", "value": [{"id": 1, "value": {"text": long}}]}
    assert [call["text"] for call in asked] == ["Hello"]


HOSTILE = {
    "spin": (text("i32.const 0", "(loop br 0) i64.const 0"), "turn_cpu", "turn_cpu is 0.3 s"),
    "a start function that spins": (
        text("i32.const 0", "i64.const 0", "(func $s (loop br 0)) (start $s)"),
        "turn_cpu", "turn_cpu is 0.3 s",
    ),
    "recursion": (
        text("i32.const 0", "call $deep", "(func $deep (result i64) call $deep)"),
        "trap", "call stack exhausted",
    ),
    "unreachable": (text("i32.const 0", "unreachable"), "trap", "unreachable"),
    "pointer past the memory": (text("i32.const -1", "i64.const 0"), "trap", "alloc gives"),
    "text past the memory": (
        text("i32.const 0", f"i64.const {65535 << 32 | 8}"), "trap", "the memory has 65536 bytes",
    ),
    "length that overflows": (
        text("i32.const 0", "i64.const -1"), "trap", "turn gives 4294967295 bytes at 4294967295",
    ),
    "no text": (text("i32.const 0", "i64.const 0"), "malformed", "no JSON list"),
    "no UTF-8": (
        text("i32.const 99", f"i64.const {16 << 32 | 2}", '(data (i32.const 16) "\\ff\\fe")'),
        "trap", "no UTF-8",
    ),
    "malformed JSON": (said('[{"call":'), "malformed", "no JSON list"),
    "deep JSON": (said("[" * 5000), "malformed", "no JSON list"),
    "no list": (said('{"call":"send"}'), "malformed", "no JSON list"),
    "no objects": (said('[1,"2"]'), "malformed", "a call is '1', no object"),
    "many calls": (said("[" + "{}," * 40 + "{}]"), "calls", "makes 41 calls; calls is 40"),
    "long text": (
        text("i32.const 0", f"i64.const {16 << 32 | 60_000}"), "calls_bytes", "60000 bytes",
    ),
    "memory": (
        text("i32.const 0", "unreachable", "(func $g (drop (memory.grow (i32.const 1))))",
             memory="9000"),
        "trap", "memory",
    ),
}  # fmt: skip
LIMITS = GuestLimits(turn_cpu=0.3, memory=8 << 20, calls_bytes=50_000, calls=40)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_module_ends_alone(bench: GuestBench, tmp_path: Path, name: str) -> None:
    source, code, message = HOSTILE[name]
    beside = bench.launch(module(tmp_path / "beside.wasm", said("[]")))
    assert bench.run(beside.turn(None)) == "[]"
    found, told = bench.ending(module(tmp_path / "hostile.wasm", source), LIMITS)
    assert (found, message in told) == (code, True), told
    assert bench.run(beside.turn("[]")) == "[]"
    assert bench.host.restarts == 0
    bench.host.end(beside)


FAILURES = {
    "a reason": (f"i64.const {16 << 32 | 12}", "hello.rs:7:5\nwasm trap"),
    "no text": ("i64.const 0", "wasm trap"),
    "past the memory": (f"i64.const {65535 << 32 | 8}", "wasm trap"),
    "too long": (f"i64.const {16 << 32 | 5000}", "wasm trap"),
    "a trap": ("unreachable", "wasm trap"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_module_says_why_it_traps(bench: GuestBench, tmp_path: Path, name: str) -> None:
    failure, begin = FAILURES[name]
    data = '(data (i32.const 16) "hello.rs:7:5")'
    more = f'{data} (func (export "failure") (result i64) {failure})'
    wat = text("i32.const 4096", "unreachable", more)
    code, message = bench.ending(module(tmp_path / "fails.wasm", wat), LIMITS)
    assert (code, message[: len(begin)]) == ("trap", begin)


def test_a_reason_has_no_time_of_its_own(bench: GuestBench, tmp_path: Path) -> None:
    spin = '(func (export "failure") (result i64) (loop br 0) i64.const 0)'
    for turn in ("unreachable", "(loop br 0) i64.const 0"):
        found = bench.ending(
            module(tmp_path / "spin.wasm", text("i32.const 0", turn, spin)), LIMITS
        )
        assert found[0] == "turn_cpu"


def test_answers_past_their_limit_end_the_run(bench: GuestBench, tmp_path: Path) -> None:
    run = bench.launch(module(tmp_path / "a.wasm", said("[]")), GuestLimits(answer_bytes=10))
    bench.run(run.turn(None))
    with pytest.raises(GuestEnded, match="have 12 bytes; answer_bytes is 10"):
        bench.run(run.turn('["12345678"]'))


def test_processor_time_of_all_turns_is_limited(bench: GuestBench, tmp_path: Path) -> None:
    busy = text("i32.const 4096", f"""(local $i i32)
      (loop (local.set $i (i32.add (local.get $i) (i32.const 1)))
        (br_if 0 (i32.lt_u (local.get $i) (i32.const 60000000))))
      i64.const {16 << 32 | 2}""", '(data (i32.const 16) "[]")')  # fmt: skip
    run = bench.launch(module(tmp_path / "busy.wasm", busy), GuestLimits(total_cpu=0.2))

    async def forever() -> None:
        await run.turn(None)
        while True:
            await run.turn("[]")

    with pytest.raises(GuestEnded, match=r"total_cpu is 0\.2 s"):
        bench.run(forever())
    assert run.turns >= 1


def test_tenants_of_a_lane_take_turns(tmp_path: Path) -> None:
    """A run of one tenant waits for at most one turn of another, which has six runs that spin."""
    bench = GuestBench(lanes=1)
    spin = module(tmp_path / "spin.wasm", text("i32.const 0", "(loop br 0) i64.const 0"))
    runs = [bench.launch(spin, LIMITS, "ann") for _ in range(6)]
    runs.append(bench.launch(module(tmp_path / "bob.wasm", said("[]")), LIMITS, "bob"))
    order: list[str] = []

    async def turn(run: HostRun) -> None:
        with contextlib.suppress(GuestEnded):
            await run.turn(None)
        order.append(run.tenant)

    async def play() -> None:
        await asyncio.gather(*(turn(run) for run in runs))

    try:
        bench.run(play())
    finally:
        bench.close()
    assert order.index("bob") <= 1
    assert order.count("ann") == 6


def test_a_turn_that_is_cut_counts(bench: GuestBench, tmp_path: Path) -> None:
    spin = module(tmp_path / "spin.wasm", text("i32.const 0", "(loop br 0) i64.const 0"))
    run = bench.launch(spin, LIMITS)
    with pytest.raises(GuestEnded, match="turn_cpu"):
        bench.run(run.turn(None))
    assert (run.turns, run.cpu >= LIMITS.turn_cpu) == (0, True)
    long = bench.launch(module(tmp_path / "long.wasm", said("[" + "{}," * 40 + "{}]")), LIMITS)
    with pytest.raises(GuestEnded, match="calls"):
        bench.run(long.turn(None))
    assert long.cpu > 0


def test_a_turn_counts_whose_run_its_caller_ends(bench: GuestBench, tmp_path: Path) -> None:
    spin = module(tmp_path / "spin.wasm", text("i32.const 0", "(loop br 0) i64.const 0"))
    run, before = bench.launch(spin, GuestLimits(turn_cpu=40)), bench.host.late_cpu

    async def play() -> None:
        turn = asyncio.ensure_future(run.turn(None))
        while run.number not in bench.host.working():
            await asyncio.sleep(0.02)
        bench.host.end(run)
        while bench.host.late_cpu == before:
            await asyncio.sleep(0.02)
        await turn

    with pytest.raises(GuestEnded, match="the run was ended"):
        bench.run(play())


COUNTER = text(
    "i32.const 4096",
    f"""(global.set $n (i32.add (global.get $n) (i32.const 1)))
    (i32.store8 (i32.const 22) (i32.add (i32.const 48) (global.get $n)))
    i64.const {16 << 32 | 9}""",
    '(global $n (mut i32) (i32.const 0)) (data (i32.const 16) "[{\\22n\\22:0}]")',
)


def test_a_killed_host_is_replaced_and_its_runs_go_on(bench: GuestBench, tmp_path: Path) -> None:
    image = module(tmp_path / "counter.wasm", COUNTER)
    runs = [bench.launch(image) for _ in range(5)]
    before = bench.host.restarts

    async def play() -> list[str]:
        for run in runs:
            await run.turn(None)
            await run.turn("[]")
        os.kill(bench.host.pid, signal.SIGKILL)
        return [await run.turn("[]") for run in runs]

    assert bench.run(play()) == ['[{"n":3}]'] * 5
    assert bench.host.restarts == before + 1
    for run in runs:
        bench.host.end(run)


def test_a_run_past_its_log_ends_with_its_host(bench: GuestBench, tmp_path: Path) -> None:
    image = module(tmp_path / "counter.wasm", COUNTER)
    run = bench.launch(image, GuestLimits(log_bytes=3))

    async def play() -> None:
        await run.turn(None)
        await run.turn("[1]")
        await run.turn("[2]")
        os.kill(bench.host.pid, signal.SIGKILL)
        await run.turn("[3]")

    with pytest.raises(GuestEnded, match="more than log_bytes, 3"):
        bench.run(play())


def test_a_run_that_kills_its_host_twice_is_ended(bench: GuestBench, tmp_path: Path) -> None:
    image = module(tmp_path / "spin.wasm", text("i32.const 0", "(loop br 0) i64.const 0"))
    run = bench.launch(image, GuestLimits(turn_cpu=40))

    async def play() -> None:
        turn = asyncio.ensure_future(run.turn(None))
        for _ in range(2):
            before = bench.host.restarts
            while run.number not in bench.host.working():
                await asyncio.sleep(0.02)
            os.kill(bench.host.pid, signal.SIGKILL)
            while bench.host.restarts == before:
                await asyncio.sleep(0.02)
        await turn

    with pytest.raises(GuestEnded, match="died twice while it worked on this program"):
        bench.run(play())


def test_a_spinning_run_is_ended_by_its_caller(bench: GuestBench, tmp_path: Path) -> None:
    image = module(tmp_path / "spin.wasm", text("i32.const 0", "(loop br 0) i64.const 0"))
    runs = [bench.launch(image, GuestLimits(turn_cpu=1000)) for _ in range(4)]  # on two lanes

    async def play() -> None:
        turns = [asyncio.ensure_future(run.turn(None)) for run in runs]
        await asyncio.sleep(0.3)
        for run in runs:
            bench.host.end(run)
        await asyncio.gather(*turns, return_exceptions=True)

    bench.run(play())
    other = bench.launch(module(tmp_path / "other.wasm", said("[]")))
    assert bench.run(other.turn(None)) == "[]"
    bench.host.end(other)


def test_the_newest_run_gives_way_where_memory_is_short(tmp_path: Path) -> None:
    bench = GuestBench(lanes=1, memory=1)  # any host uses more
    image = module(tmp_path / "spin.wasm", text("i32.const 0", "(loop br 0) i64.const 0"))
    found, told = bench.ending(image, GuestLimits(turn_cpu=1000))
    assert (found, "more than 1 bytes" in told) == ("host_memory", True)
    bench.close()


REFUSED: dict[str, tuple[bytes | bytearray, str]] = {
    "nothing": (b"", "begins with nothing"),
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(64), "WebAssembly begins with"),
    "a script": (b"#!/bin/sh\nreboot", "WebAssembly begins with"),
    "a header alone": (b"\0asm\1\0\0\0", "exports no memory"),
    "a truncated module": (wat2wasm("(module (func))")[:-3], "no valid WebAssembly"),
    "noise": (b"\0asm\1\0\0\0" + os.urandom(4096), "no valid WebAssembly"),
    "a module that imports": (
        wat2wasm('(module (import "env" "exit" (func)))'),
        "imports env.exit; it may import nothing",
    ),
    "a module of 64 bits": (
        wat2wasm('(module (memory (export "memory") i64 1))'), "no memory of 32 bits",
    ),
    "another signature": (
        wat2wasm(text("i32.const 0", "i64.const 0").replace("(param i32 i32)", "(param i32)")),
        "turn must take 2 i32 and give one i64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_no_program_is_refused(tmp_path: Path, name: str) -> None:
    data, reason = REFUSED[name]
    path = tmp_path / "upload.wasm"
    path.write_bytes(data)
    with pytest.raises(ProgramRefused, match=reason):
        precompile(path, tmp_path / "upload.cwasm", 10, 2 << 30)
    assert not (tmp_path / "upload.cwasm").exists()


def test_the_example_speaks_of_calls_that_exist() -> None:
    source = EXAMPLE.with_suffix(".wat").read_text().replace("\\22", '"')
    assert json.loads(source.split('0) "')[1].split('")\n')[0])[0]["call"] == "generate"
