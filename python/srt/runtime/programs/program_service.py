"""ProgramService: submits, reads, answers and cancels the programs of clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Set
from contextlib import aclosing
from hashlib import sha256
from typing import Any

import msgspec
from sglang.srt.config.applications_section import ApplicationsConfig
from sglang.srt.core.clock import SYSTEM_CLOCK, Clock
from sglang.srt.programs.call_graph import CallGraph, call_graph
from sglang.srt.programs.objectives import Criteria, criteria_of
from sglang.srt.programs.placeholders import PromptPlaceholder, submission_of
from sglang.srt.programs.submission import GenStep, Key, Submission, ToolStep
from sglang.srt.programs.submission_check import CheckedProgram, SubmissionError, checked
from sglang.srt.requests.completion.completion_request import sampling_from
from sglang.srt.requests.request_error import RequestError, shown
from sglang.srt.runtime.caller import Caller
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.generate_request import GenerateRequest
from sglang.srt.runtime.offload import LONG, offload
from sglang.srt.runtime.programs.application import Application
from sglang.srt.runtime.programs.model_calls import ModelCalls
from sglang.srt.runtime.programs.program_bodies import (
    CancelBody,
    GetBody,
    SetBody,
    SubmitBody,
    SubmittedReply,
)
from sglang.srt.runtime.programs.program_run import ProgramRun
from sglang.srt.runtime.programs.program_sessions import ProgramSession, ProgramSessions
from sglang.srt.runtime.programs.promises import StepFailed, StepFailure
from sglang.srt.runtime.programs.run_tools import RunTools
from sglang.srt.runtime.programs.semantic_variables import SemanticVariable, size_of
from sglang.srt.runtime.request_fields import convert
from sglang.srt.runtime.toolbox.tool_processes import Toolbox

CHECK_COST = 32  # cost of checking one step, in entries of a list (``offload``)


class GetTimeout(Exception):
    """The value was not ready within the client's timeout."""


