"""A run: a server, its customers, what kills its engine, and the accounts."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import IO
from urllib.parse import urlsplit

import httpx
import psutil
from helpers.launched import Server, best_model, gone, launched
from helpers.matrix import FAULTS, MIB, Bench

from soak.customer import HANGS, LET_GO, Books, Customer, Faults, Violation
from soak.errands import DOOMED, ERRANDS, TOP, Golden
from soak.goldens import GOLDENS

TENANTS = [
    {"name": "a", "key": "key-a"},
    {"name": "few", "key": "key-few", "max_concurrent_requests": 3},
    {"name": "slow", "key": "key-slow", "requests_per_minute": 120, "tokens_per_minute": 30000},
    {"name": "b", "key": "key-b", "shared_cache": True, "priority": 2},
    {"name": "c", "key": "key-c", "shared_cache": True},
    {"name": "doomed", "key": DOOMED},
]
KEYS = ["key-a", "key-few", "key-slow", "key-b", "key-c"]
FLAGS = [
    "--max-total-tokens", "2048", "--max-running-requests", "12", "--max-queued-requests", "24",
    "--max-engine-restarts", "10000", "--max-body-bytes", str(1 << 18), "--admin-api-key", TOP,
    "--stream-write-timeout", str(LET_GO), "--response-store-bytes", str(4 << 20),
]  # fmt: skip
# KV in host memory, for odd seeds.
TIERS = ((), ("--enable-hierarchical-cache", "--hicache-ratio", "4"))
TOLD = (
    "num_requests", "num_aborted_requests", "num_failed_requests", "generation_tokens",
    "evicted_tokens", "stored_tokens", "loaded_tokens", "num_retractions", "grammar_compilations",
    "engine_restarts",
)  # fmt: skip
GROWTH = 24 * MIB  # growth of the server from the middle third of its quiet moments to the last
TELL = 10.0  # seconds between two lines


@dataclass(frozen=True)
class Pace:
    """Duration, concurrent clients, seconds between two accounts, and the mean from an engine's
    start to its end."""

    seconds: float
    workers: int
    quiet: float
    kill: float


class Listening(Bench):
    """A bench that reads the server's log all the time, as its operator does."""

    def __init__(self, server: Server, headers: dict[str, str]) -> None:
        super().__init__(server, headers)
        os.set_blocking(self._log, True)
        self._lines: list[str] = []
        threading.Thread(target=self._listen, args=(server.process.stderr,), daemon=True).start()

    def _listen(self, stream: IO[str]) -> None:
        with suppress(ValueError):  # closed
            for line in stream:
                self._lines.append(line)

    def log(self) -> str:
        lines, self._lines = self._lines, []
        return "".join(lines)


