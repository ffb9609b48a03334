"""HeldSpace: a program's pages, embeddings and forwards, and the engine's space behind them.

Calls change what is known here at once; what the engine must do is a command in a queue, whose
verbs are made when the dispatcher lets it leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sglang.srt.core.space_messages import (
    CloseSpace,
    ForwardDone,
    OpenSpace,
    SpaceEnded,
    SpaceEvent,
    SpaceFailed,
    SpaceReply,
    SpaceVerb,
)
from sglang.srt.inferlet.dispatch import Command
from sglang.srt.inferlet.distributions import narrowed
from sglang.srt.inferlet.driver import Fault
from sglang.srt.inferlet.embed_map import EmbedMap, TokenOutput
from sglang.srt.inferlet.packed_numbers import unpacked
from sglang.srt.inferlet.page_map import PageMap
from sglang.srt.inferlet.row_plan import RowPlan

FORWARD, MEMORY, SHARE = "forward", "memory", "share"


class Link(Protocol):
    """The methods of ``engine/client.Client`` that spaces need."""

    def new_id(self) -> int: ...

    def send(self, *verbs: Any) -> None: ...

    def listen(self, space: int, listener: Callable[[SpaceEvent], None]) -> None: ...

    def unlisten(self, space: int) -> None: ...


class AnswerSink(Protocol):
    """A session, which takes the answers and ends."""

    def tell(self, call: int, queue: int, value: Any) -> None:
        """Answer a call of a program's queue."""

    def refuse(self, call: int, queue: int, fault: Fault) -> None:
        """A call of a queue has failed; -1: one that needs no answer."""

    def ended(self, command: SpaceCommand) -> None:
        """A command that had left is done."""

    def settle(self, handle: int) -> None:
        """Commands of a queue have ended."""


@dataclass(eq=False)
class SpaceCommand(Command):
    """A command of a program's space.

    Attributes:
        space: whose it is.
        handle: of its queue in the program.
        verbs: makes its verbs, with requests of ``HeldSpace.expect``.
        row: the forward, of FORWARD.
        open: answers that have not come since it left.
    """

    space: HeldSpace | None = None
    handle: int = 0
    verbs: Callable[[], list[SpaceVerb]] | None = None
    row: RowPlan | None = None
    open: int = 0


@dataclass(eq=False, slots=True)
class ExpectedReply:
    """An answer that is to come: of a forward, what is after ``output``; or for ``reply``."""

    command: SpaceCommand
    call: int = -1
    output: TokenOutput | None = None
    last: bool = False
    reply: Callable[[SpaceReply], Any] | None = None


