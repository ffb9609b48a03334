"""Claims about the sandbox of inferlets, on a server as users start it:

  launch      from the request to the program's first message, the median of launches one after the
              other: a program in Python at most 5 ms, warm and cold, one that uses the library of
              inferlets 9 ms, a core module 1 ms (Pie: 10 to 50 and 35 to 81 ms)
  at once     896 launches together: the last message of core modules after 300 ms, of programs in
              Python after 4 s, and none fails
  turn        processor time of the sandbox for a turn: Python 120 us, a core module 40 us
  call        a call that the server answers by itself takes 30 us more with 895 idle programs
  idle        1,000 idle programs in Python take 1.8 GiB and no thread

    python -m benchmark.inferlets.sandbox [--rounds 50] [--programs 896] [--json FILE]

A missed claim is printed, and the exit code is 1.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil

from benchmark.harness.command import command_parser
from benchmark.harness.machine import machine
from benchmark.harness.records import append
from benchmark.harness.server import Server

IDLE = 1000
CONNECTIONS = 256
SECONDS = 120.0
PLAIN = """
async def main(ctx):
    ctx.send("ready")
    await ctx.receive()
"""
WITH_LIBRARY = "from sglang.inferlet import Context\n" + PLAIN
JAVASCRIPT = """
async function main(ctx) {
  ctx.send("ready");
  await ctx.receive();
}
"""
TURNS = """
async def main(ctx):
    ctx.send("ready")
    while True:
        count = int(await ctx.receive())
        for _ in range(count):
            await ctx.now()
        ctx.send("done")
"""
# Sends "ready", then waits for a text; each one is answered by COUNT calls of `now`.
MODULE = """
(module
  (memory (export "memory") 1)
  (global $left (mut i32) (i32.const 0))
  (func (export "alloc") (param $size i32) (result i32) (i32.const 4096))
  (func (export "turn") (param $at i32) (param $size i32) (result i64)
    (if (i32.eq (i32.load8_u (local.get $at)) (i32.const 123))  ;; the facts of the run
      (then (return (i64.const READY))))
    (global.set $left (select
      (i32.sub (global.get $left) (i32.const 1)) (i32.const COUNT) (global.get $left)))
    (select (i64.const ASKED) (i64.const DONE) (global.get $left)))
  TEXTS)
