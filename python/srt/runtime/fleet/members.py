"""Members: the engines of a fleet, each kept alive by its supervisor.

(absent)    nothing answers at the engine's address yet
serving     the engine takes requests
lost        the engine is being restarted
leaving     the engine takes no new requests; unfinished ones later continue on other engines
(gone)      the engine has left, or was lost too often
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec
from sglang.srt.core.clock import Clock
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.process import Started
from sglang.srt.requests.completion.serving_engines import EngineLeft
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.supervisor import EngineAbsent, Supervisor, difference

log = logging.getLogger("sglang.server")
LOOK_SECONDS = 0.05  # period at which the pending requests of a leaving engine are checked
ABSENT_SECONDS = 2.0  # seconds between two attempts to reach an absent engine


class Members:
    """Engines by name.

    Attributes:
        engines: all engines but absent and gone ones.
        changed: called with an engine that was lost, was restarted, or joins.
        gone: called once or twice with the name of an engine that is gone for good.
    """

    def __init__(self, engines: Sequence[Supervisor]) -> None:
        self.engines = {engine.name: engine for engine in engines}
        self.changed: Callable[[Supervisor], None] = _ignore
        self.gone: Callable[[str], None] = _ignore
        self._absent: list[Supervisor] = []
        self._info: EngineInfo | None = None
        self._leaving: set[str] = set()
        self._kept: dict[str, asyncio.Task[None]] = {}
        self._over: asyncio.Future[EngineLost] | None = None
        self._news = asyncio.Event()

    @property
    def leaving(self) -> frozenset[str]:
        return frozenset(self._leaving)

    @property
    def clients(self) -> dict[str, Client]:
        """Clients of the engines that answer, by name; leaving engines included."""
        return {
            name: engine.client
            for name, engine in self.engines.items()
            if engine.client.lost is None
        }

    def serving(self, but: Client | None = None) -> list[str]:
        """Return the names of the engines that take requests, except the engine of ``but``."""
        return [
            name
            for name, client in self.clients.items()
            if name not in self._leaving and client is not but
        ]

    @property
    def lost(self) -> EngineLost | None:
        """Reason for which no engine answers; None while an engine does."""
        if self.clients:
            return None
        lost = (engine.client.lost for engine in self.engines.values())
        return next(filter(None, lost), EngineLost("there is no engine"))

    @property
    def info(self) -> EngineInfo:
        """Facts of the first engine, with the smallest KV capacity of all engines."""
        if self._info is None:
            infos = [engine.info for engine in self.engines.values()]
            capacity = min(info.capacity for info in infos)
            self._info = msgspec.structs.replace(infos[0], capacity=capacity)
        return self._info

    async def start(self, started: Mapping[str, Started]) -> None:
        """Load all engines concurrently; absent ones join later. Raises OSError, and EngineLost if
        an engine differs from the others, or if all are absent."""
        loads = [
            asyncio.ensure_future(self._load(engine, started.get(name)))
            for name, engine in self.engines.items()
        ]
        try:
            await asyncio.gather(*loads)
        finally:  # the first error ends the others
            for load in loads:
                load.cancel()
            await asyncio.gather(*loads, return_exceptions=True)
        for other in self.engines.values():
            if changed := self._unlike(other):
                raise EngineLost(f"engine {other.name} is not like the others: {changed}")

    async def _load(self, engine: Supervisor, started: Started | None) -> None:
        """Start an engine, or list it as absent. Raises EngineLost and OSError."""
        try:
            await engine.start(started)
        except EngineAbsent as error:
            del self.engines[engine.name]
            if not self.engines:
                raise
            log.warning("%s; the engine joins the fleet once it answers", error)
            self._absent.append(engine)

    def _unlike(self, engine: Supervisor) -> str:
        """Return a text with the facts in which an engine differs from the first one, "" if there
        are none."""
        first = next(iter(self.engines.values()))
        return difference(first.info, engine.info, ("capacity",))

    async def run(self) -> EngineLost:
        """Keep every engine alive. Return the reason why the last one was given up."""
        self._over = asyncio.get_running_loop().create_future()
        for engine in list(self.engines.values()):
            self._keep(engine)
        coming = [asyncio.create_task(self._come(engine)) for engine in self._absent]
        try:
            return await self._over
        finally:
            tasks = [*self._kept.values(), *coming]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tell()

    async def wait(self) -> None:
        """Wait until the state of any engine changes. Raises EngineLost if all were given up."""
        if self._over is None or self._over.cancelled():
            raise EngineLost("the server is ending, and no engine will be restarted")
        if self._over.done():
            raise self._over.result().again()
        await self._news.wait()

    def join(self, engine: Supervisor) -> None:
        """Add an engine that has been started. Raises RequestError if it differs from the
        others."""
        if engine.name in self.engines:
            raise RequestError(f"There is an engine {engine.name!r} already.", "url")
        if changed := self._unlike(engine):
            raise RequestError(f"The engine is not like the others: {changed}.", "url")
        self.engines[engine.name], self._info = engine, None
        self.changed(engine)
        self._keep(engine)
        self._tell()

    async def leave(self, name: str, seconds: float, clock: Clock) -> int:
        """Send an engine no more requests, wait at most ``seconds`` until its requests finish, and
        end it. Return the number of unfinished requests, which continue on other engines. Raises
        RequestError if there is no such engine, or no other engine."""
        if name not in self.engines or name in self._leaving:
            known = ", ".join(self.serving()) or "none"
            raise RequestError(
                f"There is no engine {name!r}; there are: {known}.", "name", "not_found"
            )
        kept = self.engines if self._over is None else self._kept
        if not [other for other in kept if other != name and other not in self._leaving]:
            raise RequestError(f"Engine {name!r} is the only one; add another first.", "name")
        engine, until = self.engines[name], clock.now() + seconds
        self._leaving.add(name)
        try:
            if task := self._kept.pop(name, None):
                task.cancel()  # so that the engine is not restarted
            self.gone(name)
            while engine.client.pending and engine.client.lost is None and clock.now() < until:
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            moved = engine.client.pending
            engine.client.fail(EngineLeft(f"engine {name} has left"))
            await engine.stop()
            del self.engines[name]
            self._info = None
            self._leaving.discard(name)
        return moved

    async def stop(self) -> None:
        """End all engines."""
        await asyncio.gather(*(engine.stop() for engine in self.engines.values()))

    def kill(self) -> None:
        """Kill all engines at once. May be called outside the event loop."""
        for engine in list(self.engines.values()):
            engine.kill()

    def _keep(self, engine: Supervisor) -> None:
        engine.changed = self._changed
        if self._over is not None:
            self._kept[engine.name] = asyncio.create_task(self._keeping(engine))

    async def _come(self, engine: Supervisor) -> None:
        """Wait for an absent engine, and add it."""
        while True:
            await asyncio.sleep(ABSENT_SECONDS)
            try:
                await engine.start()
                self.join(engine)
                log.warning("engine %s answers and joins this server", engine.name)
                return
            except EngineAbsent:
                continue
            except (EngineLost, OSError, RequestError) as error:
                log.error("engine %s is given up: %s", engine.name, error)
                await engine.stop()
                return

    async def _keeping(self, engine: Supervisor) -> None:
        try:
            lost = await engine.run()
            log.error("engine %s is given up: %s", engine.name, lost)
        except Exception as error:
            log.exception("engine %s is not watched any more", engine.name)
            lost = EngineLost(f"engine {engine.name} is not watched any more: {error}")
        self._kept.pop(engine.name, None)
        self.gone(engine.name)
        if not self._kept and self._over is not None and not self._over.done():
            self._over.set_result(lost)
        self._tell()

    def _changed(self, engine: Supervisor) -> None:
        self._info = None
        if engine.name not in self._leaving:
            self.changed(engine)
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _ignore(_: object) -> None:
    pass
