"""Components in the sandbox that ask for what it lacks, or take what others need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("wasmtime", reason="the extra [inferlet] is not installed")

from helpers.guest_bench import GuestBench, module
from sglang.srt.inferlet.host.compiling import ProgramRefused
from sglang.srt.inferlet.host.host_messages import MOST_LANES, GuestImage, GuestLimits
from sglang.srt.inferlet.host.host_process import GuestEnded, HostRun

pytestmark = pytest.mark.slow
SMALL = GuestLimits(memory=8 << 20)
ASKED = '[{"call":"receive","id":1}]'


@pytest.fixture(scope="module")
def bench() -> Iterator[GuestBench]:
    made = GuestBench()
    yield made
    made.close()


def component(imports: str, function: str, turn: str) -> str:
    """A component that lowers ``function`` of its imports, and begins each turn by ``turn``, where
    that is ``$f``. Its calls are ``ASKED``."""
    escaped, size = ASKED.replace('"', "\\22"), len(ASKED)
    return f"""(component {imports}
      (core module $libc (memory (export "memory") 1)
        (func (export "realloc") (param i32 i32 i32 i32) (result i32) i32.const 4096))
      (core instance $c (instantiate $libc))
      (alias core export $c "memory" (core memory $memory))
      (alias core export $c "realloc" (core func $realloc))
      (core func $lowered (canon lower (func {function}) (memory $memory)
        (realloc $realloc)))
      (core module $m (import "s" "f" (func $f {turn.partition("|")[0]}))
        (import "c" "memory" (memory 1))
        (data (i32.const 16) "\\20\\00\\00\\00\\{size:02x}\\00\\00\\00")
        (data (i32.const 32) "{escaped}")
        (func $turn (result i32) {turn.partition("|")[2]} i32.const 16)
        (func (export "start") (param i32 i32 i32 i32) (result i32) call $turn)
        (func (export "turn") (param i32 i32) (result i32) call $turn))
      (core instance $s (export "f" (func $lowered)))
      (core instance $i (instantiate $m (with "s" (instance $s)) (with "c" (instance $c))))
      (alias core export $i "start" (core func $start))
      (alias core export $i "turn" (core func $turn))
      (func (export "start") (param "source" string) (param "arguments" string) (result string)
        (canon lift (core func $start) (memory $memory) (realloc $realloc)))
      (func (export "turn") (param "answers" string) (result string)
        (canon lift (core func $turn) (memory $memory) (realloc $realloc))))"""


def wasi(interface: str, more: str, name: str, kind: str) -> str:
    """The import of a function of WASI."""
    return f"""(import "wasi:{interface}@0.2.0" (instance $w {more}
      (export "{name}" {kind}))) (alias export $w "{name}" (func $wasi))"""


RESOURCE = '(export "network" (type $n (sub resource)))'
# A function of WASI, what its lowered form takes and gives, and what the error says.
ASKING = {
    "a network": (
        wasi("sockets/instance-network", RESOURCE, "instance-network", "(func (result (own $n)))"),
        "(result i32)|(drop (call $f))", "wasi:sockets/instance-network",
    ),
    "a TCP socket": (
        wasi("sockets/tcp-create-socket", '(export "tcp-socket" (type $n (sub resource)))',
             "create-tcp-socket", "(func (param \"family\" u8) (result (own $n)))"),
        "(param i32) (result i32)|(drop (call $f (i32.const 0)))", "wasi:sockets/tcp-create-socket",
    ),
    "a name": (
        wasi("sockets/ip-name-lookup", "", "resolve", "(func (result u32))"),
        "(result i32)|(drop (call $f))", "wasi:sockets/ip-name-lookup",
    ),
    "HTTP": (
        wasi("http/outgoing-handler", "", "handle", "(func (result u32))"),
        "(result i32)|(drop (call $f))", "wasi:http/outgoing-handler",
    ),
    "its standard input": (
        wasi("cli/stdin", '(export "input-stream" (type $n (sub resource)))', "get-stdin",
             "(func (result (own $n)))"),
        "(result i32)|(drop (call $f))", "wasi:cli/stdin",
    ),
    "an end of the process": (
        wasi("cli/exit", "", "exit", "(func (param \"code\" u32))"),
        "(param i32)|(call $f (i32.const 0))", "wasi:cli/exit",
    ),
    "an hour of sleep": (
        wasi("clocks/monotonic-clock", "", "subscribe-duration",
             "(func (param \"when\" u64) (result u32))"),
        "(param i64) (result i32)|(drop (call $f (i64.const 3600000000000)))",
        "wasi:clocks/monotonic-clock",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ASKING)
def test_a_component_that_asks_for_more_ends_alone(
    bench: GuestBench, tmp_path: Path, name: str
) -> None:
    imports, turn, interface = ASKING[name]
    beside = bench.launch(waiting(tmp_path))
    bench.run(beside.turn(None))
    found, told = bench.ending(module(tmp_path / "asks.wasm", component(imports, "$wasi", turn)))
    assert (found, interface in told) == ("trap", True), told
    assert bench.run(beside.turn("[]")) == ASKED
    assert bench.host.restarts == 0
    bench.host.end(beside)


def test_a_component_that_imports_something_else_is_refused(tmp_path: Path) -> None:
    imports = '(import "env:socket/open" (func $open (result u32)))'
    with pytest.raises(ProgramRefused, match="the component imports env:socket/open"):
        module(tmp_path / "a.wasm", component(imports, "$open", "(result i32)|(drop (call $f))"))


def waiting(path: Path) -> GuestImage:
    """A component that waits inside of its turn."""
    return module(
        path / "waiting.wasm",
        component(
            '(import "wait" (func $wait (param "calls" string) (result string)))', "$wait",
            f"(param i32 i32 i32)|(call $f (i32.const 32) (i32.const {len(ASKED)}) (i32.const 64))",
        ),
    )  # fmt: skip


def test_a_tenant_that_waits_on_all_threads_gives_one_to_another(tmp_path: Path) -> None:
    bench = GuestBench()
    image = waiting(tmp_path)

    def launch(tenant: str) -> HostRun:
        run = bench.launch(image, SMALL, tenant)
        assert bench.run(run.turn(None)) == ASKED
        return run

    try:
        runs = [launch("ann") for _ in range(MOST_LANES - 2)]  # two threads are shared
        late = bench.launch(image, SMALL, "ann")
        with pytest.raises(GuestEnded, match="128 programs wait inside of their turns already"):
            bench.run(late.turn(None))
        others = [launch("bob") for _ in range(3)]
        for run in runs[-3:]:
            with pytest.raises(GuestEnded, match="most of them by this tenant"):
                bench.run(run.turn("[]"))
        for run in (*runs[:3], runs[-4], *others):
            assert bench.run(run.turn("[]")) == ASKED
        assert bench.host.restarts == 0
    finally:
        bench.close()


def grown(more: str, turn: str) -> str:
    """A module that takes memory in its first turn."""
    return f"""(module (memory (export "memory") 1) {more} (data (i32.const 16) "[]")
      (func (export "alloc") (param i32) (result i32) i32.const 4096)
      (func (export "turn") (param i32 i32) (result i64) {turn} i64.const {16 << 32 | 2}))"""


MEBIBYTE = 1 << 20
MEMORIES = "".join(f"(memory $m{i} 0)" for i in range(7))
FILLED = "".join(
    f"(drop (memory.grow $m{i} (i32.const 120)))"
    f"(memory.fill $m{i} (i32.const 0) (i32.const 1) (i32.const {120 << 16}))"
    for i in range(7)
)
TABLES = "(func $f) (elem declare func $f)" + "".join(f"(table $t{i} 0 funcref)" for i in range(90))
GROWN = "".join(f"(drop (table.grow $t{i} (ref.func $f) (i32.const 131000)))" for i in range(90))
HEAP = """(local $i i32) (local $a (ref null $list)) (loop $l
  (local.set $a (struct.new $list (local.get $a) (i64.const 1))) (br $l))"""
BOMBS = {
    "seven more memories": (grown(MEMORIES, FILLED), "memory count too high"),
    "tables": (grown(TABLES, GROWN), "table count too high"),
    "objects": (
        grown("(type $list (struct (field (ref null $list)) (field i64)))", HEAP), "out of memory",
    ),
    "one allocation": (grown("", "(drop (memory.grow (i32.const 60000)))"), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_memory_bomb_takes_at_most_twice_its_limit(
    bench: GuestBench, tmp_path: Path, name: str
) -> None:
    wat, message = BOMBS[name]
    image = module(tmp_path / f"{name}.wasm", wat)
    host = psutil.Process(bench.host.pid)
    before = host.memory_info().rss
    run = bench.launch(image, SMALL)
    try:
        if message:
            with pytest.raises(GuestEnded, match=message):
                bench.run(run.turn(None))
        else:
            assert bench.run(run.turn(None)) == "[]"
        assert host.memory_info().rss - before <= 2 * SMALL.memory + 4 * MEBIBYTE
    finally:
        bench.host.end(run)