class ProgramService:
    """The programs of all tenants of one runtime.

    Attributes:
        submitted: number of programs so far.
    """

    def __init__(
        self,
        limits: ApplicationsConfig,
        tools: RunTools,
        vocab_size: int,
        sessions: ProgramSessions | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """``vocab_size``: the model's, against which sampling parameters are checked."""
        self._limits, self.tools, self._vocab_size = limits, tools, vocab_size
        self._clock, self.submitted = clock, 0
        self.sessions = sessions or ProgramSessions(limits)

    # -- submit ------------------------------------------------------------------------------------

    async def submit(self, body: SubmitBody, caller: Caller) -> tuple[ProgramSession, ProgramRun]:
        """Start a program. Return its session and its run. No step of a refused program runs.

        Raises RequestError.
        """
        prompt, placeholders = body.prompt is None, body.placeholders is None
        if prompt != placeholders or prompt == (body.graph is None):
            raise RequestError("Give prompt and placeholders, or graph.", "graph")
        wishes = _wishes(body.criteria)
        digest = b""
        if body.idempotency_key is not None:
            digest = await offload(LONG + 1, _digest, body)
            if (known := self._same(body, digest, caller)) is not None:
                return known
        inputs = {
            each.name: SemanticVariable(each.name)
            for each in body.placeholders or ()
            if not each.in_out and each.value is None and each.semantic_var_id is None
        }
        with _as_refusal():
            submission = body.graph
            if submission is None:
                size, most = len(body.prompt or ""), self._limits.max_program_steps
                submission = await offload(size, _submission, body, inputs, most)
            size = CHECK_COST * sum(len(stream.steps) for stream in submission.streams)
            program, graph = await offload(size, self._checked, submission)
            if (known := self._same(body, digest, caller)) is not None:
                return known
            _verify_wishes(program, wishes)
            session, run = self._new_run(body, (program, graph), caller, inputs)
        _wish(session, run, wishes)
        if body.idempotency_key is not None:
            key = body.session_id or "", body.idempotency_key
            session.tenant.keys[key] = digest, session, run
            session.keys.append(key)
        self.submitted += 1
        if caller.slot is not None:
            caller.slot.hold()
        if body.stream and body.grown:
            run.log.expect()
        run.start()
        return session, run

    def _same(
        self, body: SubmitBody, digest: bytes, caller: Caller
    ) -> tuple[ProgramSession, ProgramRun] | None:
        """Return the run of an earlier identical request, None if there is none. Raises
        RequestError."""
        now = self._clock.now()
        if body.session_id is not None:
            self.sessions.find(caller.tenant, body.session_id).used = now
        tenant = self.sessions.tenants.get(caller.tenant)
        if body.idempotency_key is None or tenant is None:
            return None
        found = tenant.keys.get((body.session_id or "", body.idempotency_key))
        if found is None:
            return None
        if found[0] != digest:
            raise RequestError(
                "idempotency_key was used for another submission; give each its own.",
                "idempotency_key",
                "conflict",
            )
        found[1].used = now
        return found[1:]

    def _checked(self, submission: Submission) -> tuple[CheckedProgram, CallGraph]:
        """Return the checked program of a submission, and its graph of calls. Raises
        SubmissionError."""
        program = checked(submission, self._limits.max_program_steps)
        toolbox = self.tools.toolbox()
        for step in program.steps.values():
            try:
                if isinstance(step, GenStep):
                    self._verify_gen(step)
                elif isinstance(step, ToolStep) and step.where == "server":
                    _verify_tool(step, toolbox)
            except ValueError as error:
                raise SubmissionError(f"{step}: {error}") from None
        return program, call_graph(program)

    def _verify_gen(self, step: GenStep) -> None:
        """Raise ValueError if a gen step's body is no valid body of ``/generate``."""
        body = convert({**step.body, "text": "x"}, GenerateRequest)
        if not isinstance(body.sampling_params or {}, dict):
            raise ValueError("body.sampling_params must be an object")
        settings: Any = body.sampling_params or {}
        sampling_from(settings).verify(self._vocab_size)

    def _new_run(
        self,
        body: SubmitBody,
        checked: tuple[CheckedProgram, CallGraph],
        caller: Caller,
        inputs: Mapping[str, SemanticVariable],
    ) -> tuple[ProgramSession, ProgramRun]:
        """Return a new run with its variables, in its session. Raises RequestError and
        SubmissionError."""
        program, graph = checked
        own = {variable.id for variable in inputs.values()}
        read = [id for id in program.external if id not in own]
        bound = {p.name: p.semantic_var_id for p in body.placeholders or () if p.in_out}
        if body.session_id is None:
            if ids := [*read, *filter(None, bound.values())]:
                raise _unknown(ids[0])
            session = self.sessions.open(caller.tenant)
        else:
            session = self.sessions.find(caller.tenant, body.session_id)
        try:
            for id in read:
                session.variable(id)
            run = ProgramRun(program, graph, session, self.tools, caller)
            session.verify_room(len(run.variables) + len(inputs))
            outputs = {name: session.variable(id) for name, id in bound.items() if id is not None}
            _verify_apart(outputs)
            waited = _waited_for(run) if outputs else set[str]()
            for name, variable in outputs.items():
                _verify_unbound(name, variable, waited)
        except (RequestError, SubmissionError):
            if body.session_id is None:
                self.sessions.close(session)
            raise
        keys = program.variables() if outputs else {}
        for name, variable in outputs.items():
            _bind(run, keys[name], variable)
        session.runs[run.id] = run
        for variable in (*inputs.values(), *run.variables.values()):
            if variable.id not in session.variables:
                session.add(variable)
        run.inputs = dict(inputs)
        self._join_application(session, run, read)
        return session, run

    def _join_application(self, session: ProgramSession, run: ProgramRun, read: list[str]) -> None:
        """Put a run into the application of the runs that it exchanges values with."""
        makers = [session.variables[id].run for id in read]
        readers = [variable.reader for variable in run.variables.values()]
        others = [session.runs[id] for id in (*makers, *readers) if id]
        applications = list(dict.fromkeys(session.application_of(other) for other in others))
        for variable in (*(session.variables[id] for id in read), *run.inputs.values()):
            variable.reader = variable.reader or run.id
        if not applications:
            applications = [Application(f"{session.tenant.name}/{run.id}", self._clock.now())]
        first = min(applications, key=lambda each: each.arrived)
        first.add(run)
        for other in applications:
            if other is not first:
                first.absorb(other)

    # -- values ------------------------------------------------------------------------------------

    async def get(self, body: GetBody, caller: Caller) -> Any:
        """Wait for the value of a variable and return it.

        Raises RequestError, also for a failed step, and GetTimeout.
        """
        session = self.sessions.find(caller.tenant, body.session_id)
        variable = self._fetched(session, body)
        with self.sessions.using(session):
            variable.gets += 1
            try:
                return await asyncio.wait_for(variable.result(), body.timeout)
            except StepFailed as error:
                raise error.failure.error() from None
            except asyncio.TimeoutError:
                raise GetTimeout(
                    f"The variable {variable.name!r:.80} has no value after {body.timeout:g} s; "
                    "get it again."
                ) from None
            finally:
                variable.gets -= 1

    async def stream(self, body: GetBody, caller: Caller) -> AsyncGenerator[Any, None]:
        """Yield the text of a variable as it grows (``{"text": ..., "state": "pending"}``), and at
        last its value (``{"value": ..., "state": "ready"}``). Raises RequestError, also for a
        failed step."""
        session = self.sessions.find(caller.tenant, body.session_id)
        variable = self._fetched(session, body)
        with self.sessions.using(session):
            run = session.runs.get(variable.run)
            if run is not None:
                run.log.growers += 1
            variable.gets += 1
            try:
                while (text := await variable.growth()) is not None:
                    yield {"text": text, "state": "pending"}
                yield {"value": await variable.result(), "state": "ready"}
            except StepFailed as error:
                raise error.failure.error() from None
            finally:
                variable.gets -= 1
                if run is not None:
                    run.log.growers -= 1

    def _fetched(self, session: ProgramSession, body: GetBody) -> SemanticVariable:
        """Return the variable of a get request, and add the client's criteria to it."""
        try:
            criteria = criteria_of(body.criteria)
        except ValueError as error:
            raise RequestError(f"{error}.", "criteria") from None
        if body.semantic_var_id is None:
            raise RequestError("Give semantic_var_id.", "semantic_var_id")
        variable = session.variable(body.semantic_var_id)
        raise_criteria(session, variable, criteria)
        return variable

    async def events(
        self, session: ProgramSession, run: ProgramRun, grown: bool
    ) -> AsyncGenerator[Any, None]:
        """Yield the events of a run, from its beginning to its end."""
        with self.sessions.using(session):
            async with aclosing(run.log.follow(grown)) as events:
                async for event in events:
                    yield event

    def set(self, body: SetBody, caller: Caller) -> None:
        """Give a variable its value. Raises RequestError."""
        session = self.sessions.find(caller.tenant, body.session_id)
        session.used = self._clock.now()
        variable, value = session.variable(body.semantic_var_id), body.value
        if variable.run and not variable.remote:
            raise RequestError(
                f"The variable {variable.name!r:.80} is made by step {variable.step} of its "
                "program; only inputs and results of a client's tools are set.",
                "semantic_var_id",
                "conflict",
            )
        if variable.remote and not isinstance(value, str):
            raise RequestError("value is the result of a tool; it must be a text.", "value")
        if variable.settled:
            if variable.failure is None and _equal(variable.value, value):
                return
            raise RequestError("The variable has been set.", "semantic_var_id", "conflict")
        variable.size = size_of(value)
        session.hold(variable.size)
        variable.set(value)

    def cancel(self, body: CancelBody, caller: Caller) -> bool:
        """Cancel a variable and the steps that only it needs, or a whole submission. Return whether
        the variable or submission was unfinished. Raises RequestError."""
        session = self.sessions.find(caller.tenant, body.session_id)
        session.used = self._clock.now()
        if (body.semantic_var_id is None) == (body.submission_id is None):
            raise RequestError("Give semantic_var_id or submission_id.", "semantic_var_id")
        if body.submission_id is not None:
            run = session.run(body.submission_id)
            waits = not run.over
            run.cancel()
            return waits
        variable = session.variable(body.semantic_var_id or "")
        waits = not variable.settled
        if not variable.run:
            label = f"variable {variable.name!r:.80}"
            variable.fail(StepFailure(-1, label, "it was cancelled", "conflict", True))
        else:
            session.runs[variable.run].cancel(variable)
        return waits

    def counts(self) -> dict[str, float]:
        """Return gauges and counters by name."""
        tenants = list(self.sessions.tenants.values())
        runs = [run for session in self.sessions.all() for run in session.runs.values()]
        return {
            "sessions": sum(len(tenant.sessions) for tenant in tenants),
            "alive": sum(not run.over for run in runs),
            "variables": sum(tenant.variables for tenant in tenants),
            "value_bytes": sum(tenant.size for tenant in tenants),
            "submitted": self.submitted,
            **self.tools.calls.counts(),
        }

    def reply(self, session: ProgramSession, run: ProgramRun) -> SubmittedReply:
        """Return the reply to a submission, with the ids of its variables."""
        ids = {name: run.variables[key].id for name, key in run.program.variables().items()}
        given = {name: variable.id for name, variable in run.inputs.items()}
        return SubmittedReply(run.id, session.id, {**given, **ids})


def program_service(
    runtime: EngineRuntime, toolbox: Callable[[], Toolbox | None]
) -> ProgramService:
    """Return the ProgramService of a runtime. ``toolbox`` returns the operator's tools, or None if
    there are none."""
    limits = runtime.config.applications
    tools = RunTools(
        ModelCalls(runtime),
        lambda count: runtime.completion.verify_chars(count),
        limits.max_program_value_bytes,
        toolbox, limits.program_ahead_chars, runtime.config.server.stream_interval,
    )  # fmt: skip
    return ProgramService(limits, tools, runtime.info.vocab_size)


def raise_criteria(session: ProgramSession, variable: SemanticVariable, criteria: Criteria) -> None:
    """Add a client's criteria for a variable to the earlier ones."""
    joined = variable.criteria.joined(criteria)
    if joined != variable.criteria:
        variable.criteria = joined
        if variable.run:
            session.application_of(session.runs[variable.run]).changed()


def _verify_wishes(program: CheckedProgram, wishes: Mapping[str, Criteria]) -> None:
    named = program.variables() if wishes else {}
    for name in wishes:
        if name != "*" and name not in named:
            raise SubmissionError(f"criteria names {name!r:.80}, which no step makes")


def _wish(session: ProgramSession, run: ProgramRun, wishes: Mapping[str, Criteria]) -> None:
    """Record the criteria that come with a submission."""
    named = run.program.variables() if wishes else {}
    for name, criteria in wishes.items():
        keys = [named[name]] if name != "*" else list(run.variables)
        for key in keys:
            if name != "*" or not run.graph.is_read(key):
                raise_criteria(session, run.variables[key], criteria)


def _wishes(given: Mapping[str, Any] | None) -> dict[str, Criteria]:
    try:
        return {name: criteria_of(value) for name, value in (given or {}).items()}
    except ValueError as error:
        raise RequestError(f"{error}.", "criteria") from None


def _submission(body: SubmitBody, inputs: Mapping[str, SemanticVariable], most: int) -> Submission:
    placeholders: list[PromptPlaceholder] = body.placeholders or []
    ids = {each.name: each.semantic_var_id for each in placeholders if not each.in_out}
    ids |= {name: variable.id for name, variable in inputs.items()}
    given = {name: id for name, id in ids.items() if id is not None}
    return submission_of(body.prompt or "", placeholders, given, most)


def _bind(run: ProgramRun, key: Key, variable: SemanticVariable) -> None:
    """Bind an output of a run to an existing variable."""
    variable.run, variable.step, variable.name = run.id, key[0], key[1]
    run.variables[key] = variable


def _verify_apart(outputs: Mapping[str, SemanticVariable]) -> None:
    """Raise SubmissionError if two outputs would be one variable."""
    names = dict[str, str]()
    for name, variable in outputs.items():
        if (first := names.setdefault(variable.id, name)) != name:
            raise SubmissionError(
                f"outputs {first!r:.80} and {name!r:.80} have the same semantic_var_id; give each "
                "a variable of its own"
            )


def _verify_unbound(name: str, variable: SemanticVariable, waited: Set[str]) -> None:
    """Raise SubmissionError if a variable cannot be an output of a run that waits for the variables
    with the ids ``waited``."""
    if variable.run or variable.settled:
        raise SubmissionError(
            f"output {name!r:.80} is a semantic variable that has a value or is made already; two "
            "calls cannot make it"
        )
    if variable.id in waited:
        raise SubmissionError(f"output {name!r:.80} is a variable that its own prompt waits for")


def _waited_for(run: ProgramRun) -> set[str]:
    """Return the ids of the variables that a run reads, directly or through the runs that set
    these variables."""
    waiting, seen, found = [run], {run.id}, set[str]()
    while waiting:
        for id in waiting.pop().program.external:
            found.add(id)
            known = run.session.variables.get(id)
            maker = None if known is None else run.session.runs.get(known.run)
            if maker is not None and maker.id not in seen:
                seen.add(maker.id)
                waiting.append(maker)
    return found


def _verify_tool(step: ToolStep, toolbox: Toolbox | None) -> None:
    if toolbox is None:
        raise ValueError("where is server, and this server has no toolbox (--toolbox)")
    if step.tool not in toolbox.tools:
        raise ValueError(f"tool is {step.tool!r:.60}; the toolbox has {', '.join(toolbox.tools)}")


def _unknown(id: str) -> RequestError:
    return RequestError(
        f"The semantic variable {shown(id)} is of a session, and none is given; give session_id.",
        "session_id",
        "not_found",
    )


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


def _digest(body: SubmitBody) -> bytes:
    """Return a digest of the fields that determine a submission."""
    return sha256(msgspec.json.encode([body.prompt, body.placeholders, body.graph])).digest()


class _as_refusal:
    """A block that turns SubmissionErrors into errors of the request."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if isinstance(error, SubmissionError):
            raise RequestError(f"{error}.", "graph") from None
