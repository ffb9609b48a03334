"""Client: the asyncio side of the engine. The runtime's programs reach the engine only through it.

A program sends verbs and reads the events of its requests:

    inbox = client.submit(request, [Open(...), Advance(...)])
    async for event in inbox: ...          # Tokens, Prompt, then one Done or Failed
    events = await inbox.take()            # or all events that have come, at least one

Two transports carry the messages: ``engine/local`` (a thread of this process) and ``engine/socket``
(another process, ZMQ over ipc). Both call ``deliver`` on the client's loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from sglang.srt.core.messages import Control, Done, Event, Failed, Reply, Verb
from sglang.srt.core.space_messages import SpaceEnded, SpaceEvent
from sglang.srt.engine.info import EngineInfo

log = logging.getLogger("sglang.srt.engine")
RETRY_SECONDS = 0.01  # delay before a message that the transport refused is sent again


class EngineLost(RuntimeError):
    """The engine has ended and will answer no message."""

    def again(self) -> EngineLost:
        """Return a copy to raise. If several readers raised the same object, it would keep the
        stack frames of all of them alive."""
        return type(self)(*self.args)


class SuspectRequest(EngineLost):
    """The request was running in several engines that were lost, so it may be the cause."""


class Inbox:
    """Events of one request, in order, ending with its terminal event."""

    def __init__(self, client: Client, request: int, name: str = "") -> None:
        self._client, self.request, self.name = client, request, name
        self._events: list[Event] = []
        self._lost: EngineLost | None = None
        self._news: asyncio.Future[None] | None = (
            None  # pending while a reader waits for the next event
        )
        self.ended = False

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._wake()

    def fail(self, error: EngineLost) -> None:
        """End the inbox with an error. Readers get the events that have arrived, then the error."""
        self._lost = error
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event. Raises EngineLost if the engine ended before the terminal
        event."""
        if self.ended:
            raise StopAsyncIteration
        await self._some()
        event = self._events.pop(0)
        if isinstance(event, (Done, Failed)):
            self.close()
        return event

    async def take(self) -> list[Event]:
        """Wait for at least one event, then return all unread events. Must not be called after the
        terminal event. Raises as ``__anext__`` does."""
        await self._some()
        events, self._events = self._events, []
        if isinstance(events[-1], (Done, Failed)):
            self.close()
        return events

    async def _some(self) -> None:
        """Wait until there is an unread event. Raises EngineLost."""
        while not self._events:
            if self._lost is not None:
                self.close()
                raise self._lost.again()
            self._news = asyncio.get_running_loop().create_future()
            await self._news

    def close(self) -> None:
        """Drop later events of the request. To abort it, send ``Close`` for its context instead."""
        self.ended = True
        self._client.forget(self.request)


class Client:
    """Sends verbs through ``transmit`` and sorts the events that come back. ``transmit`` raises
    OSError if it takes none of the verbs.

    Call every method on the event loop that the client was made on.

    Attributes:
        lost: the error that ended the engine; None while the engine lives.
        stalled: the reason why the engine makes no steps now; empty while it makes steps.
    """

    def __init__(self, info: EngineInfo, transmit: Callable[[Sequence[Verb]], None]) -> None:
        self.info = info
        self.lost: EngineLost | None = None
        self.stalled = ""
        self._transmit = transmit
        self._unsent: list[Verb] = []
        self._ids = itertools.count(1)
        self._inboxes: dict[int, Inbox] = {}
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._spaces: dict[int, Callable[[SpaceEvent], None]] = {}

    def new_id(self) -> int:
        """Return an unused id for a context, a request, a control or a space."""
        return next(self._ids)

    @property
    def pending(self) -> int:
        """Return the number of requests without a terminal event."""
        return len(self._inboxes)

    def send(self, *verbs: Verb) -> None:
        """Send verbs in order. If the transport refuses them now, keep them and retry later.
        Raises EngineLost."""
        if self.lost is not None:
            raise self.lost.again()
        waiting = bool(self._unsent)
        self._unsent += verbs
        if not waiting:
            self._flush()

    def _flush(self) -> None:
        if self.lost is not None or not self._unsent:
            return
        verbs, self._unsent = self._unsent, []
        try:
            self._transmit(verbs)
        except OSError as error:
            log.warning("a message to the engine was not sent; trying again: %s", error)
            self._unsent = verbs
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._flush)

    def submit(self, request: int, verbs: Sequence[Verb], name: str = "") -> Inbox:
        """Send ``verbs``, one of which is the Advance of ``request``, and return the request's
        inbox. ``name`` is the client's id (rid) of the request. Raises EngineLost."""
        inbox = Inbox(self, request, name)
        self._inboxes[request] = inbox
        try:
            self.send(*verbs)
        except BaseException:
            inbox.close()
            raise
        return inbox

    def name_of(self, request: int) -> str:
        """Return the client's id (rid) of a pending request; empty if the client gave none."""
        inbox = self._inboxes.get(request)
        return "" if inbox is None else inbox.name

    async def control(self, op: str, limit: int = 0) -> Reply:
        """Send a ``Control`` and wait for its reply. Raises EngineLost."""
        return await self.ask(lambda number: Control(number, op, limit))

    async def ask(self, verb: Callable[[int], Verb]) -> Reply:
        """Send ``verb(id)`` with a new id, and return the Reply with that id. Raises EngineLost."""
        number = self.new_id()
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._replies[number] = future
        try:
            self.send(verb(number))
            return await future
        finally:
            self._replies.pop(number, None)

    def listen(self, space: int, listener: Callable[[SpaceEvent], None]) -> None:
        """Pass the events of a space to ``listener``, on this loop, until ``unlisten`` or
        SpaceEnded. A lost engine also ends with SpaceEnded."""
        self._spaces[space] = listener

    def unlisten(self, space: int) -> None:
        """Drop later events of a space."""
        self._spaces.pop(space, None)

    def deliver(self, events: Sequence[Event]) -> None:
        """Take events. The transport calls this on the client's loop."""
        for event in events:
            if isinstance(event, Reply):
                future = self._replies.get(event.id)
                if future is not None and not future.done():
                    future.set_result(event)
            elif isinstance(event, SpaceEvent):
                self._hand_over(event)
            else:
                inbox = self._inboxes.get(event.request)
                if inbox is not None:
                    inbox.put(event)

    def fail(self, error: EngineLost) -> None:
        """End all pending inboxes, replies and spaces with ``error``. The transport calls this when
        the engine has ended."""
        if self.lost is not None:
            return
        self.lost = error
        for inbox in list(self._inboxes.values()):
            inbox.fail(error)
        for future in self._replies.values():
            if not future.done():
                future.set_exception(error.again())

        for space in list(self._spaces):
            self._hand_over(SpaceEnded(space, "lost", str(error)))

    def _hand_over(self, event: SpaceEvent) -> None:
        listener = self._spaces.get(event.space)
        if isinstance(event, SpaceEnded):
            self.unlisten(event.space)
        if listener is not None:
            listener(event)

    def forget(self, request: int) -> None:
        self._inboxes.pop(request, None)
