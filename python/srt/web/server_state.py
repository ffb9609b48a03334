"""ServerState: the runtime and the other objects that all routes of one HTTP server share."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence

from sglang.srt.config import Config
from sglang.srt.inferlet.sandbox.program_sandbox import ProgramSandbox
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output
from sglang.srt.runtime.batches.batch_service import BatchService
from sglang.srt.runtime.engine_runtime import EngineRuntime, model_name_of
from sglang.srt.runtime.explanations import Explanations
from sglang.srt.runtime.fleet.engine_fleet import Fleet
from sglang.srt.runtime.programs.program_service import program_service
from sglang.srt.runtime.supervisor import Supervisor
from sglang.srt.runtime.tenants import Tenants
from sglang.srt.runtime.toolbox.tool_processes import Toolbox
from sglang.srt.web.drain import Drain
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.response_store import ResponseStore
from sglang.srt.web.telemetry.metrics import Metrics
from sglang.srt.web.telemetry.request_tracing import Tracing


class ServerState:
    """State of one server. ``run``, ``finish`` and ``admit`` call the runtime for the caller of the
    current request.

    Attributes:
        started: moment of the start, in seconds since the epoch, for display.
        began: the same moment on the monotonic clock.
        fleet: the engines; None if this server cannot change them.
        tracing: sender of spans, if there is one.
        toolbox: the operator's tools, if there are any.
        programs: programs that clients submit as whole graphs.
        inferlets: sandbox of programs that clients upload; None if uploads are disabled.
        batches: files and batches; None without ``--batch-dir``.
        responses: stored answers of ``/v1/responses``.
        open_requests: number of HTTP requests being answered, except monitoring requests.
        drain: the drain of the server.
    """

    def __init__(self, config: Config, completion: Completer) -> None:
        self.tenants = Tenants(config)
        self.metrics = Metrics(model_name_of(config))
        self.explanations = Explanations()
        self.runtime = EngineRuntime(
            config, completion, self.metrics, self.tenants, self.explanations
        )
        self.programs = program_service(self.runtime, lambda: self.toolbox)
        self.responses = ResponseStore(config.server.response_store_bytes)
        self.fleet: Fleet | None = None
        self.tracing: Tracing | None = None
        self.toolbox: Toolbox | None = None
        self.inferlets: ProgramSandbox | None = None
        self.batches: BatchService | None = None
        self.started, self.began = int(time.time()), time.monotonic()
        self.open_requests = 0
        self.drain = Drain(
            config.operations.drain_timeout, lambda: self.open_requests, self.runtime.end
        )

    @property
    def config(self) -> Config:
        return self.runtime.config

    @property
    def body_limit(self) -> int:
        return self.runtime.config.server.max_body_bytes

    @property
    def draining(self) -> bool:
        """Whether the server drains, and so takes no new requests."""
        return self.drain.begun

    def run(
        self, requests: Sequence[CompletionRequest]
    ) -> AsyncGenerator[tuple[int, Output], None]:
        return self.runtime.run(requests, CALLER.get())

    async def finish(self, requests: Sequence[CompletionRequest]) -> list[list[Output]]:
        return await self.runtime.finish(requests, CALLER.get())

    def admit(self, count: int) -> None:
        self.runtime.admit(count, CALLER.get())

    def engine_changed(self, engine: Supervisor) -> None:
        """Handle the loss or the restart of an engine."""
        if engine.client.lost is None:
            if engine.restarts:
                self.metrics.engine.restarted(engine.name)
            self.runtime.restarted(engine.client)