class HeldSpace:
    """Pages and embeddings of one program.

    Attributes:
        pages, embeds: what they hold.
        end: why the space is gone; None while it is not.
    """

    def __init__(
        self, link: Link, page_size: int, answers: AnswerSink, opening: dict[str, Any]
    ) -> None:
        """``opening``: fields of OpenSpace."""
        self.pages, self.embeds = PageMap(page_size), EmbedMap()
        self.end: Fault | None = None
        self._link, self._answers = link, answers
        self._opening = opening
        self._space = -1
        self._expected: dict[int, ExpectedReply] = {}

    @property
    def number(self) -> int:
        """The engine's number, once a command has left."""
        return self._space

    def use_adapter(self, name: str) -> None:
        """Have all forwards use an adapter. Raises ValueError where some have left without it."""
        if self._opening.get("adapter", "") == name:
            return
        if self._space >= 0:
            raise ValueError(
                f"this program's forwards have begun without adapter {name!r}; a program has one "
                "adapter, from its first call that needs the engine"
            )
        self._opening["adapter"] = name

    def settled(self, handle: int) -> None:
        """Commands of a queue have ended as they left."""
        self._answers.settle(handle)

    def expect(self, expected: ExpectedReply) -> int:
        """A request whose answer is ``expected``."""
        request = self._link.new_id()
        self._expected[request] = expected
        expected.command.open += 1
        return request

    def leave(self, command: SpaceCommand) -> list[SpaceVerb]:
        """The verbs of a command, which leaves now; the space is opened where it is the first.
        Where the space has ended there are none, and the command is refused."""
        if self.end is not None:
            self._refuse_late(command, self.end)
            return []
        out: list[SpaceVerb] = []
        if self._space < 0:
            self._space = self._link.new_id()
            self._link.listen(self._space, self.take)
            out.append(OpenSpace(self._space, **self._opening))
        if command.row is not None:
            made = self._forward(command, command.row)
            return out + made if out else made
        assert command.verbs is not None
        return out + command.verbs()

    def _refuse_late(self, command: SpaceCommand, fault: Fault) -> None:
        """Refuse a command that was pending when its space ended."""
        if command.row is not None:
            self._refuse_row(command, command.row, fault)
        elif command.verbs is not None:
            command.verbs()  # says which call expects an answer
            expected, self._expected = self._expected, {}
            for one in expected.values():
                self._refuse(one, fault)
            command.open = 0

    def _forward(self, command: SpaceCommand, row: RowPlan) -> list[SpaceVerb]:
        for output in row.outputs:
            output.send()
        if row.follows is not None and row.follows.failed:
            self._refuse_row(command, row, Fault("lost", row.follows.loss))
            return []
        try:
            ends = row.ends()
        except ValueError as error:
            self._refuse_row(command, row, Fault("invalid", str(error)))
            return []
        requests = [
            self.expect(ExpectedReply(command, output=row.output(end), last=end == len(row.tokens)))
            for end in ends
        ]
        if row.future is not None:
            row.future.request = requests[-1]
        return row.verbs(self._space, ends, requests)  # type: ignore[return-value]

    def take(self, event: SpaceEvent) -> None:
        """An event of the engine."""
        if isinstance(event, SpaceEnded):
            self._fail_all(Fault(event.code, event.message))
            return
        if isinstance(event, SpaceFailed):
            self.pages.lose(unpacked(event.lost))
        expected = self._expected.pop(event.request, None)
        if expected is None:
            if isinstance(event, SpaceFailed):
                self._answers.refuse(-1, -1, Fault(event.code, event.message))
            return
        if isinstance(event, SpaceFailed):
            row = expected.command.row
            if row is not None and row.follows is not None and row.follows.failed:
                self._refuse(expected, Fault("lost", row.follows.loss))
            else:
                self._refuse(expected, Fault(event.code, event.message))
        elif isinstance(event, ForwardDone):
            self._answer(expected, event)
        elif expected.reply is not None:
            value = expected.reply(event)
            if expected.call >= 0:
                self._answers.tell(expected.call, expected.command.handle, value)
        expected.command.open -= 1
        if not expected.command.open:
            self._answers.ended(expected.command)

    def _answer(self, expected: ExpectedReply, event: ForwardDone) -> None:
        handle, row = expected.command.handle, expected.command.row
        if expected.output is not None:
            expected.output.done = event
            self.answer_asked(expected.output, handle)
        if expected.last and row is not None and row.sampling is not None:
            if row.sampling.future is not None:
                row.sampling.future.sampled(event.token)
            self._answers.tell(row.sampling.call, handle, event.token)

    def answer_asked(self, output: TokenOutput, queue: int) -> None:
        """Answer the calls that wait for a distribution, which has come or has failed."""
        asked, output.asked = output.asked, []
        for call in asked:
            if output.failed is not None:
                self._answers.refuse(call.id, queue, output.failed)
            else:
                assert output.done is not None
                self._answers.tell(call.id, queue, narrowed(output, output.done, call))

    def _refuse(self, expected: ExpectedReply, fault: Fault) -> None:
        row, handle, output = expected.command.row, expected.command.handle, expected.output
        if row is not None and row.future is not None:
            row.future.fail()
        call = expected.call
        if expected.last and row is not None and row.sampling is not None:
            call = row.sampling.call
        if call >= 0 or output is None or not output.asked:
            self._answers.refuse(call, handle, fault)
        if output is not None:
            output.failed = fault
            self.answer_asked(output, handle)

    def _refuse_row(self, command: SpaceCommand, row: RowPlan, fault: Fault) -> None:
        if row.future is not None:
            row.future.fail()
        for output in row.outputs:
            output.failed = fault
            self.answer_asked(output, command.handle)
        call = -1 if row.sampling is None else row.sampling.call
        self._answers.refuse(call, command.handle, fault)

    def _fail_all(self, fault: Fault) -> None:
        self.end = fault
        expected, self._expected = self._expected, {}
        for one in expected.values():
            self._refuse(one, fault)
            one.command.open = 0
        for command in {id(one.command): one.command for one in expected.values()}.values():
            self._answers.ended(command)
        self._answers.refuse(-1, -1, fault)

    def close(self) -> None:
        """Give everything back."""
        if self._space >= 0 and self.end is None:
            self._link.unlisten(self._space)
            self._link.send(CloseSpace(self._space))
        self.end = self.end or Fault("invalid", "the program has ended")
        self._expected.clear()
