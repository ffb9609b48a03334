"""Server-sent events, and work that is cancelled when its client disconnects."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from sglang.srt.web.exchange.error_replies import describe
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
CHUNK = "sglang.chunk"
"""ASGI extension: a function that writes a piece of a begun answer directly to the connection. It
returns False, and writes nothing, if the piece must be sent with ``send``."""
AT_ONCE = 16  # pieces that are written before yielding to other tasks


def event(value: Any) -> bytes:
    """Return a value as an event without a name; bytes are an event already."""
    if isinstance(value, bytes):
        return value
    return b"".join((b"data: ", msgspec.json.encode(value), b"\n\n"))


class Template:
    """Template of events that differ in one text. ``value``: an event with HOLE as that text."""

    HOLE = uuid.uuid4().hex  # unknown to clients

    def __init__(self, value: Any) -> None:
        self._before, self._after = event(value).split(msgspec.json.encode(self.HOLE))

    def event(self, text: str) -> bytes:
        return b"".join((self._before, msgspec.json.encode(text), self._after))


def typed_event(value: dict[str, Any]) -> bytes:
    """Return a value as an event, named by the value's ``type``."""
    return b"".join((b"event: ", value["type"].encode(), b"\n", event(value)))


def error_body(error: Exception) -> dict[str, Any]:
    return describe(error)[1]


@dataclass(frozen=True, slots=True)
class EventForm:
    """Format of one API's events.

    Attributes:
        write: converts a value to an event.
        end: bytes after the last event of a stream without an error.
        error: converts an error to the value of the last event.
        media: content type of the stream.
    """

    write: Callable[[Any], bytes] = event
    end: bytes = DONE
    error: Callable[[Exception], Any] = error_body
    media: str = "text/event-stream"


OPENAI = EventForm()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``; cancel it when the client disconnects.

    Call this after the body was read. Raises ClientDisconnect.
    """
    return await _race(work, request.receive)


async def respond(
    request: Request, events: AsyncGenerator[Any, None], form: EventForm = OPENAI
) -> Response:
    """Return a streaming response of ``events`` (JSON values) in the format ``form``.

    The first event is awaited before the response begins, so that an earlier error gets its own
    status. Raises the errors of ``events`` before its first item.
    """
    try:
        first = await unless_gone(request, _first(events))
    except BaseException:
        await events.aclose()
        raise
    return _EventStream(first, events, form)


async def _first(events: AsyncGenerator[Any, None]) -> Any:
    return await events.__anext__()


class _EventStream(Response):
    def __init__(self, first: Any, events: AsyncGenerator[Any, None], form: EventForm) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=form.media)
        del self.headers["content-length"]
        self._first, self._events, self._form = first, events, form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = scope.get("extensions", {}).get(CHUNK, _never)
        try:
            await _race(self._send(write, send), receive)
        except (ClientDisconnect, OSError):
            pass
        finally:
            await self._events.aclose()

    async def _send(self, write: Callable[[bytes], bool], send: Send) -> None:
        form, written = self._form, 0
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _piece(send, form.write(self._first))
        try:
            async for value in self._events:
                data, written = form.write(value), written + 1
                if not write(data):
                    await _piece(send, data)
                if written % AT_ONCE == 0:  # yield, so that a disconnect is noticed even if
                    await asyncio.sleep(0)  # events are always available
        except OSError:
            raise
        except Exception as error:  # the status was sent, so the error becomes the last event
            await _piece(send, form.write(form.error(error)))
        else:
            await _piece(send, form.end)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _never(data: bytes) -> bool:
    return False


async def _piece(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _race(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Return the result of ``work``. Raises ClientDisconnect if the client disconnects first."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
        # The exception refers to this frame, and the frame to the exception through its task. This
        # cycle would keep the body in memory until a collection, hundreds of requests later.
        del task, watch


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
