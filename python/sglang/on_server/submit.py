"""Submit: sends a program and its arguments to a server that runs the whole program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sglang.ir.graph import Graph
from sglang.ir.params import GenParams
from sglang.on_server.answered_backend import AnsweredBackend, ProgramResults
from sglang.on_server.answers import Answers
from sglang.on_server.lowering.lower import lower
from sglang.on_server.server_session import LOOP, ServerSession, session_of
from sglang.on_server.submitted import Submitted, criteria_by_name
from sglang.on_server.traced_call import traced_call
from sglang.run.live_nodes import Promised, Tools
from sglang.state import Program
from sglang.views.timeline.tracing import NO_TRACE, Opened

Compile = Callable[[Graph, Tools], Program]


@dataclass(frozen=True)
class SubmittedCall:
    """A program and its arguments. ``params``: sampling parameters, each with a value."""

    program: Program
    args: Sequence[Any]
    arguments: Mapping[str, Any]
    params: GenParams


def submit(
    call: SubmittedCall,
    backend: Any,
    compile: Compile,
    *,
    criteria: Any = None,
    session: ServerSession | None = None,
    stream: bool = False,
    server_tools: Collection[str] = (),
    trace: Opened = NO_TRACE,
) -> Submitted:
    """Send a program to the server of ``backend`` and return at once.

    Args:
        backend: a runtime; None: the session's backend, or that of an argument which is a future.
        compile: makes a program of a graph; that program replays the results.
        criteria: performance criteria of all variables, or by name; see ``VariableFuture.get``.
        stream: the server sends growing texts from the beginning.
        server_tools: names of tools that the server's toolbox runs instead of the client.

    Raises:
        TraceError: the program's flow needs a value that only a run knows.
        ProgramError: only the client can run one of the steps.
        Unsupported: the backend is not a runtime of this project.
        ValueError: the criteria are invalid, or name an unknown variable.
    """
    program = call.program
    graph, tools, arguments = traced_call(program, call.args, call.arguments)
    session = session or _session(program, backend, arguments)
    lowered = lower(graph, arguments, session.backend, call.params, server_tools)
    wishes = criteria_by_name(criteria)
    for name in wishes:
        if name != "*" and name not in lowered.names:
            known = sorted(lowered.names)
            raise ValueError(f"criteria name {name!r}; the program makes {known}")
    answers = Answers()
    submitted = Submitted(lowered, session, answers, wishes, stream)
    results = ProgramResults(answers, lowered.calls, lowered.tools, submitted.set_tool)
    answered = AnsweredBackend(session.backend, results)
    replay = compile(graph, tools)
    state = replay.new_state(answered, call.params, stream=True, loop=LOOP.loop, trace=trace)
    submitted.start(state, partial(replay.astart, state, (), arguments))
    return submitted


def _session(program: Program, backend: Any, arguments: Mapping[str, Any]) -> ServerSession:
    """Return the session of the futures among the arguments, else that of the backend."""
    promises = [value for value in arguments.values() if isinstance(value, Promised)]
    if promises and backend is None:
        found: ServerSession = promises[0].program.session  # type: ignore[attr-defined]
        return found
    return session_of(program.resolved(backend))
