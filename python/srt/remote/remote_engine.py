"""RemoteEngine: a front's (server's) handle of a standalone engine, with the interface of
``engine/process.EngineProcess``.

    engine = RemoteEngine("tcp://10.0.0.7:30100", read_front_keys("front.key"),
                          Expected(vocabulary=vocabulary_digest(tokenizer.token_bytes)))
    try:
        await engine.ready()                # EngineLost: retry later; EngineRefused: does not fit
        ... engine.client, engine.info, engine.exact ...
        lost = await engine.wait_lost()     # requests in flight have ended with EngineLost
    finally:
        await engine.stop()                 # ends the session only; the engine keeps running
    engine = engine.again()                 # the next session: await engine.ready() ...

One object is one session. A session ends with its connection, for any reason. Requests in flight
then end with EngineLost, so that they continue on another engine
(``requests/completion/engine_succession``), and the engine closes their contexts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sglang.srt.core.messages import Verb
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.engine.info import EngineInfo
from sglang.srt.remote.curve_keys import FrontKeys, verify_address
from sglang.srt.remote.front_link import EngineRefused, FrontLink, Unreachable
from sglang.srt.remote.front_session import Ended, FrontSession, Refused
from sglang.srt.remote.handshake import EngineFacts, EngineWelcome, Expected, differences, refusal
from sglang.srt.remote.remote_frames import FrameError

log = logging.getLogger("sglang.srt.remote")
HEARTBEAT_SECONDS = 5.0
REACH_SECONDS = 5.0
RETRY_SECONDS = 0.2  # between two attempts to connect
LEAVE_MILLISECONDS = 200


@dataclass
class LinkCounts:
    """Counts over all sessions with one engine.

    Attributes:
        sessions: sessions that have begun.
        reconnections: sessions after the first.
        refused: attempts that the front or the engine refused.
        dropped: frames of another session, repeated frames and malformed frames.
        broken: sessions that ended because frames were missing or could not be read.
    """

    sessions: int = 0
    reconnections: int = 0
    refused: int = 0
    dropped: int = 0
    broken: int = 0


class EngineTarget(NamedTuple):
    """An engine and the way to reach it."""

    address: str
    keys: FrontKeys | None
    expected: Expected
    heartbeat: float


class RemoteEngine:
    """One session with an engine. Call every method on the running event loop.

    Args:
        address: tcp://HOST:PORT.
        curve: CURVE keys; None if the address is on this machine.
        expected: facts that the engine must have.
        heartbeat: seconds without a message of the engine after which it counts as lost.
        counts: counts of earlier sessions with the engine.

    Attributes:
        client: client of the engine, made by ``ready``.
        facts: facts that the engine reports, set by ``ready``.
        differs: facts of its arithmetic that differ from the expected ones, in words.
        pid: 0, because the engine is no process of this machine.

    Raises ValueError for an invalid address, or one of another machine without keys.
    """

    pid = 0
    client: Client
    facts: EngineFacts

    def __init__(
        self,
        address: str,
        curve: FrontKeys | None = None,
        expected: Expected | None = None,
        *,
        heartbeat: float = HEARTBEAT_SECONDS,
        counts: LinkCounts | None = None,
    ) -> None:
        verify_address(address, "the address of an engine", curve)
        self._target = EngineTarget(address, curve, expected or Expected(), heartbeat)
        self.counts = counts or LinkCounts()
        self.differs: list[str] = []
        self._session = FrontSession(self._target.expected)
        self._link: FrontLink | None = None
        loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[EngineWelcome] = loop.create_future()
        self._lost: asyncio.Future[EngineLost] = loop.create_future()

    @property
    def address(self) -> str:
        return self._target.address

    @property
    def info(self) -> EngineInfo:
        return self.client.info

    @property
    def exact(self) -> bool:
        """Return whether the engine's texts equal those of the expected engine byte for byte."""
        return not self.differs

    @property
    def stage_text(self) -> str:
        """Return when the engine's loop last sent a sign, in words. The loop turns between two
        forward passes."""
        seconds = time.monotonic() - self._session.heard
        return f"its loop was heard {seconds:.0f} s ago"

    def again(self) -> RemoteEngine:
        """Return the next session with the same engine, not begun."""
        address, keys, expected, heartbeat = self._target
        return RemoteEngine(address, keys, expected, heartbeat=heartbeat, counts=self.counts)

    async def ready(self, seconds: float = REACH_SECONDS) -> None:
        """Connect to the engine within ``seconds``, then wait until it has loaded its model, as
        long as the connection lasts. Sets ``client``, ``facts`` and ``differs``.

        Raises EngineRefused if the front or the engine refuses the other, EngineLost if there is no
        engine now.
        """
        try:
            self._link = await self._connected(seconds)
            self._link.send(self._session.hello())
            news: set[asyncio.Future[Any]] = {self._welcome, self._lost}
            await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)
            if not self._welcome.done():
                raise self._lost.result()
            self._begin(self._welcome.result().facts)
        except BaseException as error:
            self.counts.refused += isinstance(error, EngineRefused)
            self.kill()
            raise

    async def _connected(self, seconds: float) -> FrontLink:
        """Return a connection, or raise after ``seconds`` of attempts."""
        address, keys, _, heartbeat = self._target
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            link = FrontLink(address, keys, heartbeat, self._take, self._end)
            try:
                await link.connected(max(deadline - loop.time(), 0.0))
                return link
            except BaseException as error:
                link.close()
                if not isinstance(error, Unreachable) or loop.time() + RETRY_SECONDS > deadline:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    def _begin(self, facts: EngineFacts) -> None:
        if reason := refusal(facts, self._target.expected):
            raise EngineRefused(f"the engine at {self.address} is refused: {reason}")
        self.facts, self.differs = facts, differences(facts, self._target.expected)
        if self.differs:
            log.warning(
                "the arithmetic of the engine at %s differs, and so may its texts: %s",
                self.address, "; ".join(self.differs),
            )  # fmt: skip
        self.client = Client(facts.info, self._transmit)
        if self._lost.done():
            self.client.fail(self._lost.result())
        self.counts.sessions += 1
        self.counts.reconnections += self.counts.sessions > 1

    # -- the end ---------------------------------------------------------------------------------

    async def wait_lost(self) -> EngineLost:
        """Wait until the session is over, by itself or by ``stop``. Return the reason."""
        return await asyncio.shield(self._lost)

    async def stop(self, seconds: float = 2.0) -> None:
        """End the session; the engine keeps serving other fronts. Safe to call twice."""
        if self._link is not None and not self._lost.done():
            with contextlib.suppress(Exception):
                self._link.send(self._session.leave())
            self._link.close(linger=LEAVE_MILLISECONDS)
        self._end(EngineLost(f"this server has left the engine at {self.address}"))

    def lose(self, message: str) -> None:
        """End the session with EngineLost because of ``message``: the engine is alive but cannot be
        used."""
        self._end(EngineLost(message))

    def kill(self) -> None:
        """Close the connection at once. The engine notices this."""
        if self._link is not None:
            self._link.close()

    def set_unanswered(self, seconds: float) -> None:
        """Record for how long the engine has not answered; 0: it has answered."""
        before = self.client.stalled
        text = f"the engine at {self.address} has not answered for {seconds:g} s; {self.stage_text}"
        self.client.stalled = text if seconds else ""
        if seconds and not before:
            log.error("%s", text)
        elif before and not seconds:
            log.warning("the engine at %s answers again", self.address)

    def _end(self, error: EngineLost) -> None:
        """End the session once: nothing is sent or read any more."""
        self.kill()
        if self._lost.done():
            return
        self._lost.set_result(error)
        if hasattr(self, "client"):
            self.client.fail(error)

    # -- frames ----------------------------------------------------------------------------------

    def _transmit(self, verbs: Sequence[Verb]) -> None:
        """Send verbs in one frame, without waiting. Raises OSError if the socket refuses it."""
        assert self._link is not None
        frame = self._session.verbs(verbs)
        try:
            self._link.send(frame)
        except OSError:
            self._session.unsent()
            raise

    def _take(self, frame: bytes) -> None:
        if self._lost.done():
            return
        before = self._session.dropped
        try:
            found = self._session.take(frame)
        except Refused as error:
            self._end(EngineRefused(f"the engine at {self.address} refuses: {error}"))
        except Ended as error:
            self._end(EngineLost(f"the engine at {self.address} has ended the session: {error}"))
        except FrameError as error:
            self.counts.broken += 1
            self._end(EngineLost(f"the session with the engine at {self.address} broke: {error}"))
        else:
            if isinstance(found, EngineWelcome):
                self._welcome.set_result(found)
            elif found and hasattr(self, "client"):
                self.client.deliver(found)
        self.counts.dropped += self._session.dropped - before
