"""RemoteSupervisor: keeps the session with an engine that runs by itself, on any machine."""

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

MOST_REFUSALS = 10  # in a row, by an engine that is there again and differs; then it is given up
MOST_PAUSES = 10  # the pause between two attempts to reach the engine grows up to so many seconds


class RemoteSupervisor(Supervisor):
    """A Supervisor whose engine is not this server's: it is reached again and again where it is
    lost, and left, not ended, by ``stop``.

    Attributes:
        counts: of all sessions with the engine.
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
        """Reach the engine. Raises EngineAbsent where nothing answers at its address, EngineLost
        where it is another one than this server needs, ValueError for an address that is none."""
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
        """True, since the engine may be started again at any time, unless one that does not fit
        was there again and again."""
        if self._refusals >= MOST_REFUSALS:
            return False
        if len(self._times) < MOST_PAUSES:
            self._times.append(0.0)
        return True

    def _attempt(self, nth: int) -> str:
        return f"reaching engine {self.name} again"
