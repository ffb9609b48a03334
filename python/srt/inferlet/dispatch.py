"""Dispatcher: pending commands of all queues, and which of them leave together (Pie, section 5.2).

A command is a call that needs the engine. Commands of a queue keep their order. A batch holds
commands of one kind: those at the head of each queue (vertical), of all queues (horizontal), higher
priority first, cut at the tail. Of several kinds the one whose oldest command has waited longest
goes first. No clock: the time is an argument.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, islice

from sglang.srt.inferlet.dispatch_policies import Policy, Situation

FEW = 4  # slots, and lists of slots, that are compared without a set of them


def contains(slots: Sequence[int], slot: int) -> bool:
    """Whether a slot is among some. A loop's forwards read a whole text and write one slot: their
    bytes are searched, which takes a hundredth of making a set of them."""
    if not isinstance(slots, array):
        return slot in slots
    data, width = slots.tobytes(), slots.itemsize
    wanted = slot.to_bytes(width, sys.byteorder)
    at = data.find(wanted)
    while at % width and at >= 0:
        at = data.find(wanted, at + 1)
    return at >= 0


@dataclass(eq=False)
class Command:
    """A pending command.

    Attributes:
        queue: number of its queue.
        kind: commands of one kind may share a batch.
        reads: slots that it reads, also what an earlier one of the same batch has written: all KV
            of a pass is written before any of it is read.
        needs: slots that must have been written before its batch begins (hidden states, sources
            of copies).
        writes: slots that it writes.
        follows: an earlier command of its queue, in flight or pending, whose token it begins with;
            None: all its tokens are known. Such a command *runs ahead*.
        arrived: moment of arrival, in seconds.
        left: moment of leaving.
        ended: moment at which it was done; 0 before.
        number: order of arrival over all queues.
    """

    queue: int
    kind: str
    reads: Sequence[int] = ()
    needs: Sequence[int] = ()
    writes: Sequence[int] = ()
    follows: Command | None = None
    arrived: float = 0.0
    left: float = 0.0
    ended: float = 0.0
    number: int = -1


@dataclass(eq=False)
class CommandQueue:
    """Commands of one queue of a program, oldest first.

    Attributes:
        found: the last result of ``head``; None once a command has come, left or ended since.
    """

    priority: int = 0
    pending: deque[Command] = field(default_factory=deque)
    flying: list[Command] = field(default_factory=list)
    found: list[Command] | None = None

    @property
    def awaited(self) -> int:
        """Number of commands in flight that do not run ahead."""
        return sum(command.follows is None for command in self.flying)

    def head(self, most: int) -> list[Command]:
        """Commands at the head that may leave together, at most ``most``.

        They are of one kind. A command writes and needs no slot that an earlier one writes, and
        writes none that an earlier one reads; commands in flight are earlier ones. Each slot is
        examined ``FEW`` times at most.
        """
        if self.found is None:
            self.found = self._together(most)
        return self.found

    def _together(self, most: int) -> list[Command]:
        if len(self.pending) == 1 and not self.flying:
            return list(self.pending)
        out: list[Command] = []
        earlier = list(self.flying)
        written: set[int] = set()
        used: set[int] = set()  # slots that are read or needed
        reads: list[Sequence[int]] = []  # those of the latest commands, which are not in ``used``
        for command in islice(self.pending, most):
            if out and command.kind != out[0].kind:
                break
            for one in earlier:
                written.update(one.writes)
                used.update(one.needs)
                if one.reads:
                    reads.append(one.reads)
            own = command.writes
            if len(reads) > FEW or len(own) > FEW:
                used.update(*reads)
                reads.clear()
            if not (written.isdisjoint(own) and used.isdisjoint(own)):
                break
            if reads and own and any(contains(some, slot) for some in reads for slot in own):
                break
            if not written.isdisjoint(command.needs):
                break
            out.append(command)
            earlier = [command]
        return out


class Dispatcher:
    """Queues of all programs of one engine.

    The engine holds a command that runs ahead until its token is sampled, and then computes it in
    the next pass. So it need not wait here, and nothing waits here until it is done.

    Attributes:
        last_pass: seconds that the last pass took; 0: there was none.
        batches, left: batches, and commands, that have left.
    """

    def __init__(self, policy: Policy, most: int) -> None:
        """``most``: commands that a batch may have, the engine's limit."""
        self._delay = policy.delay
        self._most = min(most, policy.most) if policy.most else most
        self.queues: dict[int, CommandQueue] = {}
        self._waiting: dict[int, CommandQueue] = {}  # queues with pending commands
        self._latest = 0.0  # moment of the latest command
        self._numbers = count()
        self._flying = 0  # commands in flight that do not run ahead
        self._ahead = 0  # commands pending that do
        self.last_pass = 0.0
        self._idle_since = 0.0
        self.batches = 0
        self.left = 0

    def put(self, command: Command, now: float) -> None:
        """Add a command at the end of its queue, which is made where there is none."""
        command.number, command.arrived = next(self._numbers), now
        queue = self.queues.get(command.queue)
        if queue is None:
            queue = self.queues[command.queue] = CommandQueue()
        queue.pending.append(command)
        queue.found = None
        self._waiting[command.queue] = queue
        self._latest = now
        self._ahead += command.follows is not None

    def prioritize(self, queue: int, priority: int) -> None:
        """Have a queue's commands come before those of queues with a lower priority."""
        self.queues.setdefault(queue, CommandQueue()).priority = priority

    def delay(self, now: float, runnable: int) -> float | None:
        """Seconds until the next batch leaves unless something changes; None: nothing could."""
        heads = [command for queue in self._waiting.values() for command in queue.head(self._most)]
        if not heads:
            return None
        oldest = min(command.arrived for command in heads)
        idle = 0.0 if self._flying else now - self._idle_since
        quiet = now - self._latest
        return self._delay(
            Situation(
                len(heads), now - oldest, quiet, self._flying, runnable, self.last_pass, idle,
                self._ahead,
            )
        )  # fmt: skip

    def take(self, now: float) -> list[Command]:
        """Remove the next batch, in its order; empty where no command may leave."""
        kinds: dict[str, list[tuple[int, int, Command]]] = {}
        for queue in self._waiting.values():
            for command in queue.head(self._most):
                entry = (-queue.priority, command.number, command)
                kinds.setdefault(command.kind, []).append(entry)
        if not kinds:
            return []
        chosen = min(kinds.values(), key=lambda found: min(entry[1] for entry in found))
        batch = [command for _, _, command in sorted(chosen, key=lambda entry: entry[:2])]
        batch = batch[: self._most]
        for command in batch:
            queue = self.queues[command.queue]
            queue.pending.remove(command)
            queue.flying.append(command)
            queue.found = None
            if not queue.pending:
                del self._waiting[command.queue]
            command.left = now
            if command.follows is None:
                self._flying += 1
            else:
                self._ahead -= 1
        self.batches += 1
        self.left += len(batch)
        return batch

    def end(self, command: Command, now: float) -> None:
        """A command that has left is done. One of a queue that was closed: no effect."""
        queue = self.queues.get(command.queue)
        if queue is None or command not in queue.flying:
            return
        queue.flying.remove(command)
        queue.found = None
        command.ended = now
        if command.follows is None:
            self._ended(1, now)
            begun = command.left
        else:  # the command before was computed first
            begun = max(command.left, command.follows.ended)
            command.follows = None  # else a loop's commands would all be kept
        self.last_pass = now - begun or self.last_pass  # what has no answer ends as it leaves

    def close(self, queue: int, now: float) -> None:
        """Forget a queue and its commands."""
        closed = self.queues.pop(queue, None)
        self._waiting.pop(queue, None)
        if closed is not None:
            self._ahead -= sum(command.follows is not None for command in closed.pending)
            self._ended(closed.awaited, now)

    def quiet(self, queue: int) -> bool:
        """Whether a queue has no command pending or in flight."""
        found = self.queues.get(queue)
        return found is None or not (found.pending or found.flying)

    def _ended(self, commands: int, now: float) -> None:
        self._flying -= commands
        if not self._flying:
            self._idle_since = now
