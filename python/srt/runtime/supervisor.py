"""Supervisor: one engine, whose process is restarted if it is lost.

serving    an engine runs; periodic pings verify that it still answers
lost       the next engine is being loaded; requests in flight wait for it, and new requests get an
           error with the reason
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

WINDOW = 600.0  # seconds within which --max-engine-restarts are counted
PAUSE = 1.0  # seconds before the second restart of a window, 1 more before each further one
PERIOD = 10.0  # most seconds between two pings
PROBE_SECONDS = 20.0  # the longest wait for a probe's token
# Facts that may differ after a restart; graphs, for example, may not have found memory.
_MAY_CHANGE = ("attention", "graph_rows", "fallbacks")
GRACE = 1.0  # seconds to read an answer that has arrived: this process may have been stopped too


class EngineAbsent(EngineLost):
    """There is no engine at the moment, but one is being started or awaited."""


class AnotherEngine(EngineLost):
    """The engine that was started in place of a lost one differs from it."""


class EngineHandle(Protocol):
    """An engine on this machine (``EngineProcess``) or reached over the network
    (``RemoteEngine``)."""

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
    """Keeps an engine alive. ``client`` is the client of the current engine. While there is no
    engine, it is a client that fails every request with the reason.

    Attributes:
        name: name of the engine.
        restarts: number of engines started after a loss.
        changed: called when the engine is lost, and when there is one again.
        resumed: called when a request continues on the next engine.
        adapters: tells whether an engine has an adapter again.
    """

    may_differ: Sequence[str] = ()  # further facts that may differ after a restart
    _engine: EngineHandle

    def __init__(self, config: Config, tokenizer: Tokenizer, name: str = "0") -> None:
        self._config, self._tokenizer, self.name = config, tokenizer, name
        self._limit = config.operations.max_engine_restarts
        self._times: deque[float] = deque()  # times of the restarts in the window
        self.restarts = 0
        self.changed: Callable[[Supervisor], None] = _nothing
        self.resumed: Callable[[], None] = _nothing_at_all
        self.adapters: AdapterHolders = AllHaveAll()
        self._changed = asyncio.Condition()  # notified of a new engine, and of the end of ``run``
        self._watching, self._over = False, EngineLost("")
        self._nobody: Client | None = None  # answers while there is no engine

    async def start(self, started: Started | None = None) -> None:
        """Wait until the first engine is loaded: ``started``, or a new process if that is None.

        Raises EngineLost or OSError if it cannot be loaded.
        """
        info = await self._load(self._config, started)
        self.client = self._engine.client
        # Later engines must have the same KV capacity, however much memory is free by then.
        memory = replace(self._config.memory, max_total_tokens=info.capacity)
        self._config = replace(self._config, memory=memory)

    async def run(self) -> EngineLost:
        """Restart the engine whenever it is lost. Return the reason why that is over."""
        self._watching = True
        try:
            self._over = await self._run()
        finally:
            self._watching = False
            await self._notify()
        return self._over

    async def reassign(self, request: CompletionRequest, client: Client) -> Assignment:
        """Wait for the engine after ``client``'s, and until that engine has the request's adapter
        or should not have it. Raises EngineLost if no engine comes."""
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
        """Return a text for the log about the ``nth`` restart."""
        return f"starting the engine again ({nth} of {self._limit})"

    async def stop(self) -> None:
        """End the engine, if there is one, with all its processes."""
        if hasattr(self, "_engine"):
            await self._engine.stop()

    def kill(self) -> None:
        """Kill the engine at once. May be called outside the event loop."""
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
        """Let the engine answer a short prompt, unless warm-up is disabled. Raises EngineLost."""
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
            raise AnotherEngine(f"the new engine differs from the lost one: {changed}")
        self.client = self._engine.client
        self.restarts += 1
        self.changed(self)
        await self._notify()

    async def _lost(self) -> EngineLost:
        """Wait until the engine is lost, and return the loss."""
        seconds = self._config.operations.watchdog_timeout
        watch = asyncio.ensure_future(watchdog(self._engine, seconds))
        try:
            return await self._engine.wait_lost()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    def _another(self) -> bool:
        """Whether the engine may be restarted once more; if so, count the restart."""
        now = time.monotonic()
        while self._times and now - self._times[0] > WINDOW:
            self._times.popleft()
        if len(self._times) >= self._limit:
            return False
        self._times.append(now)
        return True

    def _tell(self, lost: EngineLost) -> None:
        """Fail every request with the reason of the loss until there is an engine again."""
        self._nobody = Client(self.info, _refuse)
        self._nobody.fail(EngineAbsent(f"{lost}; it is being started again"))
        self.client = self._nobody
        self.changed(self)


async def probe(completion: Completer) -> None:
    """Generate one token; only compute one if the model cannot generate. Raises EngineLost, also
    if the answer takes longer than ``PROBE_SECONDS``."""
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
    """Kill the engine if it answers no ping for ``seconds`` (0: never). After half of ``seconds``,
    report the silence (``EngineHandle.set_unanswered``). The engine answers between two passes, so
    half of ``seconds`` must be longer than the longest pass."""
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
    """Return a text with the facts that differ between two engines, "" if there are none. Facts of
    ``_MAY_CHANGE`` and ``besides`` are ignored."""
    before, after = msgspec.structs.asdict(old), msgspec.structs.asdict(new)
    same = {*_MAY_CHANGE, *besides}
    changed = (name for name in before if before[name] != after[name] and name not in same)
    return ", ".join(f"{name} is {after[name]}, was {before[name]}" for name in changed)
