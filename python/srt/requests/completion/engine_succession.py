"""EngineSuccession: the engine that serves one request, and the next one where it is lost.

A request that was accepted goes on with the engine that is started in place of a lost one, from the
tokens that have come (``Generate.generated``). Its client waits and reads the same text. It may be
the request itself that makes engines fail, so it goes on a few times only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from sglang.srt.core.messages import Advance, Close, Done, Event, Failed, Verb
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.engine.client import Client, EngineLost, Inbox
from sglang.srt.requests.completion.readout import refused

log = logging.getLogger("sglang.server")


class Successors(Protocol):
    """The engines that come after lost ones (``runtime/supervisor``)."""

    async def after(self, client: Client, adapter: str) -> Client:
        """Wait for the engine after ``client``'s, until it has the adapter ("": none), or is not
        to have it. Raises EngineLost where no engine comes."""
        ...


class EngineContext(NamedTuple):
    """A context of one engine, by the number that its client gave it."""

    client: Client
    number: int


class EngineSuccession:
    """One request's contexts and verbs, on the engine of the moment.

    Attributes:
        client: of the engine that serves the request.
        losses: engines that were lost meanwhile.
        aborted: nothing is to be computed any more.
    """

    def __init__(
        self,
        client: Client,
        successors: Successors | None = None,
        most: int = 0,
        name: str = "",
        adapter: str = "",
    ) -> None:
        """
        Args:
            successors: None: the request ends with its engine.
            most: times that it may go on with another engine.
            name: its client's name for it.
            adapter: what its contexts are opened with.
        """
        self.client, self.losses, self.aborted = client, 0, False
        self._successors = successors if client.lost is None else None
        self._most, self._name, self._adapter = most, name, adapter
        self._open: set[EngineContext] = set()  # contexts that an engine may still hold
        self._inboxes: set[Inbox] = set()
        self._replacing = asyncio.Lock()
        self._waiting: asyncio.Future[Client] | None = None  # for the next engine

    # -- contexts --------------------------------------------------------------------------------

    def new_context(self, number: int | None = None) -> EngineContext:
        """A context that a verb is about to open, or one that the engine has under ``number``. It
        is closed with the request."""
        number = self.client.new_id() if number is None else number
        context = EngineContext(self.client, number)
        if not self.aborted:
            self._open.add(context)
        return context

    async def advance(
        self, context: EngineContext, before: Sequence[Verb], verb: Advance, unknown: RequestStats
    ) -> AsyncGenerator[list[Event], None]:
        """Events of one Advance, as many at a time as have come. ``unknown``: statistics where it
        was aborted before. Raises Failed as RequestError, and EngineLost."""
        if self.aborted:  # the context is closed already
            yield [Done(verb.request, "abort", stats=unknown)]
            return
        inbox = context.client.submit(verb.request, [*before, verb], self._name)
        self._inboxes.add(inbox)
        while not inbox.ended:
            events = await inbox.take()
            if inbox.ended and verb.close:
                self._open.discard(context)
            last = events[-1]
            if not isinstance(last, Failed):
                yield events
                continue
            if len(events) > 1:
                yield events[:-1]
            if last.code == "lost" and self._successors is not None:
                raise EngineLost(last.message)
            raise refused(last)

    # -- engines ---------------------------------------------------------------------------------

    async def replace(self, client: Client, error: EngineLost) -> None:
        """Go on with the engine after ``client``'s, which was lost with ``error``. Returns at once
        where another part of the request has done that, and where the request is aborted.

        Raises EngineLost: ``error`` where the request may not go on, another where no engine comes.
        """
        async with self._replacing:
            if self.client is not client or self.aborted:
                return
            self.losses += 1
            if self._successors is None:
                raise error
            if self.losses > self._most:
                raise EngineLost(
                    f"{error}; the request has been in {self.losses} engines that were lost, and "
                    f"may go on {self._most} times (--max-resumes)"
                )
            began = time.monotonic()
            self._waiting = asyncio.ensure_future(self._successors.after(client, self._adapter))
            try:
                await asyncio.wait({self._waiting})
                if self.aborted:
                    return
                self.client = self._waiting.result()
            finally:
                self._waiting.cancel()
                self._waiting = None
            self._open = {context for context in self._open if context.client is not client}
            waited = time.monotonic() - began
            log.warning("request %s goes on with the next engine after %.1f s", self._name, waited)

    # -- the end ---------------------------------------------------------------------------------

    def abort(self) -> None:
        """Close the contexts, and wait for no engine; what runs on them ends with reason
        "abort"."""
        self.aborted = True
        if self._waiting is not None:
            self._waiting.cancel()
        self._close_contexts()

    def close(self) -> None:
        """Abort, and listen no more."""
        for inbox in self._inboxes:
            inbox.close()
        self._close_contexts()

    def _close_contexts(self) -> None:
        for client in {context.client for context in self._open}:
            numbers = sorted(context.number for context in self._open if context.client is client)
            with suppress(EngineLost):
                client.send(*map(Close, numbers))
        self._open.clear()
