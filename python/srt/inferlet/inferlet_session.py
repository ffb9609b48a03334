"""InferletSession: one run of a program. It executes the program's calls and delivers their
answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from sglang.srt.inferlet import calls as c
from sglang.srt.inferlet.call_reading import BadCall
from sglang.srt.inferlet.driver import CallAnswer, Driver, Fault
from sglang.srt.inferlet.held_space import HeldSpace, SpaceCommand
from sglang.srt.inferlet.inference_calls import RUNTIME_QUEUE, InferenceCalls
from sglang.srt.inferlet.runtime_calls import RuntimeCalls
from sglang.srt.inferlet.served import RunParts


@dataclass(eq=False)
class QueueState:
    """A queue of the program.

    Attributes:
        number: the dispatcher's number of the queue.
        fault: first error of a call without an answer; the next awaited call gets it.
        waiting: calls that wait until the queue is empty.
    """

    number: int
    priority: int = 0
    fault: Fault | None = None
    waiting: list[int] = field(default_factory=list)


class Commands(Protocol):
    """The part of the controller that a session uses."""

    @property
    def traits(self) -> frozenset[str]: ...

    def new_queue(self) -> int: ...

    def set_priority(self, queue: int, priority: int) -> None: ...

    def issue(self, command: SpaceCommand) -> None: ...

    def command_ended(self, command: SpaceCommand) -> None: ...

    def quiet(self, queue: int) -> bool: ...

    def leave(self, session: Any) -> None: ...


class InferletSession:
    """One run of a program. Call every method on the event loop of the controller."""

    def __init__(self, commands: Commands, parts: RunParts) -> None:
        self.parts = parts
        self.queues: dict[int, QueueState] = {}
        self.deliver: Callable[[CallAnswer], None] = lambda answer: None
        self.driver: Driver | None = None
        self._commands = commands
        self._waiting = 0  # calls without their answer
        self._traits = commands.traits
        self._handlers: dict[type, Callable[[Any], None]] = {}
        self._open_queue(RUNTIME_QUEUE)
        owner, info = parts.rights.owner, parts.served.info
        opening = {"owner": owner, "namespace": owner, "most": parts.limits.pages}
        space = HeldSpace(parts.served.link, info.page_size, self, opening)
        self._inference = InferenceCalls(space, self, info, commands.traits)
        self._runtime = RuntimeCalls(parts, self)

    @property
    def space(self) -> HeldSpace:
        return self._inference.space

    def handle(self, call: c.ProgramCall | BadCall) -> None:
        """Execute a call. Its answer is passed to ``deliver``, now or later."""
        self.parts.outcome.calls += 1
        if isinstance(call, BadCall):
            fault = Fault("invalid", f"call {call.id}, {call.message}")
            number = call.id if call.answered else -1
            if number >= 0:
                self._waiting += 1
            self.refuse(number, call.queue, fault)
            return
        if call.answer:
            self._waiting += 1
        queue = getattr(call, "queue", RUNTIME_QUEUE)
        try:
            self._verify(call, queue)
            (self._handlers.get(type(call)) or self._handler(type(call)))(call)
        except PermissionError as error:
            self._refuse_call(call, queue, "denied", error)
        except ValueError as error:
            self._inference.refused(call)
            self._refuse_call(call, queue, "invalid", error)

    def _handler(self, kind: type[c.ProgramCall]) -> Callable[[Any], None]:
        """Return the method that executes calls of a kind. It is looked up once in a run."""
        name = "forward" if issubclass(kind, c.ForwardCall) else c.tag_of(kind)
        room = self._inference if hasattr(self._inference, name) else self._runtime
        found: Callable[[Any], None] = getattr(room, name)
        self._handlers[kind] = found
        return found

    def _verify(self, call: c.ProgramCall, queue: int) -> None:
        most = self.parts.limits.waiting
        if self._waiting > most:
            raise ValueError(f"{most} calls wait for their answer already; await some first")
        if call.trait and call.trait not in self._traits:
            raise ValueError(
                f"model {self.parts.facts.models[0]} has no trait {call.trait!r}; "
                "available_traits lists those that it has"
            )
        if queue not in self.queues and not isinstance(call, c.CreateQueueCall):
            raise ValueError(f"there is no queue {queue}; create_queue makes one")

    def _refuse_call(self, call: c.ProgramCall, queue: int, code: str, error: Exception) -> None:
        message = f"call {call.id}, {c.name_of(call)}: {error}"
        self.refuse(call.id if call.answer else -1, queue, Fault(code, message))

    def _open_queue(self, handle: int) -> QueueState:
        state = self.queues[handle] = QueueState(self._commands.new_queue())
        return state

    def create_queue(self, handle: int) -> None:
        """Open a queue with number ``handle``. Raises ValueError if the number is in use, or there
        are too many queues."""
        if handle in self.queues:
            raise ValueError(f"queue {handle} is in use; take another number")
        if len(self.queues) > self.parts.limits.queues:
            raise ValueError(f"there are {self.parts.limits.queues} queues; use one of them")
        self._open_queue(handle)

    def set_priority(self, handle: int, priority: int) -> None:
        self.queues[handle].priority = priority
        self._commands.set_priority(self.queues[handle].number, priority)

    def synchronize(self, call: int, handle: int) -> None:
        """Answer a call once all commands of a queue have ended."""
        state = self.queues[handle]
        if self._commands.quiet(state.number):
            self.tell(call, handle, None)
        else:
            state.waiting.append(call)

    # Issued, of InferenceCalls.

    def issue(self, command: SpaceCommand) -> None:
        command.queue = self.queues[command.handle].number
        self._commands.issue(command)

    def priority(self, queue: int) -> int:
        return self.queues[queue].priority

    # AnswerSink, of HeldSpace.

    def tell(self, call: int, queue: int, value: Any) -> None:
        """Answer a call with ``value``, or with the error of an earlier call of its queue if there
        is one."""
        fault = self._earlier(queue)
        self._put(CallAnswer(call, None if fault else value, fault))

    def refuse(self, call: int, queue: int, fault: Fault) -> None:
        state = self.queues.get(queue) or self.queues[RUNTIME_QUEUE]
        if call < 0:
            state.fault = state.fault or fault
            return
        self._put(CallAnswer(call, None, self._earlier(queue) or fault))

    def _earlier(self, queue: int) -> Fault | None:
        """Return the error of an earlier call of a queue or of the whole run, and forget it."""
        own, whole = self.queues.get(queue), self.queues[RUNTIME_QUEUE]
        if own is not None and own.fault is not None:
            fault, own.fault = own.fault, None
        elif whole.fault is None:
            return None
        else:
            fault, whole.fault = whole.fault, None
        return fault

    def ended(self, command: SpaceCommand) -> None:
        self._commands.command_ended(command)
        self.settle(command.handle)

    def settle(self, handle: int) -> None:
        """Answer the calls that wait until a queue is empty, if it is empty."""
        state = self.queues.get(handle)
        if state is None or not state.waiting or not self._commands.quiet(state.number):
            return
        waiting, state.waiting = state.waiting, []
        for call in waiting:
            self.tell(call, handle, None)

    def _put(self, answer: CallAnswer) -> None:
        self._waiting -= 1
        if not self.parts.outcome.ended:
            self.deliver(answer)

    def mail_in(self, message: str | bytes) -> None:
        """Take a message of the client. Raises ValueError if too many messages wait."""
        if isinstance(message, str):
            reader = self.parts.mail[0].put(message)
        else:
            reader = self.parts.mail[1].put(message)
        if reader is not None:
            self.tell(reader, RUNTIME_QUEUE, message)

    def stop(self, error: str) -> None:
        """End the run and free what it holds; further calls do nothing. ``error``: the reason; ""
        after success."""
        if self.parts.outcome.ended:
            return
        self.parts.outcome.ended, self.parts.outcome.error = True, error
        if self.driver is not None:
            self.driver.close()
        self._runtime.close()
        self.space.close()
        self._commands.leave(self)
        self.parts.follower.end(error)
