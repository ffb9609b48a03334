"""InferletRun: the turns of a program, and the answers that each next one gets."""

from __future__ import annotations

import asyncio
import inspect
import time
import traceback
from collections.abc import Awaitable, Iterator

from sglang.srt.inferlet.call_reading import BadCall
from sglang.srt.inferlet.calls import ProgramCall
from sglang.srt.inferlet.controller import Controller
from sglang.srt.inferlet.driver import CallAnswer, Driver, ProgramEnded, Turn
from sglang.srt.inferlet.inferlet_session import InferletSession

SLICE = 0.005  # seconds for which the calls of one turn may hold the event loop


class InferletRun:
    """One program that runs. It counts as runnable from the moment an answer is handed to it until
    its next turn is over.

    A driver whose turn is a plain function is called from the event loop, one that returns an
    awaitable is awaited by a task.
    """

    def __init__(self, controller: Controller, session: InferletSession, driver: Driver) -> None:
        self._controller, self._session, self._driver = controller, session, driver
        self._answers: list[CallAnswer] = []
        self._busy = False
        self._task: asyncio.Task[None] | None = None
        session.deliver, session.driver = self._take, driver

    def start(self) -> None:
        """Take the first turn, soon."""
        self._ready()

    def _take(self, answer: CallAnswer) -> None:
        self._answers.append(answer)
        if not self._busy:
            self._ready()

    def _ready(self) -> None:
        self._busy = True
        self._controller.woken(self)

    def take_turn(self) -> None:
        """Hand out the answers that have come."""
        if self._session.parts.outcome.ended:
            self._rest()
            return
        answers, self._answers = self._answers, []
        try:
            made = self._driver.turn(answers)
        except BaseException as error:  # sys.exit ends the program, not the loop that runs all
            self._fail(error)
            return
        if not isinstance(made, list) and inspect.isawaitable(made):
            self._task = asyncio.get_running_loop().create_task(self._awaited(made))
        else:
            self._made(made)

    async def _awaited(self, made: Awaitable[Turn]) -> None:
        try:
            turn = await made
        except Exception as error:
            self._fail(error)
        else:
            self._made(turn)

    def _made(self, turn: Turn) -> None:
        most = self._session.parts.limits.calls
        if len(turn) > most:
            self._fail(ProgramEnded("invalid", f"a turn made {len(turn)} calls; at most {most}"))
            return
        self._handle(iter(turn))

    def _handle(self, calls: Iterator[ProgramCall | BadCall]) -> None:
        """Give calls their effect, in slices: between two, other work of the event loop is done."""
        until = time.monotonic() + SLICE
        outcome, handle = self._session.parts.outcome, self._session.handle
        try:
            for call in calls:
                if outcome.ended:
                    break
                handle(call)
                if time.monotonic() >= until:
                    asyncio.get_running_loop().call_soon(self._handle, calls)
                    return
        except Exception as error:  # the control layer has a fault
            self._fail(error)
            return
        self._rest()

    def _fail(self, error: BaseException) -> None:
        own = isinstance(error, ProgramEnded)
        text = str(error) if own else "".join(traceback.format_exception(error))
        self._session.stop(text)
        self._rest()

    def _rest(self) -> None:
        self._busy = False
        self._controller.rests(self)
        if self._answers and not self._session.parts.outcome.ended:
            self._ready()
