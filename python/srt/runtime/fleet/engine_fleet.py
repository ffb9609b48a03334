"""Fleet: several engines behind one server, as the ``ServingEngines`` of its requests.

A request is on one engine at a time, chosen by a router (``srt.routing``). If its engine is lost or
leaves, the request continues on another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sglang.srt.core.clock import SYSTEM_CLOCK, Clock
from sglang.srt.core.messages import Reply
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.engine.info import EngineInfo
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.serving_engines import AdapterHolders, AllHaveAll, Assignment
from sglang.srt.requests.request_error import RequestError
from sglang.srt.routing.prompt import RoutedPrompt
from sglang.srt.routing.routed_engine import Ticket
from sglang.srt.routing.router import Router
from sglang.srt.runtime.fleet.members import Members
from sglang.srt.runtime.fleet.slow_engines import SlowEngines
from sglang.srt.runtime.supervisor import Supervisor

log = logging.getLogger("sglang.server")
MAX_ENGINES = 1024
LOOKS = frozenset({"stats", "tree"})  # read-only controls
PATIENCE = 2.0  # seconds after which a silent engine is left out of the replies to LOOKS


class RoutedAssignment(Assignment):
    """A request on the engine that a router chose. Its first token and end are reported to the
    router."""

    def __init__(self, fleet: Fleet, client: Client, ticket: Ticket, number: int) -> None:
        """``number``: number of the request from ``SlowEngines.sent``."""
        super().__init__(client)
        self._fleet, self._ticket, self._number = fleet, ticket, number
        self._sent = fleet.clock.now()
        self._open, self._answered = True, False

    def begun(self, stats: RequestStats) -> None:
        if self._open and not self._answered:
            self._answered = True
            now = self._fleet.clock.now()
            self._fleet.router.first_token(self._ticket, now, stats.cached_tokens)
            name, seconds = self._ticket.engine, now - self._sent
            slow = self._fleet.slow.answered(name, seconds, now, self._number)
            if slow:
                log.warning("%s", slow)

    def ended(self, generated: int) -> None:
        if self._open:
            self._open = False
            self._fleet.router.ended(self._ticket, self._fleet.clock.now(), generated)
            if not self._answered:
                self._fleet.slow.ended(self._ticket.engine, self._number)


class Fleet:
    """A changing set of engines, and the choice among them.

    Attributes:
        members: the engines.
        router: chooses an engine. slow: engines that are excluded for now.
        adapters: tells which engines have an adapter.
        resumed: called when a request continues on another engine.
        changed: called with an engine that was lost, was restarted, or joins.
        routed: number of requests by engine, since the start.
        connect: makes the supervisor of a standalone engine (``sglang engine``) at an address.
    """

    def __init__(
        self, members: Members, router: Router, slow: SlowEngines, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.members, self.router, self.slow, self.clock = members, router, slow, clock
        self.adapters: AdapterHolders = AllHaveAll()
        self.resumed: Callable[[], None] = _nothing
        self.changed: Callable[[Supervisor], None] = _nothing_of
        self.routed: dict[str, int] = {}
        self._leaves: set[asyncio.Task[int]] = set()
        self.connect: Callable[[str], Supervisor] = _no_connection
        members.changed, members.gone = self._changed, self._gone

    async def run(self) -> EngineLost:
        """Keep the engines alive. Return the reason why the last one was given up."""
        return await self.members.run()

    async def join(self, address: str) -> None:
        """Connect to a standalone engine, and add it to the fleet. Raises RequestError."""
        if address in self.members.engines:
            raise RequestError(f"There is an engine {address!r} already.", "url")
        if len(self.members.engines) >= MAX_ENGINES:
            raise RequestError(f"There are {MAX_ENGINES} engines, and no more may be.", "url")
        try:
            engine = self.connect(address)
            await engine.start()
        except (ValueError, EngineLost, OSError) as error:
            raise RequestError(f"The engine cannot be used: {error}.", "url") from error
        try:
            self.members.join(engine)
        except RequestError:
            await engine.stop()
            raise

    def shown(self) -> list[dict[str, Any]]:
        """Return the engines: name, state, and numbers of requests."""
        now = self.clock.now()
        return [
            {
                "name": name,
                "state": self._state(name, engine, now),
                "pending": engine.client.pending,
                "routed": self.routed.get(name, 0),
                "restarts": engine.restarts,
                "max_total_num_tokens": engine.info.capacity,
            }
            for name, engine in self.members.engines.items()
        ]

    def _state(self, name: str, engine: Supervisor, now: float) -> str:
        if name in self.members.leaving:
            return "leaving"
        if engine.client.lost is not None:
            return "lost"
        return "resting" if name in self.slow.excluded(now) else "serving"

    async def leave(self, name: str, seconds: float) -> int:
        """Let an engine leave (``Members.leave``), even if the caller is cancelled. Return the
        number of requests that continue on other engines."""
        task = asyncio.create_task(self.members.leave(name, seconds, self.clock))
        self._leaves.add(task)
        task.add_done_callback(self._leaves.discard)
        return await asyncio.shield(task)

    # -- as ServingEngines -----------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        return self.members.info

    @property
    def clients(self) -> Sequence[Client]:
        return list(self.members.clients.values())

    @property
    def count(self) -> int:
        return len(self.members.engines)

    @property
    def pending(self) -> int:
        return sum(engine.client.pending for engine in self.members.engines.values())

    @property
    def lost(self) -> EngineLost | None:
        return self.members.lost

    @property
    def stalled(self) -> str:
        reasons = [client.stalled for client in self.clients]
        return "; ".join(reasons) if reasons and all(reasons) else ""

    def assign(self, request: CompletionRequest) -> Assignment:
        names = self._able(request, self.members.serving())
        if not names:  # choose a lost engine, whose client refuses the request with the reason
            clients = [engine.client for engine in self.members.engines.values()]
            return Assignment(next((c for c in clients if c.lost is not None), clients[0]))
        return self._place(request, names)

    async def reassign(self, request: CompletionRequest, client: Client) -> Assignment:
        """Choose another engine that can serve the request; wait if there is none now."""
        while True:
            serving = self.members.serving(but=client)
            if not serving:
                await self.members.wait()
                continue
            able = self._able(request, serving)
            other = self.members.engines[able[0]].client
            if not request.adapter or self.adapters.has(other, request.adapter):
                self.resumed()
                return self._place(request, able)
            await self.adapters.restored(other, request.adapter)

    def holder(self, request: CompletionRequest) -> Client:
        names = self.members.serving() or list(self.members.engines)
        name = self.router.holder(_prompt(request), names) or names[0]
        return self.members.engines[name].client

    async def control(self, op: str, limit: int = 0) -> Mapping[str, Reply]:
        clients = self.members.clients
        if self.members.lost is not None:
            raise self.members.lost.again()
        asked = {
            name: asyncio.ensure_future(client.control(op, limit))
            for name, client in clients.items()
        }
        try:
            await asyncio.wait(asked.values(), timeout=PATIENCE if op in LOOKS else None)
            await asyncio.wait(asked.values(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in asked.values():
                task.cancel()  # no effect on a done task
        found = dict(zip(asked, await asyncio.gather(*asked.values(), return_exceptions=True)))
        replies = {name: reply for name, reply in found.items() if isinstance(reply, Reply)}
        for error in found.values():
            left_out = isinstance(error, (EngineLost, asyncio.CancelledError))
            if isinstance(error, BaseException) and not (replies and left_out):
                raise error
        return replies

    # -- the choice ------------------------------------------------------------------------------

    def _able(self, request: CompletionRequest, names: Sequence[str]) -> Sequence[str]:
        """Return the engines of ``names`` that have the request's adapter and are not slow. A
        condition that no engine meets is dropped."""
        if request.adapter:
            clients = self.members.clients
            with_it = [name for name in names if self.adapters.has(clients[name], request.adapter)]
            names = with_it or names
        slow = self.slow.excluded(self.clock.now())
        return [name for name in names if name not in slow] or names if slow else names

    def _place(self, request: CompletionRequest, names: Sequence[str]) -> Assignment:
        if len(self.members.engines) == 1:
            return Assignment(self.members.engines[names[0]].client)
        now = self.clock.now()
        ticket = self.router.choose(_prompt(request, self._home(request)), now, names)
        number = self.slow.sent(ticket.engine, now)
        self.routed[ticket.engine] = self.routed.get(ticket.engine, 0) + 1
        return RoutedAssignment(self, self.members.engines[ticket.engine].client, ticket, number)

    def _home(self, request: CompletionRequest) -> str:
        """Return the name of the engine that holds the request's parked context, "" for none."""
        held = None if request.resumed is None else request.resumed.held
        if held is None:
            return ""
        return next((name for name, c in self.members.clients.items() if held.on(c)), "")

    # -- engines ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Add the members, which have been started, to the router."""
        for engine in self.members.engines.values():
            self._add(engine)

    def _add(self, engine: Supervisor) -> None:
        info = engine.info
        self.router.add(engine.name, info.capacity, info.max_running_requests)
        self.slow.keep(list(self.members.engines))

    def _changed(self, engine: Supervisor) -> None:
        self._gone(engine.name)  # drop the router's knowledge of the lost engine's cache and delays
        self._add(engine)
        self.changed(engine)

    def _gone(self, name: str) -> None:
        if self.router.engines.get(name) is not None:
            self.router.remove(name)
        self.slow.keep([other for other in self.members.engines if other != name])


def _prompt(request: CompletionRequest, home: str = "") -> RoutedPrompt:
    new = request.sampling.max_new_tokens
    program = request.program
    return RoutedPrompt(
        request.prompt, request.namespace, request.adapter, program, home, new, request.hint,
        request.prefixes,
    )  # fmt: skip


def _no_connection(address: str) -> Supervisor:
    raise ValueError("this fleet takes no engines of other machines")


def _nothing() -> None:
    pass


def _nothing_of(engine: Supervisor) -> None:
    pass
