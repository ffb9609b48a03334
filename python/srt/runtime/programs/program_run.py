"""ProgramRun: a submitted program that runs. Each stream is a task, and each value a promise."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable
from typing import Any, Protocol

from sglang.semantics.choice_requests import NoChoice
from sglang.semantics.transforms import TransformError
from sglang.srt.core.call_hints import CallHint
from sglang.srt.programs.call_graph import CallGraph
from sglang.srt.programs.needed_steps import NeededSteps
from sglang.srt.programs.submission import (
    CALLS,
    MAIN,
    AnyStep,
    ForkStep,
    JoinStep,
    Key,
    ProgramStream,
    Ref,
    ToolStep,
    TransformStep,
    ValueStep,
)
from sglang.srt.programs.submission_check import CheckedProgram
from sglang.srt.requests.completion.completer import EngineLost
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import Caller
from sglang.srt.runtime.programs.model_calls import Body, CallPlace, Fields
from sglang.srt.runtime.programs.promises import Promise, StepFailed, StepFailure
from sglang.srt.runtime.programs.run_events import RunEvents
from sglang.srt.runtime.programs.run_tools import RunTools
from sglang.srt.runtime.programs.semantic_variables import SemanticVariable
from sglang.srt.runtime.programs.step_runner import Shower, StepRunner
from sglang.srt.runtime.programs.stream_text import StreamText

AT_ONCE = 64  # steps of a stream after which it yields to other tasks
TOLD = (*CALLS, TransformStep)
"""Steps whose beginning and end are events."""


class RunSession(Protocol):
    """Interface of a run's session.

    Attributes:
        variables, runs: all variables and runs of the session, by id.
    """

    variables: dict[str, SemanticVariable]
    runs: dict[str, ProgramRun]

    def hold(self, size: int) -> None:
        """Count the bytes of a new value. Raises RequestError if the tenant's limit is exceeded."""

    def held(self, size: int) -> None:
        """Count bytes that exist already, whatever the limit is."""

    def run_ended(self, run: ProgramRun) -> None:
        """Release what the session holds for a run that has ended."""


class CallHints(Protocol):
    """Interface of a run's application. ``arrived``: moment of its arrival."""

    arrived: float

    def hint(self, run: str, step: int) -> CallHint:
        """Return facts for the engine about a call."""
        ...


class StreamRun:
    """The state of one stream of a run.

    Attributes:
        position: index of the running step.
        begun: the task has started to run. over: no further step will run.
        limit: index of the first step that must not run. end: the reason for the limit.
    """

    def __init__(self, stream: ProgramStream) -> None:
        self.stream, self.position = stream, 0
        self.begun = self.over = False
        self.task: asyncio.Task[None] | None = None
        self.limit = len(stream.steps)
        self.end: StepFailure | None = None

    def stop(self, position: int, failure: StepFailure) -> bool:
        """Run no step from ``position`` on. Return True if the stream had not begun, and so will
        never run."""
        position = max(position, self.position)
        if self.over or position >= self.limit:
            return False
        self.limit, self.end = position, failure
        if self.task is not None and self.begun and self.position == position:
            self.task.cancel()  # a task that has not begun would end without running ``_work``
        return self.task is None and position == 0


