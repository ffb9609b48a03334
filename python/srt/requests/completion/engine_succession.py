"""EngineSuccession: the engine that serves one request, and its successor if the engine is lost.

If its engine is lost, an accepted request continues on another engine, or on the restarted one. It
continues after the tokens generated so far (``Generate.generated``), so its client only waits and
reads the same text. The request itself may be the reason why engines fail. So it continues only a
few times, and some requests wait for others (``resume_order``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from sglang.ir.sampling import SamplingParams
from sglang.srt.core.messages import Advance, Close, Done, Event, Failed, Tokens, Verb
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.engine.client import Client, EngineLost, Inbox
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.readout import refused
from sglang.srt.requests.completion.resume_order import LostEngines, ResumeOrder
from sglang.srt.requests.completion.serving_engines import Assignment, EngineLeft, ServingEngines

log = logging.getLogger("sglang.server")


class EngineContext(NamedTuple):
    """A context of one engine, with the number that the engine's client gave it."""

    client: Client
    number: int


class EngineSuccession:
    """One request's contexts and verbs, on the engine that serves it now.

    Attributes:
        client: client of that engine.
        aborted: the request is aborted, so nothing more is computed.
    """

    def __init__(
        self,
        engines: ServingEngines,
        request: CompletionRequest,
        order: ResumeOrder,
        most: int | None = None,
    ) -> None:
        """Choose the request's engine.

        Args:
            order: order of all requests that continue on other engines.
            most: times that the request may continue on another engine; None: there is no other.
        """
        self._engines, self._request = engines, request
        self._assignment = engines.assign(request)
        self.aborted, self._order = False, order
        self._lost = LostEngines(most if self.client.lost is None else None)
        self._begun, self._generated = False, 0  # on this engine
        self._open: set[EngineContext] = set()  # contexts that an engine may still hold
        self._inboxes: set[Inbox] = set()
        self._replacing = asyncio.Lock()
        self._waiting: asyncio.Future[Assignment] | None = None  # for the next engine

    @property
    def client(self) -> Client:
        return self._assignment.client

    # -- contexts --------------------------------------------------------------------------------

    def new_context(self, number: int | None = None) -> EngineContext:
        """Return a new context, which a verb must then open, or the engine's existing context
        ``number``. The context is closed with the request."""
        number = self.client.new_id() if number is None else number
        context = EngineContext(self.client, number)
        if not self.aborted:
            self._open.add(context)
        return context

    async def advance(
        self, context: EngineContext, before: Sequence[Verb], verb: Advance, unknown: RequestStats
    ) -> AsyncGenerator[list[Event], None]:
        """Send ``before`` and an Advance; yield lists of its new events. ``unknown``: statistics to
        report if the request is aborted already. Raises EngineLost, and RequestError for Failed."""
        if self.aborted:  # the context is closed already
            yield [Done(verb.request, "abort", stats=unknown)]
            return
        inbox = context.client.submit(verb.request, [*before, verb], self._request.rid)
        self._inboxes.add(inbox)
        while not inbox.ended:
            events = await inbox.take()
            if inbox.ended and verb.close:
                self._open.discard(context)
            last = events[-1]
            if context.client is self._assignment.client:
                self.note(events)
            if not isinstance(last, Failed):
                yield events
                continue
            if len(events) > 1:
                yield events[:-1]
            if last.code == "lost" and self._lost.most is not None:
                raise EngineLost(last.message)
            raise refused(last)

    def note(self, events: Sequence[Event]) -> None:
        """Count generated tokens, and report the first statistics to the assignment."""
        for event in events:
            if isinstance(event, Tokens):
                self._generated += len(event.tokens)
            if not self._begun and isinstance(event, (Tokens, Done)) and event.stats is not None:
                self._begun = True
                self._order.answers(self)
                self._assignment.begun(event.stats)

    # -- engines ---------------------------------------------------------------------------------

    async def replace(
        self,
        client: Client,
        error: EngineLost,
        sampling: SamplingParams | None = None,
        text: str = "",
    ) -> None:
        """Continue on the next engine after ``client``'s, which was lost with ``error``. Return at
        once if another part of the request has done that, or the request is aborted.

        Args:
            sampling, text: sampling parameters and text of the completion that was in progress, if
                any.

        Raises EngineLost: ``error`` if the request may not continue, another if no engine comes.
        """
        if (losses := self._order.losses) is not None:
            own = self._request if sampling is None else replace(self._request, sampling=sampling)
            losses.note(client, error, own, text)
        async with self._replacing:
            if self.client is not client or self.aborted:
                return
            self._lost.count(error, self._begun)
            suspect = not self._begun and not isinstance(error, EngineLeft)
            self._leave()
            began = time.monotonic()
            self._waiting = asyncio.ensure_future(self._next(client, suspect))
            try:
                await asyncio.wait({self._waiting})
                if self.aborted:
                    return
                self._assignment = self._waiting.result()
                self._begun, self._generated = False, 0
            finally:
                self._give_up_waiting()
            self._open = {context for context in self._open if context.client is not client}
            waited = time.monotonic() - began
            name = self._request.rid
            log.warning("request %s continues on another engine after %.1f s", name, waited)

    async def _next(self, client: Client, suspect: bool) -> Assignment:
        """Wait for this request's turn, and return its assignment to an engine other than
        ``client``'s."""
        async with self._order.turn(self, suspect):
            return await self._engines.reassign(self._request, client)

    def _give_up_waiting(self) -> None:
        """Stop waiting for an engine. An assignment that was made meanwhile ends unused."""
        waiting, self._waiting = self._waiting, None
        assert waiting is not None
        waiting.cancel()  # no effect on a done future
        if not waiting.done() or waiting.cancelled() or waiting.exception() is not None:
            return
        if (assignment := waiting.result()) is not self._assignment:
            assignment.ended(0)

    # -- the end ---------------------------------------------------------------------------------

    def abort(self) -> None:
        """Close the contexts, and wait for no engine. Work on them ends with reason "abort"."""
        self.aborted = True
        if self._waiting is not None:
            self._waiting.cancel()
        self._close_contexts()

    def close(self) -> None:
        """Abort the request, and drop its later events."""
        for inbox in self._inboxes:
            inbox.close()
        self._close_contexts()
        self._leave()

    def _leave(self) -> None:
        self._order.answers(self)
        self._assignment.ended(self._generated)

    def _close_contexts(self) -> None:
        for client in {context.client for context in self._open}:
            numbers = sorted(context.number for context in self._open if context.client is client)
            with suppress(EngineLost):
                client.send(*map(Close, numbers))
        self._open.clear()