class Run:
    """One soak.

    Attributes:
        books: what was sent, and how it ended.
        kills: what was killed or stopped, and how often.
        memory: of the server, of the engine, at each quiet moment, in bytes.
        metrics: the server's own counts at the last of them.
    """

    def __init__(self, server: Server, pace: Pace, seed: int, tell: Callable[[str], None]) -> None:
        self.bench = Listening(server, {"x-api-key": TOP})
        self.books, self.faults, self.golden = Books(), Faults(), Golden()
        self.kills: dict[str, int] = {}
        self.memory: list[tuple[int, int]] = []
        self.metrics: dict[str, float] = {}
        self.violations: list[str] = []
        self._server, self._pace, self._seed, self._tell = server, pace, seed, tell
        self._port = urlsplit(server.url).port or 0
        self._began = time.monotonic()
        self._open, self._over = asyncio.Event(), asyncio.Event()
        self._whole = asyncio.Lock()  # held by errands that need an engine that stays
        self._busy, self._idle, self._counted = 0, asyncio.Event(), 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    async def run(self) -> None:
        """Run the soak. Violations of its requirements go to ``violations``."""
        seconds = self._pace.seconds
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._first()
            self._began = time.monotonic()
            self._open.set()
            tasks = [asyncio.create_task(self._work(i)) for i in range(self._pace.workers)]
            others = [self._kill(self._pace.kill), self._lines()]
            tasks += [asyncio.create_task(other) for other in others]
            while (self.seconds < seconds or not self.kills) and not self._over.is_set():
                await self._sleep(min(self._pace.quiet, max(1.0, seconds - self.seconds)))
                await self._quiet()
            if not self._over.is_set():
                await self._end()
        except Violation as error:
            self._violated(error)
        finally:
            self._over.set()
            self._open.set()
            for found in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(found, Exception):
                    self._violated(found)

    # -- parts of a run ---------------------------------------------------------------------------

    async def _first(self) -> None:
        """The golden answers, and each errand once: what is made on first use is there."""
        customer = self._customer("first")
        customer.key = KEYS[0]
        for _ in range(2):
            for which in range(len(GOLDENS)):
                await self.golden.one(customer, which)
        assert None not in self.golden.expected

        async def everything(number: int) -> None:
            other = self._customer(f"first {number}")
            for errand in ERRANDS:
                other.change()
                await errand(other)

        await asyncio.gather(*map(everything, range(6)))
        self.bench.sent += self.books.counted
        self._counted = self.books.counted
        await asyncio.to_thread(self.bench.settle)
        self._sample()

    async def _work(self, number: int) -> None:
        customer = self._customer(number)
        errands: list[Callable[[Customer], object]] = [self.golden, *ERRANDS]
        weights = [12, *ERRANDS.values()]
        while not self._over.is_set():
            await self._open.wait()
            customer.change()
            (errand,) = customer.random.choices(errands, weights)
            name = getattr(errand, "__name__", "golden")
            self._busy += 1
            self._idle.clear()
            try:
                await errand(customer)  # type: ignore[misc]
                self.books.errands[name] += 1
            except Violation as error:
                self._violated(error)
                return
            finally:
                self._busy -= 1
                if not self._busy:
                    self._idle.set()

    async def _kill(self, mean: float) -> None:
        """Kill or stop the engine, or one of the processes that compile its constraints."""
        chance = random.Random(f"{self._seed}/kills")
        victims = ["engine killed"] * 4 + ["engine stopped"] * 2
        victims += ["compiler killed", "compiler stopped"]
        while not self._over.is_set():
            await self._sleep(min(4 * mean, max(mean / 3, chance.expovariate(1 / mean))))
            async with self._whole:
                if self._over.is_set():
                    return
                what = chance.choice(victims) if self.kills else "engine killed"
                with suppress(psutil.NoSuchProcess):
                    await self._hit(what, chance)

    async def _hit(self, what: str, chance: random.Random) -> None:
        process = self._server.engine()
        if what.startswith("compiler"):
            compilers = process.children()
            if not compilers:
                return
            process = chance.choice(compilers)
        window = [time.monotonic(), float("inf")]
        if what.startswith("engine"):
            self.faults.windows.append(window)
        process.send_signal(signal.SIGKILL if what.endswith("killed") else signal.SIGSTOP)
        self.kills[what] = self.kills.get(what, 0) + 1
        if what.startswith("engine"):
            await self._until(lambda: process not in self.bench.process.children())
            probe = self._customer("health")
            while not self._over.is_set() and await probe.ask("/health", key=TOP) is None:
                pass
            window[1] = time.monotonic()

    async def _quiet(self) -> None:
        """Send no requests for a moment, and check that the accounts are exact."""
        async with self._whole:
            self._open.clear()
            if self._busy:
                await self._idle.wait()
            if self._over.is_set():
                return
            self.bench.sent += self.books.counted - self._counted
            self._counted = self.books.counted
            try:
                await asyncio.to_thread(self._verify)
            except AssertionError as error:
                raise Violation(f"at rest: {error}") from error
            self._sample()
            if not self._over.is_set():
                self._open.set()

    def _verify(self) -> None:
        with self.bench.row():
            assert self.books.sent == self.books.ways.total(), "a request has no end"

    async def _end(self) -> None:
        """SIGTERM in the middle of everything: requests in flight finish, nothing is left."""
        await self._sleep(1.0)
        family = psutil.Process(self._server.process.pid).children(recursive=True)
        self.faults.drained = time.monotonic()
        self._over.set()
        self._server.process.terminate()
        await self._until(self._gone)
        if self._server.process.returncode:
            raise Violation(f"the server ends with {self._server.process.returncode}")
        await asyncio.to_thread(gone, family)
        if FAULTS.search(log := self.bench.log()):
            raise Violation(f"at the end: {log}")

    # -- helpers ----------------------------------------------------------------------------------

    def _customer(self, number: int | str) -> Customer:
        chance = random.Random(f"{self._seed}/{number}")
        return Customer(self._port, chance, KEYS, self.faults, self.books)

    def _violated(self, error: Exception) -> None:
        text = str(error) if isinstance(error, Violation) else repr(error)
        self.violations.append(f"{self.seconds:.1f} s: {text}")
        self._tell(f"VIOLATION after {self.violations[-1]}")
        self._over.set()
        self._open.set()

    async def _sleep(self, seconds: float) -> None:
        """Less where the run is over."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._over.is_set():
            await asyncio.sleep(min(0.2, seconds))

    async def _until(self, true: Callable[[], bool]) -> None:
        """Raises Violation where it takes as long as nothing may."""
        limit = time.monotonic() + HANGS
        while not true() and not self._gone():
            if time.monotonic() > limit:
                raise Violation("the server does nothing any more")
            await asyncio.sleep(0.02)

    def _gone(self) -> bool:
        return self._server.process.poll() is not None

    def _sample(self) -> None:
        engine = self._server.engine().memory_info().rss
        self.memory.append((self.bench.process.memory_info().rss, engine))
        text = httpx.get(f"{self._server.url}/metrics", headers={"x-api-key": TOP}, timeout=60).text
        self.bench.sent += 1
        found = re.findall(r"^sglang:(\w+)_total\S* (\S+)$", text, re.MULTILINE)
        self.metrics = {name: float(count) for name, count in found if name in TOLD}

    async def _lines(self) -> None:
        while not self._over.is_set():
            await self._sleep(TELL)
            self._tell(f"{self.seconds:6.0f} s  {self.line()}")

    def line(self) -> str:
        ways = ", ".join(f"{count} {way}" for way, count in sorted(self.books.ways.items()))
        kills = ", ".join(f"{count} {what}" for what, count in sorted(self.kills.items()))
        return f"{self.books.sent} sent: {ways}; {kills or 'no kills'}; {self._sizes()}"

    def _sizes(self) -> str:
        """Sizes of the processes, now."""
        with suppress(psutil.Error, ValueError):
            server, engine = self.bench.process.memory_info(), self._server.engine().memory_info()
            return f"server {server.rss / MIB:.0f} MiB, engine {engine.rss / MIB:.0f} MiB"
        return "no engine"

    def grown(self) -> int:
        """Bytes that the server has grown by from the middle third of its quiet moments to the
        last; 0 where they are few."""
        sizes = [server for server, _ in self.memory]
        third = len(sizes) // 3
        return int(median(sizes[-third:]) - median(sizes[third:-third])) if third >= 3 else 0


@contextmanager
def served(seed: int) -> Iterator[Server]:
    """A server as users start it, whose temporary files are looked at in the end."""
    with TemporaryDirectory() as directory:
        keys, temporary = Path(directory) / "keys.json", Path(directory) / "tmp"
        keys.write_text(json.dumps(TENANTS), encoding="utf-8")
        temporary.mkdir()
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = str(temporary)
        try:
            model = best_model(Path(directory) / "model")
            flags = [*FLAGS, *TIERS[seed % len(TIERS)], "--api-keys-file", str(keys)]
            with launched([*model, *flags]) as server:
                yield server
        finally:
            os.environ.pop("TMPDIR") if before is None else os.environ.update(TMPDIR=before)


def soak(pace: Pace, seed: int, tell: Callable[[str], None]) -> Run:
    """A whole run; what it found is in its ``violations``."""
    with served(seed) as server:
        run = Run(server, pace, seed, tell)
        asyncio.run(run.run())
        left = [path.name for path in Path(os.environ["TMPDIR"]).glob("sglang-*")]
    if left and not run.violations:
        run.violations.append(f"at the end: {left} are left")
    if run.grown() > GROWTH:
        run.violations.append(f"the server has grown by {run.grown() / MIB:.0f} MiB at the last")
    return run
