"""Supervisor: one engine, whose process is started again where it is lost.

serving    an engine runs; a ping now and then shows that it still answers
lost       requests in flight wait for the next engine, which is being loaded; new requests get an
           error that says so
(gone)     lost too often, or the next engine differs from the first: the server ends
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.ints import ints
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.process import EngineProcess, Started
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.serving_engines import (
    AdapterHolders,
    AllHaveAll,
    Assignment,
    OneEngine,
)
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer

log = logging.getLogger("sglang.server")

WINDOW = 600.0  # seconds in which --max-engine-restarts are counted
PAUSE = 1.0  # before each further restart of a window; the first is made at once
PERIOD = 10.0  # most seconds between two pings
PROBE_SECONDS = 20.0  # the longest wait for a probe's token
# How passes are computed; graphs, say, that found no memory this time.
_MAY_CHANGE = ("attention", "graph_rows", "fallbacks")
GRACE = 1.0  # for an answer that is there and not read yet: this process may have been stopped too


class EngineAbsent(EngineLost):
    """There is no engine yet, and one may come."""


class AnotherEngine(EngineLost):
    """The engine that came in place of a lost one differs from it."""


class EngineHandle(Protocol):
    """An engine of this machine (``EngineProcess``) or of another one (``RemoteEngine``)."""

    client: Client

    @property
    def pid(self) -> int: ...
    @property
    def info(self) -> EngineInfo: ...
    @property
    def stage_text(self) -> str: ...
    async def wait_lost(self) -> EngineLost: ...
    async def stop(self) -> None: ...
    def kill(self) -> None: ...
    def lose(self, message: str) -> None: ...
    def set_unanswered(self, seconds: float) -> None: ...


class Supervisor(OneEngine):
    """Keeps an engine alive. Its ``client`` is the engine's of this moment, or one that answers
    with the reason that there is none.

    Attributes:
        name: of the engine.
        restarts: number of engines started after a loss.
        changed: called when the engine is lost, and when there is one again.
        resumed: called when a request goes on with the next engine.
        adapters: knows whether an engine has an adapter again.
    """

    may_differ: Sequence[str] = ()  # facts that another engine in its place need not share
    _engine: EngineHandle

    def __init__(self, config: Config, tokenizer: Tokenizer, name: str = "0") -> None:
        self._config, self._tokenizer, self.name = config, tokenizer, name
        self._limit = config.operations.max_engine_restarts
        self._times: deque[float] = deque()  # times of the restarts in the window
        self.restarts = 0
        self.changed: Callable[[Supervisor], None] = _nothing
        self.resumed: Callable[[], None] = _nothing_at_all
        self.adapters: AdapterHolders = AllHaveAll()
        self._changed = asyncio.Condition()  # another engine, or none any more
        self._watching, self._over = False, EngineLost("")
        self._nobody: Client | None = None  # answers while there is no engine

    async def start(self, started: Started | None = None) -> None:
        """The first engine, loaded: ``started``, or another one.

        Raises EngineLost or OSError where it cannot be.
        """
        info = await self._load(self._config, started)
        self.client = self._engine.client
        # The next one must be like it, however much memory is free by then.
        memory = replace(self._config.memory, max_total_tokens=info.capacity)
        self._config = replace(self._config, memory=memory)

    async def run(self) -> EngineLost:
        """Start the engine again whenever it is lost; returns why that is over."""
        self._watching = True
        try:
            self._over = await self._run()
        finally:
            self._watching = False
            await self._notify()
        return self._over

    async def reassign(self, request: CompletionRequest, client: Client) -> Assignment:
        """Wait for the engine after ``client``'s, until it has the request's adapter, or is not to
        have it. Raises EngineLost where no engine comes."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self.client not in (client, self._nobody) or not self._watching
            )
        if not self._watching:
            raise self._over.again()
        found = self.client
        if request.adapter:
            await self.adapters.restored(found, request.adapter)
        self.resumed()
        return Assignment(found)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _run(self) -> EngineLost:
        lost = await self._lost()
        while self._another():
            nth = len(self._times)
            log.error("%s; %s", lost, self._attempt(nth))
            self._tell(lost)
            await asyncio.sleep(PAUSE * (nth - 1))
            try:
                await self._restart()
            except (EngineLost, OSError) as error:
                lost = EngineLost(f"the engine could not be started again: {error}")
                continue
            log.warning("the engine is back (%d); its cache is empty", self._engine.pid)
            lost = await self._lost()
        return lost

    def _attempt(self, nth: int) -> str:
        """Text for the log about the ``nth`` attempt at another engine."""
        return f"starting the engine again ({nth} of {self._limit})"

    async def stop(self) -> None:
        """End the engine, if there is one. Nothing is left behind."""
        if hasattr(self, "_engine"):
            await self._engine.stop()

    def kill(self) -> None:
        """The same at once, from wherever it is called."""
        if hasattr(self, "_engine"):
            self._engine.kill()

    # -- one engine ------------------------------------------------------------------------------

    async def _load(self, config: Config, started: Started | None = None) -> EngineInfo:
        started = started or Started(config)
        self._engine = engine = EngineProcess(started, self._tokenizer.token_bytes)
        try:
            await engine.ready()
            await self._warm(engine.client)
        except BaseException:
            engine.kill()
            raise
        return engine.info

    async def _warm(self, client: Client) -> None:
        """Have the engine answer a prompt. Raises EngineLost."""
        try:
            if not self._config.server.skip_server_warmup:
                await probe(Completer(client, self._tokenizer))
        except RequestError as error:
            raise EngineLost(f"the engine cannot answer a prompt of one token: {error}") from error

    async def _restart(self) -> None:
        await self._engine.stop()
        info = await self._load(self._config)
        if changed := difference(self.info, info, self.may_differ):
            self._engine.kill()
            raise AnotherEngine(f"it is another one now: {changed}")
        self.client = self._engine.client
        self.restarts += 1
        self.changed(self)
        await self._notify()

    async def _lost(self) -> EngineLost:
        """Returns when the engine is lost."""
        seconds = self._config.operations.watchdog_timeout
        watch = asyncio.ensure_future(watchdog(self._engine, seconds))
        try:
            return await self._engine.wait_lost()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    def _another(self) -> bool:
        """Whether the engine may be started once more; if so it counts."""
        now = time.monotonic()
        while self._times and now - self._times[0] > WINDOW:
            self._times.popleft()
        if len(self._times) >= self._limit:
            return False
        self._times.append(now)
        return True

    def _tell(self, lost: EngineLost) -> None:
        """Answer every request with an error that says what happens, until there is an engine."""
        self._nobody = Client(self.info, _refuse)
        self._nobody.fail(EngineAbsent(f"{lost}; it is being started again"))
        self.client = self._nobody
        self.changed(self)