class ProgramRun:
    """The run of one submitted program.

    Attributes:
        variables: variables by the step that sets them and their name.
        inputs: variables that the client must set, by name.
        ends: promises of a stream's text after each step that a join waits for.
        read_as_text: steps whose output another stream appends unchanged.
        states: states of calls: running, done, failed, cancelled; a missing call waits.
    """

    def __init__(
        self,
        program: CheckedProgram,
        graph: CallGraph,
        session: RunSession,
        tools: RunTools,
        caller: Caller,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.program, self.graph, self.session, self.tools = program, graph, session, tools
        self.application: CallHints | None = None
        self.caller = caller
        self.inputs: dict[str, SemanticVariable] = {}
        self.log = RunEvents()
        self.states: dict[int, str] = {}
        made = [(n, name) for n in program.before for name in program.steps[n].made()]
        self.variables: dict[Key, SemanticVariable] = {
            (n, name): SemanticVariable(name, self.id, n, f"{self.id}-{index}")
            for index, (n, name) in enumerate(made)
        }
        steps = program.steps.values()
        joins = [step for step in steps if isinstance(step, JoinStep)]
        for step in steps:
            if isinstance(step, ToolStep) and step.where == "client":
                self.variables[step.number, step.name].remote = True
        self.ends: dict[int, Promise] = {end: Promise() for join in joins for end in join.ends}
        self.read_as_text = frozenset(
            step.of.step for step in steps if isinstance(step, ValueStep) and not step.transform
        )
        self._streams = {n: StreamRun(stream) for n, stream in program.streams.items()}
        self._left, self._runner = len(self._streams), StepRunner(self)
        self._places = {
            step.number: (run, position)
            for run in self._streams.values()
            for position, step in enumerate(run.stream.steps)
        }
        makers = [n for n, step in program.steps.items() if step.made() or isinstance(step, CALLS)]
        self._needs = NeededSteps(program.before, frozenset(makers), self._wanted)
        self._ending: list[tuple[StreamRun, StepFailure | None]] = []

    @property
    def over(self) -> bool:
        """Whether all streams have ended."""
        return not self._left

    def start(self) -> None:
        """Begin the main stream and all other streams that do not start at a fork."""
        for number, run in self._streams.items():
            begin = run.stream.begin
            if number == MAIN or (begin is not None and begin.fork is None):
                self.begin(number, StreamText())

    def begin(self, number: int, text: StreamText) -> None:
        """Begin a stream, unless it was stopped."""
        run = self._streams[number]
        if not run.over:
            run.task = asyncio.get_running_loop().create_task(self._work(run, text))

    # -- streams -----------------------------------------------------------------------------------

    async def _work(self, run: StreamRun, text: StreamText) -> None:
        run.begun, steps, failure = True, run.stream.steps, None
        begin = run.stream.begin
        step: AnyStep | None = None
        try:
            if begin is not None and begin.number in self.ends:
                self.ends[begin.number].set(text.snapshot())
            while run.position < run.limit:
                step = steps[run.position]
                await self._runner.visit(step, text)
                if step.number in self.ends:
                    self.ends[step.number].set(text.snapshot())
                run.position += 1
                if run.position % AT_ONCE == 0:
                    await asyncio.sleep(0)
            failure = run.end
        except asyncio.CancelledError:
            failure = run.end or StepFailure(-1, "", "the server ends", "draining", True)
        except Exception as error:
            assert step is not None
            failure = failure_of(step, error)
        self._over(run, failure)

    def _over(self, run: StreamRun, failure: StepFailure | None) -> None:
        """End a stream: all its steps are done, or ``failure`` prevents the step at ``position``
        and those after it. Streams that the stream would have begun end too, one after another."""
        if run.over:
            return
        run.over = True
        self._ending.append((run, failure))
        if len(self._ending) > 1:
            return  # the loop below is at work
        while self._ending:
            self._end_stream(*self._ending[0])
            self._ending.pop(0)
        if not self._left:
            self._end()

    def _end_stream(self, run: StreamRun, failure: StepFailure | None) -> None:
        self._left -= 1
        if failure is None:
            return
        begin, rest = run.stream.begin, run.stream.steps[run.position :]
        if run.task is None and begin is not None and begin.number in self.ends:
            self.ends[begin.number].fail(failure)
        for step in rest:
            self._fail(step, failure)
        dropped = self._needs.end([step.number for step in rest])
        if dropped and (failure.cancelled or not self.log.followers):
            reason = f"nothing needs it any more, because of {failure.cause.message}"
            self._stop(dropped, StepFailure(-1, "", reason, failure.code, True))

    def _fail(self, step: AnyStep, failure: StepFailure) -> None:
        """Fail the variables of a step that will not run, and the streams that it would begin."""
        own = failure if failure.step == step.number else failure.of(step.number, str(step))
        for name in step.made():
            self.variables[step.number, name].fail(own)
        if step.number in self.ends:
            self.ends[step.number].fail(own)
        state = "cancelled" if own.cancelled else "failed"
        if isinstance(step, CALLS):
            self.states[step.number] = state
        if isinstance(step, TOLD) or own is failure:
            event = {"event": state, "step": step.number, "message": own.message}
            if not own.cancelled:
                event |= {"code": own.code, "at": step.at, "cause_step": own.cause.step}
            self.log_event(event)
        for child in step.children if isinstance(step, ForkStep) else ():
            self._over(self._streams[child], own)

    def _end(self) -> None:
        self.ends.clear()  # no join reads them any more
        states = set(self.states.values())
        word = "failed" if "failed" in states else "cancelled" if "cancelled" in states else "done"
        if any(v.failure is not None for v in self.variables.values()) and word == "done":
            word = "failed"
        self.log_event({"event": "end", "state": word})
        self.session.run_ended(self)

    # -- cancellation ------------------------------------------------------------------------------

    def close(self, failure: StepFailure) -> None:
        """End all streams that are not done, with this failure."""
        self._stop(self._places, failure)

    def cancel(self, variable: SemanticVariable | None = None) -> None:
        """Cancel a variable and the steps that only it needs; None: cancel the whole run."""
        if variable is None:
            self.close(StepFailure(-1, "", "the submission was cancelled", "conflict", True))
        elif not variable.settled:
            step = self.program.steps[variable.step]
            failure = StepFailure(step.number, str(step), "it was cancelled", "conflict", True)
            self._stop([*self._needs.end([step.number]), step.number], failure)

    def _wanted(self, step: int) -> bool:
        """Whether a client waits for a variable of a step, or has given criteria for one."""
        made = (self.variables[step, name] for name in self.program.steps[step].made())
        return any(each.gets or each.criteria.level for each in made)

    def _stop(self, steps: Iterable[int], failure: StepFailure) -> None:
        """Run none of these steps, and no step after them in their streams."""
        for step in steps:
            run, position = self._places[step]
            if run.stop(position, failure):
                self._over(run, failure)
        if steps is self._places:  # streams without steps
            for run in self._streams.values():
                if not run.stream.steps and run.task is None:
                    self._over(run, None)

    # -- as StepHost -------------------------------------------------------------------------------

    def promise(self, ref: Ref) -> SemanticVariable:
        """Return the variable of this run, or of its session, that ``ref`` names."""
        if ref.step is not None and ref.name is not None:
            return self.variables[ref.step, ref.name]
        assert ref.var is not None
        return self.session.variables[ref.var]

    def hold(self, size: int) -> None:
        """Count the bytes of a new value. Raises RequestError if the tenant's limit is exceeded."""
        self.session.hold(size)

    def log_event(self, event: dict[str, Any]) -> None:
        """Send an event to the followers of the run, and count its bytes to the session."""
        self.session.held(self.log.add(event))

    def started(self, step: AnyStep) -> None:
        """Record that a call begins."""
        self.states[step.number] = "running"
        self.log_event({"event": "started", "step": step.number})

    def done(self, step: AnyStep, facts: dict[str, Any]) -> None:
        """Record that a call has succeeded. ``facts``: further fields of the event."""
        self.states[step.number] = "done"
        self.log_event({"event": "done", "step": step.number, **facts})

    async def ask(
        self, step: AnyStep, fields: Fields, body: Body, text: StreamText, shower: Shower | None
    ) -> Any:
        """Return the model's answer to ``body()``. Raises RequestError and EngineLost."""
        salt = f"{fields.get('cache_salt')}\0{fields.get('extra_key')}\0{fields.get('lora_path')}"
        place = self._place(step.number, text, salt)
        if shower is None:
            return await self.tools.calls.ask(body, place)
        return await self.tools.calls.ask(body, place, *shower)

    async def compute_ahead(self, prompt: str, text: StreamText) -> bool:
        """Compute a prefix of a later prompt; return whether it was computed."""
        return await self.tools.calls.compute_ahead(prompt, self._place(-1, text, ""), None)

    def _place(self, step: int, text: StreamText, salt: str) -> CallPlace:
        assert self.application is not None
        caller = self.caller
        rid = f"{self.id}-{step}" if step >= 0 else f"{self.id}-ahead"
        return CallPlace(
            caller, self.application.hint(self.id, step), self.application.arrived, rid,
            text.prefixes(f"{caller.namespace}\0{salt}") if step >= 0 else (),
        )  # fmt: skip


def failure_of(step: AnyStep, error: Exception) -> StepFailure:
    """Return the failure of a step whose execution raised ``error``."""
    if isinstance(error, StepFailed):
        return error.failure.of(step.number, str(step))
    if isinstance(error, (RequestError, TransformError, NoChoice)):
        code = error.code if isinstance(error, RequestError) else "invalid_value"
        return StepFailure(step.number, str(step), str(error), code)
    if isinstance(error, EngineLost):
        return StepFailure(
            step.number, str(step), f"the engine has stopped: {error}", "engine_lost"
        )
    return StepFailure(step.number, str(step), f"{type(error).__name__}: {error}", "internal_error")
