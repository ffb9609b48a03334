"""Server-sent events, and work that ends when its client is gone."""

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
"""ASGI extension: a function that writes a piece of an answer which has begun straight to its
connection; False, and nothing is written, where the piece must take the way of ``send``."""
AT_ONCE = 16  # pieces written between two turns of other tasks on the loop


def event(value: Any) -> bytes:
    """One event without a name; bytes are one already."""
    if isinstance(value, bytes):
        return value
    return b"".join((b"data: ", msgspec.json.encode(value), b"\n\n"))


class Template:
    """Events that differ in one text, made of the ``value`` of the one whose text is HOLE."""

    HOLE = uuid.uuid4().hex  # no client knows it

    def __init__(self, value: Any) -> None:
        self._before, self._after = event(value).split(msgspec.json.encode(self.HOLE))

    def event(self, text: str) -> bytes:
        return b"".join((self._before, msgspec.json.encode(text), self._after))


def typed_event(value: dict[str, Any]) -> bytes:
    """One event named by the ``type`` of its value."""
    return b"".join((b"event: ", value["type"].encode(), b"\n", event(value)))


def error_body(error: Exception) -> dict[str, Any]:
    return describe(error)[1]


@dataclass(frozen=True, slots=True)
class EventForm:
    """Form of one API's events.

    Attributes:
        write: a value as an event.
        end: bytes after the last event, if nothing failed.
        error: the value that tells, as the last event, what failed.
        media: content type.
    """

    write: Callable[[Any], bytes] = event
    end: bytes = DONE
    error: Callable[[Exception], Any] = error_body
    media: str = "text/event-stream"


OPENAI = EventForm()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``; cancels it when the client disconnects.

    To be used after the body was read. Raises ClientDisconnect.
    """
    return await _race(work, request.receive)


async def respond(
    request: Request, events: AsyncGenerator[Any, None], form: EventForm = OPENAI
) -> Response:
    """A stream of ``events``, JSON values, written as ``form`` says.

    The first one is awaited here, so that an error before it has its own status. Raises what
    ``events`` raises before its first item.
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
                if written % AT_ONCE == 0:  # let a disconnect be seen: with events at hand nothing
                    await asyncio.sleep(0)  # here waits
        except OSError:
            raise
        except Exception as error:  # the status is out: the error is the stream's last event
            await _piece(send, form.write(form.error(error)))
        else:
            await _piece(send, form.end)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _never(data: bytes) -> bool:
    return False


async def _piece(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _race(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of ``work``, unless the client goes first. Raises ClientDisconnect."""
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
        # The exception refers to this frame, and the frame to the exception by its task: a cycle
        # that would keep the request's body until the next collection, hundreds of requests later.
        del task, watch


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