async def probe(completion: Completer) -> None:
    """Generate one token, or compute one where the model generates none. Raises EngineLost, also
    where it does not come in ``PROBE_SECONDS``."""
    start = completion.tokenizer.bos_id or 0
    new = 1 if completion.info.purpose == "generate" else 0
    sampling = SamplingParams(max_new_tokens=new, temperature=0.0, ignore_eos=True)
    try:
        await asyncio.wait_for(
            completion.generate(CompletionRequest(ints([start]), sampling)), PROBE_SECONDS
        )
    except asyncio.TimeoutError as error:
        raise EngineLost(f"no token in {PROBE_SECONDS:.0f} s") from error


async def watchdog(engine: EngineHandle, seconds: float) -> None:
    """Kill the engine where it answers no ping for ``seconds`` (0: never), and say so at half of
    them (``EngineProcess.set_unanswered``). It answers between two passes, so half of ``seconds``
    must be longer than the longest pass."""
    while seconds:
        await asyncio.sleep(min(PERIOD, seconds / 4))
        ping = asyncio.ensure_future(engine.client.control("ping"))
        try:
            for half in (seconds / 2, seconds):
                for limit in (seconds / 2, GRACE):
                    if not ping.done():
                        await asyncio.wait([ping], timeout=limit)
                engine.set_unanswered(0 if ping.done() else half)
            if not ping.done():
                stage = engine.stage_text
                engine.lose(f"the engine process did not answer for {seconds:g} s; {stage}")
        finally:
            ping.cancel()
            await asyncio.gather(ping, return_exceptions=True)


def _nothing(supervisor: Supervisor) -> None:
    pass


def _nothing_at_all() -> None:
    pass


def _refuse(verbs: Sequence[object]) -> None:
    raise AssertionError("a lost client sends nothing")


def difference(old: EngineInfo, new: EngineInfo, besides: Sequence[str] = ()) -> str:
    """The facts that differ, of those that requests depend on, ``besides`` left out."""
    before, after = msgspec.structs.asdict(old), msgspec.structs.asdict(new)
    same = {*_MAY_CHANGE, *besides}
    changed = (name for name in before if before[name] != after[name] and name not in same)
    return ", ".join(f"{name} is {after[name]}, was {before[name]}" for name in changed)
