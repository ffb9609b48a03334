"""Controller: the programs of one engine, the dispatcher of their commands, what they share.

driver -- calls --> session -- commands --> dispatcher -- verbs --> engine
       <-- answers --       <------------ events ------------------
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from sglang.srt.core.version import __version__
from sglang.srt.inferlet.dispatch import Dispatcher
from sglang.srt.inferlet.dispatch_policies import DEFAULT, FIRST_PASS, POLICIES
from sglang.srt.inferlet.driver import Facts
from sglang.srt.inferlet.held_space import SpaceCommand
from sglang.srt.inferlet.inferlet_session import InferletSession
from sglang.srt.inferlet.program_limits import ProgramLimits, Rights
from sglang.srt.inferlet.runnable_programs import RunnablePrograms
from sglang.srt.inferlet.served import RunFollower, RunParts, Served
from sglang.srt.inferlet.traits import SUPERTRAITS, traits_of

MOST_COMMANDS = 4096  # commands of a batch
TURNS_SECONDS = 0.005  # for which turns of several programs may hold the event loop


class ReadyRun(Protocol):
    """A run (``inferlet_run``), as the controller sees it."""

    def take_turn(self) -> None: ...


class Controller:
    """Every method belongs to the event loop of the engine's client."""

    def __init__(self, served: Served, policy: str = DEFAULT) -> None:
        """Raises ValueError for an unknown policy."""
        if policy not in POLICIES:
            raise ValueError(f"there is no policy {policy!r}; there are {', '.join(POLICIES)}")
        self.served = served
        self.dispatcher = Dispatcher(POLICIES[policy], MOST_COMMANDS)
        self.traits = frozenset(traits_of(served.info)) - (
            frozenset() if served.leases else {"lease"}
        )
        self._runnable = RunnablePrograms()
        self._queues = itertools.count()
        self._sessions: set[InferletSession] = set()
        self._numbers = itertools.count(1)
        self._ready: deque[ReadyRun] = deque()  # runs that take a turn next
        self._turning = False
        self._soon = False
        self._timer: asyncio.TimerHandle | None = None

    def open(
        self, arguments: Sequence[str], rights: Rights, limits: ProgramLimits, follower: RunFollower
    ) -> InferletSession:
        """A session for a program that is about to start."""
        info = self.served.info
        facts = Facts(
            arguments=list(arguments),
            instance_id=str(next(self._numbers)),
            version=__version__,
            models=[info.model_path],
            traits={info.model_path: [one for one in SUPERTRAITS if one in self.traits]},
            page_size=info.page_size,
            vocab_size=info.vocab_size,
            eos=list(info.eos),
            context_length=info.context_length,
        )
        session = InferletSession(self, RunParts(self.served, facts, rights, limits, follower))
        self._sessions.add(session)
        return session

    # Commands.

    def new_queue(self) -> int:
        return next(self._queues)

    def set_priority(self, queue: int, priority: int) -> None:
        self.dispatcher.prioritize(queue, priority)

    def issue(self, command: SpaceCommand) -> None:
        self.dispatcher.put(command, time.monotonic())
        self.pump_soon()

    def command_ended(self, command: SpaceCommand) -> None:
        self.dispatcher.end(command, time.monotonic())
        self.pump_soon()

    @property
    def runnable(self) -> int:
        """Number of programs whose turn is to be taken, or is taken now."""
        return len(self._runnable)

    def woken(self, run: ReadyRun) -> None:
        """A run has got an answer, or starts: it takes a turn after what runs now."""
        self._runnable.wake(run, time.monotonic())
        self._ready.append(run)
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._take_turns)

    def _take_turns(self) -> None:
        """Have the runs that are ready take their turns, in order, for ``TURNS_SECONDS`` at most.
        Those that are left come after other work of the event loop."""
        ready, until = self._ready, time.monotonic() + TURNS_SECONDS
        try:
            for _ in range(len(ready)):  # not those that get an answer meanwhile
                ready.popleft().take_turn()
                if time.monotonic() >= until:
                    break
        finally:
            self._turning = bool(ready)
            if ready:
                asyncio.get_running_loop().call_soon(self._take_turns)

    def rests(self, run: object) -> None:
        """The turn of a run is over."""
        self._runnable.rest(run)
        if not self._awaited(time.monotonic()):
            self.pump_soon()

    def _awaited(self, now: float) -> int:
        return self._runnable.awaited(now, self.dispatcher.last_pass or FIRST_PASS)

    def pump_soon(self) -> None:
        """Look once, after what runs now, for a batch that may leave."""
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._soon = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while True:
            now = time.monotonic()
            delay = self.dispatcher.delay(now, self._awaited(now))
            if delay is None or delay == float("inf"):
                return
            if delay > 0:
                self._timer = asyncio.get_running_loop().call_later(delay, self._pump)
                return
            self._leave(now)

    def _leave(self, now: float) -> None:
        verbs, ended = [], []
        for command in self.dispatcher.take(now):
            assert isinstance(command, SpaceCommand)
            assert command.space is not None
            verbs += command.space.leave(command)
            if not command.open:
                ended.append(command)
        self.served.link.send(*verbs)
        for command in ended:
            self.dispatcher.end(command, now)
        for command in ended:
            command.space.settled(command.handle)  # type: ignore[union-attr]

    def quiet(self, queue: int) -> bool:
        """Whether a queue has no command pending or in flight."""
        return self.dispatcher.quiet(queue)

    def leave(self, session: InferletSession) -> None:
        """A session has stopped."""
        self._sessions.discard(session)
        now = time.monotonic()
        for state in session.queues.values():
            self.dispatcher.close(state.number, now)
        self.pump_soon()

    def close(self) -> None:
        """End all programs."""
        for session in list(self._sessions):
            session.stop(session.parts.outcome.error or "the programs were stopped")
