"""Submittable: methods of a program that submit it to a server, which runs the whole program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from sglang.backend.base import Backend
from sglang.ir.graph import Graph
from sglang.ir.params import GenParams, params_and_arguments
from sglang.run.live_nodes import Tools
from sglang.state import Program

if TYPE_CHECKING:
    from sglang.on_server.server_session import ServerSession
    from sglang.on_server.submitted import Submitted


class Submittable:
    """Base class of programs."""

    arg_names: list[str]

    def _of_graph(self, graph: Graph, tools: Tools) -> Program:
        """Return a program that runs ``graph``."""
        raise NotImplementedError

    def _verify_options(self, **options: Any) -> None:
        """Raise TypeError for a given option that is also the name of an argument."""
        raise NotImplementedError

    def submit(
        self,
        *args: Any,
        backend: Any = None,
        criteria: Any = None,
        session: ServerSession | None = None,
        stream: bool = False,
        server_tools: Collection[str] = (),
        **kwargs: Any,
    ) -> Submitted:
        """Submit the program to a runtime that runs it as a whole, and return at once.

        ``f["x"]`` of the result is the future of variable x, and may be an argument of another
        ``submit`` to the same runtime. ``criteria``: "latency", "throughput", {"ttft_ms": n} or
        {"tpot_ms": n}, for all variables or in a dict by name. ``stream``: the server sends growing
        texts from the beginning. ``server_tools``: names of tools that the server's toolbox runs
        instead of the client. Other keyword arguments: as in ``run``.

        Raises:
            TraceError: the program's flow needs a value that only a run knows.
            ProgramError: only the client can run one of the steps.
            Unsupported: the backend is not a runtime of this project.
        """
        given = {"backend": backend, "criteria": criteria, "session": session}
        self._verify_options(**given, stream=stream or None, server_tools=server_tools or None)
        params, arguments = params_and_arguments(kwargs, self.arg_names)
        options = {"criteria": criteria, "session": session, "stream": stream}
        options["server_tools"] = server_tools
        return self._submitted(args, arguments, params, backend, **options)

    def _sender(self, on: str, params: GenParams, backend: Backend) -> Callable[..., Submitted]:
        """Return a function that submits an item of a batch. Raise Unsupported, ValueError."""
        from sglang.on_server.server_session import service_of

        _verify_on(on)
        service_of(backend)
        return lambda item, trace: self._submitted((), item, params, backend, trace=trace)

    def _submitted(
        self, args: Sequence[Any], arguments: Any, params: GenParams, backend: Any, **options: Any
    ) -> Submitted:
        from sglang.on_server.submit import SubmittedCall, submit

        _verify_on(options.pop("on", "server"))
        program: Any = self
        call = SubmittedCall(program, args, arguments, params)
        return submit(call, backend, self._of_graph, **options)


def _verify_on(on: Any) -> None:
    if on != "server":
        raise ValueError(f"on is {on!r}; give 'server', or leave it out to run here")
