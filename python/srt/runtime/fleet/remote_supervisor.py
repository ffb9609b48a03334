"""RemoteSupervisor: keeps the session with a standalone engine, on any machine."""

from __future__ import annotations

from sglang.srt.config import Config
from sglang.srt.engine.info import EngineInfo
from sglang.srt.engine.process import Started
from sglang.srt.remote.curve_keys import FrontKeys
from sglang.srt.remote.front_link import EngineRefused, Unreachable
from sglang.srt.remote.handshake import Expected, vocabulary_digest
from sglang.srt.remote.remote_engine import LinkCounts, RemoteEngine
from sglang.srt.runtime.supervisor import AnotherEngine, EngineAbsent, Supervisor
from sglang.srt.tokenizer import Tokenizer

MOST_REFUSALS = 10  # successive refusals (the engine now differs, say) until it is given up
MOST_PAUSES = 10  # longest pause between two attempts to reach the engine, in seconds


class RemoteSupervisor(Supervisor):
    """A Supervisor of an engine that this server does not start. If the engine is lost, the
    supervisor reconnects to it. ``stop`` ends the session, and not the engine.

    Attributes:
        counts: counters over all sessions with the engine.
    """

    may_differ = ("capacity",)  # the memory of another machine

    def __init__(
        self, config: Config, tokenizer: Tokenizer, address: str, keys: FrontKeys | None
    ) -> None:
        super().__init__(config, tokenizer, address)
        self._keys, self.counts = keys, LinkCounts()
        self._refusals = 0
        self._expected = Expected(vocabulary=vocabulary_digest(tokenizer.token_bytes))

    async def start(self, started: Started | None = None) -> None:
        """Connect to the engine. Raises EngineAbsent if nothing answers at its address, EngineLost
        if the engine does not fit this server, ValueError for an invalid address."""
        try:
            await self._load(self._config)
        except Unreachable as error:
            raise EngineAbsent(str(error)) from error
        self.client = self._engine.client

    async def _load(self, config: Config, started: Started | None = None) -> EngineInfo:
        engine = RemoteEngine(self.name, self._keys, self._expected, counts=self.counts)
        self._engine = engine
        try:
            await engine.ready()
            await self._warm(engine.client)
        except BaseException:
            engine.kill()
            raise
        self._expected = Expected.like(engine.facts)
        self._times.clear()
        return engine.info

    async def _restart(self) -> None:
        try:
            await super()._restart()
        except (EngineRefused, AnotherEngine):
            self._refusals += 1
            raise
        self._refusals = 0

    def _another(self) -> bool:
        """Whether to reconnect: always, since the engine may be restarted at any time, unless an
        engine that does not fit was found ``MOST_REFUSALS`` times."""
        if self._refusals >= MOST_REFUSALS:
            return False
        if len(self._times) < MOST_PAUSES:
            self._times.append(0.0)
        return True

    def _attempt(self, nth: int) -> str:
        return f"reaching engine {self.name} again"
