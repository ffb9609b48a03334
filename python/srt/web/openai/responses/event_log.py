"""Event log: the events of a response while it is generated, streamed or in the background."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.conversations.call_parking import hinted_or_parked
from sglang.srt.runtime.conversations.chat_request import ChatCall, thought_tokens
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import describe
from sglang.srt.web.exchange.event_stream import EventForm, typed_event
from sglang.srt.web.openai.responses.answer import Answer
from sglang.srt.web.openai.responses.item_writer import Event
from sglang.srt.web.openai.responses.responses_body import in_own_words
from sglang.srt.web.openai.responses.token_pieces import TokenPieces
from sglang.srt.web.response_store import ResponseStore, StoredResponse
from sglang.srt.web.server_state import ServerState

MAX_BACKGROUND = 64  # at a time


def error_event(error: BaseException, sequence: int = 0) -> Event:
    """Return the event of an error that ends a stream."""
    fields = describe(error)[1]["error"]
    shown = {name: fields[name] for name in ("code", "message", "param")}
    return {"type": "error", "sequence_number": sequence, **shown}


EVENTS = EventForm(typed_event, b"", error_event)
FRAMES = EventForm(bytes, b"", lambda error: typed_event(error_event(error)))


async def written(
    state: ServerState, call: ChatCall, answer: Answer, interval: int
) -> AsyncGenerator[Event, None]:
    """Generate the answer and yield its events. The first event follows the engine's first output;
    then there is one for every ``interval`` tokens.

    Raises RequestError and EngineLost.
    """
    pieces = TokenPieces(state, call)
    with in_own_words(), call.named():
        async with aclosing(state.run([call.request])) as items:
            async for _, output in items:
                # Read once: the output may finish while an event is on its way.
                finished = output.finish is not None
                for event in answer.start():
                    yield event
                if pieces.ready(output, interval):
                    for piece in pieces.take(output, finished):
                        for event in answer.writer.write(piece.deltas, piece.logprobs):
                            yield event
                if finished:
                    caller, reader = CALLER.get(), pieces.reader
                    answer.kept = hinted_or_parked(state.runtime, call, output, reader, caller)
                    thoughts = thought_tokens(state.runtime, call, output, reader)
                    for event in answer.end([output], reader.called, thoughts):
                        yield event


async def with_errors(
    events: AsyncGenerator[Event, None], answer: Answer, ended: Callable[[], None]
) -> AsyncGenerator[Event, None]:
    """Yield the events of ``events``. An error after the first event becomes events too.

    ``ended`` is called before the events of the end. Raises an error that comes before the first
    event.
    """
    try:
        async with aclosing(events):
            async for event in events:
                if answer.ended:
                    ended()
                yield event
    except Exception as error:
        if not answer.created or answer.ended:
            raise
        last = answer.fail(error)
        ended()
        for event in last:
            yield event


class BackgroundResponse:
    """A response that is generated in the background, in a task of the server, even if no client
    waits.

    Attributes:
        news: set at the next event, and at the end.
    """

    def __init__(self, store: ResponseStore, answer: Answer, record: StoredResponse) -> None:
        self.answer, self._record, self._store = answer, record, store
        self.news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, events: AsyncGenerator[Event, None]) -> None:
        self._tell(self.answer.create())
        self._task = asyncio.ensure_future(self._run(with_errors(events, self.answer, _nothing)))
        self._task.add_done_callback(self._end)

    async def cancel(self) -> None:
        """End the response now."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self, events: AsyncGenerator[Event, None]) -> None:
        async with aclosing(events):
            async for event in events:
                self._tell([event])

    def _end(self, task: asyncio.Task[None]) -> None:
        if not self.answer.ended:
            error = None if task.cancelled() else task.exception()
            self._tell(self.answer.cancel() if error is None else self.answer.fail(error))
        self._store.settle(self._record, msgspec.json.encode(self.answer.value()))
        self.news.set()

    def _tell(self, events: list[Event]) -> None:
        if self._record.events is not None:
            for event in events:
                self._store.add(self._record, typed_event(event))
        news, self.news = self.news, asyncio.Event()
        news.set()


def _nothing() -> None:
    pass


def begin(
    state: ServerState,
    call: ChatCall,
    answer: Answer,
    record: StoredResponse,
    events: AsyncGenerator[Event, None],
) -> None:
    """Start to generate the answer in the background. Raises RequestError if it cannot begin."""
    store = state.responses
    count, own = store.live(), store.live(record.tenant) if state.tenants.several else 0
    if count + own >= MAX_BACKGROUND:  # there is always room for a tenant that holds nothing
        raise RequestError(
            f"{count} responses are generated in the background; {own} of them are this key's and "
            f"count twice. At most {MAX_BACKGROUND} are allowed; try again later.",
            "background",
            "queue_full",
        )
    state.admit(1)
    with in_own_words():
        call.request.verified(state.runtime.info)
    record.live = live = BackgroundResponse(store, answer, record)
    if not store.put(record):
        store.drop(record)
        raise RequestError(
            f"The store of responses has no room ({store.limit} bytes, --response-store-bytes); "
            "try again later.",
            "background",
            "queue_full",
        )
    live.start(events)


async def follow(record: StoredResponse, after: int) -> AsyncGenerator[bytes, None]:
    """Yield the frames of a response's events after event number ``after``: first the stored ones,
    then new ones.

    A comment comes first. Raises RequestError if the events are no longer stored.
    """
    yield b":\n\n"
    place = after + 1
    while True:
        live: BackgroundResponse | None = record.live
        news = None if live is None else live.news
        frames = record.events
        if frames is None:
            raise RequestError(
                "The server had no room to store the events; retrieve the response instead."
            )
        while place < len(frames):
            yield frames[place]
            place += 1
        if news is None:
            return
        await news.wait()
