"""Toolbox replies: all turns of a chat with the operator's tools, as the parts of one reply.

Every API writes these parts in its own syntax:

    Words     new text and reasoning of a turn
    Calling   the server begins to run these calls
    Called    the server has run the calls; the model's next turn or the end follows
    Ending    the last turn has ended: its message has the calls that the client must run
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from sglang.semantics.tool_calls.deltas import AnswerWords, Delta, Thought
from sglang.srt.requests.completion.output import Output
from sglang.srt.runtime.caller import Caller
from sglang.srt.runtime.conversations.call_parking import park_at_call
from sglang.srt.runtime.conversations.chat_request import (
    ChatCall,
    ReplyReader,
    read_chat,
    thought_tokens,
)
from sglang.srt.runtime.conversations.reply_message import message_of, new_call_id
from sglang.srt.runtime.conversations.toolbox_turns import Message, ToolboxTurns
from sglang.srt.runtime.engine_runtime import EngineRuntime


@dataclass(frozen=True, slots=True)
class Words:
    """New text and reasoning. ``piece``: the piece that they were read from, with its calls too."""

    output: Output
    deltas: Sequence[Delta]
    piece: Any


@dataclass(frozen=True, slots=True)
class Calling:
    calls: list[Message]  # the calls that the server begins to run


@dataclass(frozen=True, slots=True)
class Called:
    """``messages``: the assistant's message with the calls, then one message for each result.
    ``failed``: ids of the calls that failed."""

    messages: list[Message]
    failed: frozenset[str]

    @property
    def results(self) -> list[Message]:
        return self.messages[1:]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a reply. ``message``: the last turn's. ``outputs``: the outputs of all turns.
    ``thoughts``: number of reasoning tokens of all turns."""

    call: ChatCall
    reader: ReplyReader
    message: Message
    outputs: list[Output]
    thoughts: int


Part: TypeAlias = Words | Calling | Called | Ending


class ReadPiece(Protocol):
    @property
    def deltas(self) -> list[Delta]: ...


class TurnReading(Protocol):
    """Reader of the output of one turn."""

    @property
    def reader(self) -> ReplyReader: ...

    def ready(self, output: Output, interval: int) -> bool: ...

    def take(self, output: Output, finished: bool) -> Sequence[ReadPiece]: ...


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Deltas, and the indices of the tokens that they were read from."""

    deltas: list[Delta]
    tokens: range


class PlainReading:
    """Reader that returns all new deltas as one piece."""

    def __init__(self, call: ChatCall) -> None:
        self.reader = call.reader()

    def ready(self, output: Output, interval: int) -> bool:
        return self.reader.sent.ready(output, interval)

    def take(self, output: Output, finished: bool) -> list[TokenRange]:
        return [TokenRange(*self.reader.take(output, finished))]


class ToolboxReply:
    """The reply to one request.

    Args:
        first: the call of the first turn.
        interval: tokens between two ``Words``; None: one ``Words`` for each turn.
        reading: makes the reader of a turn.
        id_of: makes the id of a tool call from the turn's number and the call's index.
    """

    def __init__(
        self, runtime: EngineRuntime, caller: Caller, turns: ToolboxTurns, first: ChatCall,
        interval: int | None, reading: Callable[[ChatCall], TurnReading] = PlainReading,
        id_of: Callable[[int, int], str] = lambda turn, index: new_call_id(),
    ) -> None:  # fmt: skip
        self._runtime, self._caller, self._turns = runtime, caller, turns
        self._call, self._interval = first, interval
        self._reading, self._id_of = reading, id_of

    async def parts(self) -> AsyncGenerator[Part, None]:
        """Run all turns, and yield the parts of the reply. Raises RequestError and EngineLost."""
        outputs, thoughts, goes_on = list[Output](), 0, True
        while goes_on:
            call, reading = self._call, self._reading(self._call)
            found = list[Delta]()
            async with aclosing(self._words(call, reading)) as words:
                async for part in words:
                    found += part.piece.deltas
                    output = part.output
                    yield part
            outputs.append(output)
            thoughts += thought_tokens(self._runtime, call, output, reading.reader)
            turn = len(outputs) - 1
            message = message_of(found, id_of=lambda index, turn=turn: self._id_of(turn, index))  # type: ignore[misc]
            goes_on = False
            own = self._turns.own(message) if reading.reader.called else []
            parked = None
            if not own or own == message["tool_calls"]:  # else the client sees only some calls
                parked = park_at_call(self._runtime, call, output, reading.reader, self._caller)
            if own:
                try:
                    yield Calling(own)
                    message, added, goes_on = await self._turns.after(message)
                except BaseException:  # no request will continue the parked context
                    if parked is not None:
                        self._runtime.parked.drop(parked)
                    raise
                yield Called(added, self._turns.failed)
            if goes_on:
                following = await read_chat(self._runtime, self._turns.body, caller=self._caller)
                rid = call.request.rid
                self._call = replace(following, request=replace(following.request, rid=rid))
        yield Ending(call, reading.reader, message, outputs, thoughts)

    async def _words(self, call: ChatCall, reading: TurnReading) -> AsyncGenerator[Words, None]:
        """Run one turn and yield its words; the last ``Words`` has the finished output."""
        whole = self._interval is None
        interval = sys.maxsize if self._interval is None else self._interval
        request = call.request.unread() if whole else call.request
        with call.named():
            async with aclosing(self._runtime.run([request], self._caller)) as items:
                async for _, output in items:
                    # Read ``finish`` once: the output may finish while a part is being sent.
                    finished = output.finish is not None
                    if reading.ready(output, interval):
                        for piece in reading.take(output, finished):
                            kinds = (AnswerWords, Thought)
                            shown = [d for d in piece.deltas if isinstance(d, kinds)]
                            yield Words(output, shown, piece)
