"""Launched: a server started for the measurement, as its users start it, and watched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
from sglang.srt.commands.bench.result import BenchCall, Result
from sglang.srt.commands.bench.server_target import Asking, Endpoint
from sglang.srt.commands.bench.target import Target

from benchmark.peers.child import ROOT

PYTHON = str(ROOT / "python")
READY_SECONDS = 300.0
SAMPLE_SECONDS = 0.05
_READY = re.compile(r"sglang serving \S+ at (http://\S+) ")


@dataclass
class Cost:
    """Cost of one process: CPU seconds so far; resident bytes now, and the most that were seen."""

    cpu: float = 0.0
    resident: int = 0
    peak: int = 0


async def launch(name: str, flags: Sequence[str], tree: str = PYTHON) -> tuple[Process, str]:
    """Start ``sglang.launch_server`` on a free port, from a ``PYTHONPATH``. It ends with this
    process at the latest. Returns it and its URL, ready; raises OSError where it does not start."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sglang.launch_server", "--port", "0",
        "--exit-with-parent", str(os.getpid()), *flags,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": tree},
    )  # fmt: skip
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), READY_SECONDS)
    found = _READY.match(line.decode())
    if found is None:
        raise OSError(f"{name} did not start; it said {line!r}")
    return process, found[1]


async def end(process: Process | None) -> None:
    """End a server that was launched, if it was and still runs."""
    if process is not None and process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except asyncio.TimeoutError:
            process.kill()
            await process.wait()


class Launched(Target):
    """``arguments`` are those of ``sglang.launch_server``. The costs are of the server process and
    of its engine, each without the other.

    ``floor``: CPU seconds a token of a server that only writes, where that was measured.
    """

    def __init__(self, arguments: list[str], protocol: str, asking: Asking) -> None:
        self.name = f"server, {protocol}"
        self._arguments, self._protocol, self._asking = arguments, protocol, asking
        self._process: Process | None = None
        self._endpoint: Endpoint | None = None
        self._watch: asyncio.Task[None] | None = None
        self.server, self.engine = Cost(), Cost()
        self.floor: float | None = None

    async def start(self) -> None:
        """Start the server and watch its processor time. Raises OSError where it does not start."""
        self._process, url = await launch("the server", self._arguments)
        self._endpoint = Endpoint(self._protocol, url, self._asking)
        await self._endpoint.start()
        self._watch = asyncio.create_task(self._sample())

    async def _sample(self) -> None:
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        processes = [(server, self.server), (server.children()[0], self.engine)]
        while True:
            for process, cost in processes:
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    cost.cpu = times.user + times.system
                    cost.resident = process.memory_info().rss
                    cost.peak = max(cost.peak, cost.resident)
            await asyncio.sleep(SAMPLE_SECONDS)

    async def answer(self, call: BenchCall, result: Result) -> None:
        assert self._endpoint is not None
        await self._endpoint.answer(call, result)

    async def flush(self) -> None:
        assert self._endpoint is not None
        await self._endpoint.flush()

    async def counters(self) -> dict[str, float]:
        """The engine's, and what the processes have cost so far: CPU, and the most memory."""
        assert self._endpoint is not None
        await asyncio.sleep(2 * SAMPLE_SECONDS)
        costs = {
            "server_cpu_seconds": self.server.cpu,
            "engine_cpu_seconds": self.engine.cpu,
            "server_grown_bytes": self.server.peak,
        }
        return {**await self._endpoint.counters(), **costs}

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._endpoint is not None:
            await self._endpoint.close()
        await end(self._process)