"""
ID, CALL = "id", "call"
TEXTS: dict[str, list[dict[str, Any]]] = {
    "READY": [{CALL: "send", ID: 1, "message": "ready"}, {CALL: "receive", ID: 2}],
    "ASKED": [{CALL: "now", ID: 3}],
    "DONE": [{CALL: "send", ID: 4, "message": "done"}, {CALL: "receive", ID: 2}],
}


@dataclass
class Figures:
    """Rows of the report, and the claims that were missed."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, what: str, value: float, unit: str, most: float | None = None) -> None:
        """A figure, and the most that it may be."""
        missed = most is not None and value > most
        self.rows.append(
            {"what": what, "value": value, "unit": unit, "most": most, "missed": missed}
        )
        claim = "" if most is None else f"  (at most {most:g}{', MISSED' if missed else ''})"
        print(f"{what:52} {value:9.3g} {unit}{claim}", flush=True)

    @property
    def missed(self) -> bool:
        return any(row["missed"] for row in self.rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every claim holds."""
    parser = command_parser("benchmark.inferlets.sandbox", __doc__, None)
    parser.add_argument("--rounds", type=int, default=50, help="launches one after the other")
    parser.add_argument("--programs", type=int, default=896, help="launches at once")
    parser.add_argument("--turns", type=int, default=1000, help="turns whose time is measured")
    parser.add_argument("--json", default="", metavar="FILE", help="append the figures to it")
    given = parser.parse_args(arguments)
    figures = Figures()
    most = str(max(given.programs, IDLE) + 100)
    with tempfile.TemporaryDirectory(prefix="sandbox-") as folder:
        server = Server(
            [sys.executable, "-m", "sglang.launch_server", "--port", "{port}",
             "--enable-inferlets", "--max-total-tokens", "16384", "--inferlet-max-runs", most,
             "--inferlet-memory", "64"],
            Path(folder) / "log",
        )  # fmt: skip
        try:
            server.ready(SECONDS)
            asyncio.run(_Measuring(server, figures, given.turns).all(given.rounds, given.programs))
        finally:
            server.close()
    if given.json:
        about = machine()
        append(given.json, *({**row, "machine": about} for row in figures.rows))
    return 1 if figures.missed else 0


def has_javascript() -> bool:
    """Whether the runner of JavaScript is built (``sglang inferlet runner``)."""
    from sglang.srt.inferlet.host.javascript_build import JAVASCRIPT as recipe
    from sglang.srt.inferlet.host.runner_build import prebuilt

    return prebuilt(recipe=recipe) is not None


class _Measuring:
    """The figures of one server."""

    def __init__(self, server: Server, figures: Figures, turns: int) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=CONNECTIONS)
        self._http = httpx.AsyncClient(base_url=server.url, limits=limits, timeout=SECONDS)
        self._figures, self._turns, self._pid = figures, turns, server.pid

    async def all(self, rounds: int, programs: int) -> None:
        """Measure everything."""
        kinds = {
            "Python": (await self._put(PLAIN), 5.0),
            "Python with the library": (await self._put(WITH_LIBRARY), 9.0),
            "core module": (await self._module(), 1.0),
        }
        if await asyncio.to_thread(has_javascript):
            kinds["JavaScript"] = (await self._put(JAVASCRIPT, "javascript"), 5.0)
        for name, (program, most) in kinds.items():
            await self._launches(f"launch, {name}", [program] * (rounds + 3), most)
        fresh = [await self._put(f"# {number}\n{PLAIN}") for number in range(rounds + 3)]
        await self._launches("launch, Python, cold: a program of its own each", fresh, 5.0)
        await self._at_once("Python", kinds["Python"][0], programs, 4.0)
        await self._at_once("core module", kinds["core module"][0], programs, 0.3)
        python = await self._turn("Python", await self._put(TURNS), 120.0)
        await self._turn("core module", kinds["core module"][0], 40.0)
        await self._idle(kinds["Python"][0], python)

    # -- programs --------------------------------------------------------------------------------

    async def _put(self, source: str, field: str = "source") -> str:
        reply = await self._http.post("/v1/inferlets", json={field: source})
        return str(reply.raise_for_status().json()["id"])

    async def _module(self) -> str:
        from wasmtime import wat2wasm

        text, parts = MODULE.replace("COUNT", str(self._turns)), ""
        for number, (name, calls) in enumerate(TEXTS.items()):
            written, at = json.dumps(calls).encode(), 256 * number
            text = text.replace(name, str(at << 32 | len(written)))
            escaped = "".join(f"\\{byte:02x}" for byte in written)
            parts += f'(data (i32.const {at}) "{escaped}")'
        text = text.replace("TEXTS", parts)
        data = base64.b64encode(bytes(wat2wasm(text))).decode()
        reply = await self._http.post("/v1/inferlets", json={"wasm": data})
        return str(reply.raise_for_status().json()["id"])

    async def _ready(self, program: str) -> str:
        """Launch a program; its run, once its first message has come."""
        body = {"arguments": [], "stream": True, "turn_cpu": 10}
        path, run = f"/v1/inferlets/{program}/runs", ""
        async with self._http.stream("POST", path, json=body) as reply:
            if reply.status_code != httpx.codes.OK:
                raise OSError((await reply.aread()).decode())
            async for line in reply.aiter_lines():
                if line.startswith("data: "):
                    event = json.loads(line[6:])
                    run = event.get("run", run)
                    if event["type"] == "message":
                        return str(run)
        raise OSError(f"run {run} ended without a message")

    async def _end(self, runs: Sequence[str]) -> None:
        for run in runs:
            (await self._http.delete(f"/v1/runs/{run}")).raise_for_status()

    # -- figures ---------------------------------------------------------------------------------

    async def _launches(self, what: str, programs: Sequence[str], most: float) -> None:
        """The first three warm up."""
        times = []
        for program in programs:
            began = time.perf_counter()
            run = await self._ready(program)
            times.append(1000 * (time.perf_counter() - began))
            await self._end([run])
        times = sorted(times[3:])
        self._figures.add(f"{what}, p50", median(times), "ms", most)
        self._figures.add(f"{what}, p99", times[int(0.99 * len(times))], "ms")

    async def _at_once(self, what: str, program: str, count: int, most: float) -> None:
        began = time.perf_counter()

        async def launch() -> tuple[str, float]:
            run = await self._ready(program)
            return run, time.perf_counter() - began

        found = await asyncio.gather(*(launch() for _ in range(count)))
        times = sorted(seconds for _, seconds in found)
        self._figures.add(f"{count} at once, {what}, p50", median(times), "s")
        self._figures.add(f"{count} at once, {what}, p99", times[int(0.99 * count)], "s", most)
        await self._end([run for run, _ in found])

    async def _turn(self, what: str, program: str, most: float) -> str:
        """Microseconds of processor time of a turn; the program, for more."""
        run = await self._ready(program)
        await self._calls(run)  # warms up
        before = self._host.cpu_times()
        seconds = await self._calls(run)
        after = self._host.cpu_times()
        spent = after.user + after.system - before.user - before.system
        self._figures.add(f"turn, {what}, processor of the sandbox",
                          1e6 * spent / self._turns, "us", most)  # fmt: skip
        self._figures.add(f"call and turn, {what}, by the clock", 1e6 * seconds / self._turns, "us")
        await self._end([run])
        return program

    async def _calls(self, run: str) -> float:
        """Seconds of so many calls, each in a turn of its own."""
        events = (await self._http.get(f"/v1/runs/{run}")).json()["events"]
        began = time.perf_counter()
        reply = await self._http.post(f"/v1/runs/{run}/messages", json={"text": str(self._turns)})
        reply.raise_for_status()
        path = f"/v1/runs/{run}?stream=true&starting_after={events - 1}"
        async with self._http.stream("GET", path) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data: ") and json.loads(line[6:])["type"] == "message":
                    return time.perf_counter() - began
        raise OSError(f"run {run} ended among its calls")

    async def _idle(self, idle: str, program: str) -> None:
        host = self._host
        size, threads = host.memory_full_info().pss, host.num_threads()
        run = await self._ready(program)
        await self._calls(run)
        alone = min([await self._calls(run) for _ in range(3)])
        runs = [await self._ready(idle) for _ in range(IDLE - 1)]
        self._figures.add(f"idle, {IDLE} of Python, memory",
                          (host.memory_full_info().pss - size) / 2**30, "GiB", 1.8)  # fmt: skip
        self._figures.add(f"idle, {IDLE} of Python, more threads",
                          host.num_threads() - threads, "", 0)  # fmt: skip
        beside = min([await self._calls(run) for _ in range(3)])
        self._figures.add(f"call, with {IDLE - 1} idle, more than without",
                          1e6 * (beside - alone) / self._turns, "us", 30.0)  # fmt: skip
        await self._end([run, *runs])
        await asyncio.sleep(2)
        self._figures.add("idle, after all have ended, memory",
                          (host.memory_full_info().pss - size) / 2**30, "GiB")  # fmt: skip

    @property
    def _host(self) -> psutil.Process:
        """The sandbox's process."""
        for child in psutil.Process(self._pid).children(recursive=True):
            if any("host_child" in word for word in child.cmdline()):
                return child
        raise OSError("the server has no sandbox")


if __name__ == "__main__":
    raise SystemExit(main())
