"""Chats with the operator's tools: all turns of the model, answered as one reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from sglang.semantics.tool_calls.deltas import AnswerWords, Delta, Thought
from sglang.srt.requests.completion.output import Output
from sglang.srt.runtime.conversations.chat_request import (
    ChatCall,
    ReplyReader,
    read_chat,
    thought_tokens,
)
from sglang.srt.runtime.conversations.toolbox_turns import FIELD, ToolboxTurns
from sglang.srt.web.openai.chat.chat_reply import (
    CLOSING,
    OPENING,
    counts_of,
    delta_of,
    finish_of,
    logprobs_of,
    message_of,
)
from sglang.srt.web.openai.reply_fields import ReplyHead, usage
from sglang.srt.web.server_state import ServerState

KIND, CHUNK = "chat.completion", "chat.completion.chunk"


class _Turns:
    """The outputs of all turns, for the sums of their usage."""

    def __init__(self, state: ServerState) -> None:
        self._state, self._outputs, self._thoughts = state, list[list[Output]](), 0
        self.call: ChatCall | None = None

    def note(self, call: ChatCall, output: Output, reader: ReplyReader) -> None:
        """Count the reply of a turn, which has ended."""
        self.call = call
        self._outputs.append([output])
        self._thoughts += thought_tokens(self._state.runtime, call, output, reader)

    def usage(self) -> dict[str, Any]:
        assert self.call is not None
        return counts_of(self.call, usage(self._outputs), self._thoughts)


async def _read(state: ServerState, reply: ReplyHead, turns: ToolboxTurns) -> ChatCall:
    call = await read_chat(state.runtime, turns.body)
    return replace(call, request=replace(call.request, rid=reply.id))


async def whole_reply(state: ServerState, reply: ReplyHead, turns: ToolboxTurns) -> dict[str, Any]:
    """Return the reply after the last turn; its log-probabilities are those of that turn."""
    seen = _Turns(state)
    while True:
        call = await _read(state, reply, turns)
        with call.named():
            ((output,),) = await state.finish([call.request])
        reader = call.reader()
        message = message_of(reader.take(output, True)[0])
        seen.note(call, output, reader)
        goes_on = False
        if reader.called:
            message, _, goes_on = await turns.after(message)
        if not goes_on:
            break
    if turns.messages:
        message[FIELD] = turns.messages
    choice = {"index": 0, "message": message, "logprobs": None}
    if call.request.logprobs is not None:
        choice["logprobs"] = logprobs_of(state, output, range(output.released))
    choices = [{**choice, **finish_of(call, output, reader)}]
    return {**reply.head(KIND), "choices": choices, "usage": seen.usage()}


async def events(
    state: ServerState, reply: ReplyHead, turns: ToolboxTurns
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the chunks of a stream: words of all turns as they come, after each turn of calls what
    the server did (``toolbox_messages``), and at the end calls of the client."""
    options = turns.body.stream_options
    counted = bool(options and options.include_usage)
    head = {**reply.head(CHUNK), **({"usage": None} if counted else {})}
    seen, goes_on, opened = _Turns(state), True, False

    def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**head, "choices": [{**choice, **more}]}

    while goes_on:
        call = await _read(state, reply, turns)
        reader, found = call.reader(), list[Delta]()
        async with aclosing(_pieces(state, call, reader)) as pieces:
            async for output, deltas, more in pieces:
                last = output
                if not opened:
                    opened = True
                    yield chunk(OPENING)
                found += deltas
                shown = [delta_of(d) for d in deltas if isinstance(d, (AnswerWords, Thought))]
                if more and not shown:
                    shown = [delta_of(AnswerWords(""))]
                for delta in shown:
                    yield chunk(delta, **more)
                    more = {}
        seen.note(call, last, reader)
        message, added, goes_on = message_of(found), list[dict[str, Any]](), False
        if reader.called:
            message, added, goes_on = await turns.after(message)
        if added:
            yield chunk({FIELD: added})
    for index, one in enumerate(message.get("tool_calls") or []):
        yield chunk({"tool_calls": [{"index": index, **one}], "reasoning_content": None})
    yield chunk(CLOSING, **finish_of(call, last, reader))
    if counted:
        yield {**head, "choices": [], "usage": seen.usage()}


async def _pieces(
    state: ServerState, call: ChatCall, reader: ReplyReader
) -> AsyncGenerator[tuple[Output, list[Delta], dict[str, Any]], None]:
    """Yield what each output of one turn adds, with its log-probabilities."""
    interval = state.config.server.stream_interval
    with call.named():
        async with aclosing(state.run([call.request])) as items:
            async for _, output in items:
                finished, more = output.finish is not None, {}
                if finished or reader.sent.ready(output, interval):
                    deltas, tokens = reader.take(output, finished)
                    if call.request.logprobs is not None and tokens:
                        more["logprobs"] = logprobs_of(state, output, tokens)
                    yield output, deltas, more
