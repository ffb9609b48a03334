"""Metrics: the metrics at /metrics, under the names that gateways and dashboards use.

Labels are few and bounded: the served model's name, templates of routes, status codes, finish
reasons, and names of configured keys.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from sglang.srt.core.messages import Done
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.telemetry.engine_metrics import EngineMetrics, MetricFamilies
from sglang.srt.web.telemetry.gateway_metrics import GatewayMetrics
from sglang.srt.web.telemetry.last_hour import CompletionTimes, LastHour
from sglang.srt.web.telemetry.request_record import RequestRecord, record

_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.0, 5.0)

# Gauges and counters of parked contexts, by their name in ``ParkedStore.counts``.
_PARKED = {
    "parked": ("num_parked_contexts", "contexts that wait for a tool"),
    "parked_bytes": ("parked_bytes", "memory of the server that they take"),
    "resumed": ("resumed_contexts_total", "requests that went on with a parked context"),
    "expired": ("expired_contexts_total", "parked contexts closed at their deadline"),
}

# The same of the gate for programs, by the name in ``ProgramTurns.counts``.
_PROGRAMS = {
    "inside": ("num_programs_inside", "programs that the gate lets run"),
    "waiting": ("num_programs_waiting", "turns that wait at the gate"),
    "working_set": ("program_working_set_tokens", "KV tokens of the programs inside, weighted"),
    "entered": ("programs_entered_total", "programs that the gate has admitted"),
    "put_out": ("programs_put_out_total", "programs that left after their quantum"),
    "turns": ("program_turns_total", "turns that have passed the gate"),
    "seconds": ("program_gate_seconds_total", "seconds that they waited there"),
}

# The same of programs in the sandbox, by the name in ``ProgramSandbox.counts``.
_INFERLETS = {
    "running": ("num_inferlet_runs", "runs of uploaded programs that have not ended"),
    "launched": ("inferlet_runs_total", "runs that were started"),
    "failed": ("inferlet_failures_total", "runs that have ended with an error"),
    "turns": ("inferlet_turns_total", "turns of runs that have ended"),
    "cpu": ("inferlet_cpu_seconds_total", "processor time of runs that have ended"),
    "restarts": ("inferlet_host_restarts_total", "sandboxes started in place of lost ones"),
}


# The same of files and batches, by the name in ``BatchService.counts``.
_BATCHES = {
    "open": ("num_batches", "batches that have not ended"),
    "running": ("num_batch_requests", "requests of batches that run"),
    "file_bytes": ("batch_file_bytes", "bytes of all files in --batch-dir"),
    "answered": ("batch_requests_total", "requests of batches that were answered"),
    "again": ("batch_retries_total", "tries of them that were repeated"),
}

# The same of programs sent whole, by the name in ``ProgramService.counts``.
_SUBMITTED = {
    "sessions": ("num_program_sessions", "open sessions of programs"),
    "alive": ("num_submitted_programs", "submitted programs that run"),
    "variables": ("num_semantic_variables", "semantic variables in open sessions"),
    "value_bytes": ("semantic_value_bytes", "bytes of their values and of events"),
    "calling": ("num_program_calls", "calls of submitted programs at the engine"),
    "waiting": ("num_program_calls_waiting", "calls that wait for their tenant's slots"),
    "submitted": ("submitted_programs_total", "programs submitted"),
    "calls": ("submitted_program_calls_total", "calls that they made"),
    "ahead": ("program_prompts_ahead_total", "prompts computed ahead of their calls"),
    "ahead_tokens": ("program_ahead_tokens_total", "tokens of these"),
}


class ReadCounts:
    """Gauges and counters that copy values of other objects. A counter's name ends with _total."""

    def __init__(self, families: MetricFamilies, names: Mapping[str, tuple[str, str]]) -> None:
        self._metrics = {
            key: families.single(Counter if own[0].endswith("_total") else Gauge, *own)
            for key, own in names.items()
        }
        self._counted = dict.fromkeys(names, 0.0)

    def set(self, counts: Mapping[str, float]) -> None:
        """Set the metrics to these values; metrics without a value are not changed."""
        for key, value in counts.items():
            metric = self._metrics[key]
            if isinstance(metric, Gauge):
                metric.set(value)
            else:
                metric.inc(value - self._counted[key])
                self._counted[key] = value


class Metrics:
    """Metrics of one server.

    Attributes:
        engine: the engine's own numbers, which are read at each scrape.
        gateway: facts for gateways, which are read at each scrape.
        hour: the last hour, for the live view.
    """

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model_name
        families = MetricFamilies(self._registry, model_name)
        one, family = families.single, families.labelled
        self.engine = EngineMetrics(families)
        self.gateway = GatewayMetrics(families, model_name)
        self.hour = LastHour()
        self.prompt_tokens = one(Counter, "prompt_tokens_total", "prompt tokens")
        self.generated = one(Counter, "generation_tokens_total", "generated tokens")
        self.cached_tokens = one(Counter, "cached_tokens_total", "prompt tokens found in the cache")
        self.requests = one(Counter, "num_requests_total", "completions finished")
        self.aborted = one(
            Counter, "num_aborted_requests_total", "completions ended by an abort or a lost client"
        )
        self.rejected = one(Counter, "num_rejected_requests_total", "requests past a limit (429)")
        self.streams = one(Gauge, "num_open_streams", "answers being streamed")
        self.first = one(
            Histogram, "time_to_first_token_seconds", "arrival to first token", buckets=_SECONDS
        )
        self.gap = one(Histogram, "inter_token_latency_seconds", "token to token", buckets=_GAPS)
        self.whole = one(
            Histogram, "e2e_request_latency_seconds", "arrival to end", buckets=_SECONDS
        )
        self.queued = one(
            Histogram, "queue_time_seconds", "arrival to first pass", buckets=_SECONDS
        )
        self._answers = family(Counter, "http_requests_total", "answers", "route", "status")
        self._finishes = family(Counter, "finish_reasons_total", "completions finished", "reason")
        self._tenants = family(Counter, "tenant_requests_total", "answers by key", "tenant")
        self._tokens = family(
            Counter, "tenant_tokens_total", "prompt and generated tokens by key", "tenant"
        )
        self._tool_calls = family(Counter, "tool_calls_total", "calls of the toolbox", "tool")
        self._tool_failures = family(Counter, "tool_failures_total", "those that failed", "tool")
        self._tool_seconds = family(Counter, "tool_seconds_total", "seconds of them", "tool")
        self._parked = ReadCounts(families, _PARKED)
        self._programs = ReadCounts(families, _PROGRAMS)
        self._inferlets = ReadCounts(families, _INFERLETS)
        self._batches = ReadCounts(families, _BATCHES)
        self._submitted = ReadCounts(families, _SUBMITTED)

    @contextmanager
    def watch(self, request: CompletionRequest) -> Iterator[RequestWatch]:
        """Follow the outputs of one request. Leaving the block early counts as an abort."""
        watch = RequestWatch(self, request, record())
        try:
            yield watch
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted.inc(watch.left)
            raise

    @contextmanager
    def open_streams(self) -> Iterator[Callable[[], None]]:
        """Return a block around an answer. It yields a function that the caller calls if the answer
        is a stream."""
        opened: list[Gauge] = []

        def streaming() -> None:
            self.streams.inc()
            opened.append(self.streams)

        try:
            yield streaming
        finally:
            for gauge in opened:
                gauge.dec()

    def answered(self, found: RequestRecord) -> None:
        """Count an HTTP request that has ended."""
        self._answers.labels(self._model, found.route, str(found.status)).inc()
        if found.status == 429:
            self.rejected.inc()
        if found.tenant:
            self._tenants.labels(self._model, found.tenant).inc()

    def finished(self, reason: str) -> None:
        """Count a completion that has ended."""
        self.requests.inc()
        self._finishes.labels(self._model, reason).inc()

    def tool_ran(self, name: str, seconds: float, failed: bool) -> None:
        """Count a call of a tool of the server that has ended."""
        self._tool_calls.labels(self._model, name).inc()
        self._tool_failures.labels(self._model, name).inc(failed)
        self._tool_seconds.labels(self._model, name).inc(seconds)

    def computed(self, done: Done, seconds: float) -> None:
        """Count a prompt that was computed without generating, in ``seconds``."""
        self.finished(done.reason)
        self.whole.observe(seconds)
        self.read(done.stats.prompt_tokens, done.stats.cached_tokens)

    def read(self, prompt: int, cached: int) -> None:
        """Count a computed prompt of ``prompt`` tokens, of which ``cached`` were cached."""
        self.prompt_tokens.inc(prompt)
        self.cached_tokens.inc(cached)
        self.hour.read(prompt, cached)
        self._spend(prompt)
        record().read(prompt, cached)

    def draw(self, tokens: int) -> None:
        """Count generated tokens."""
        self.generated.inc(tokens)
        self._spend(tokens)

    def _spend(self, tokens: int) -> None:
        """Count a tenant's tokens. They are counted as they come, and not at the request's end,
        because a background response outlives its HTTP request."""
        if tenant := CALLER.get().tenant:
            self._tokens.labels(self._model, tenant).inc(tokens)

    def set_counts(
        self,
        parked: Mapping[str, float],
        programs: Mapping[str, float],
        submitted: Mapping[str, float],
        inferlets: Mapping[str, float],
        batches: Mapping[str, float],
    ) -> None:
        """Set the counts of parked contexts, of the gate, of submitted programs, of the sandbox and
        of batches; {} for a part that the server does not have."""
        self._parked.set(parked)
        self._programs.set(programs)
        self._submitted.set(submitted)
        self._inferlets.set(inferlets)
        self._batches.set(batches)

    def render(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)


class RequestWatch:
    """Follower of one request's outputs, for the metrics and for the HTTP request's record.

    ``left``: number of completions that have not ended.
    """

    def __init__(self, metrics: Metrics, request: CompletionRequest, found: RequestRecord) -> None:
        self._metrics, self._request, self._record = metrics, request, found
        self._start = time.monotonic()
        self._seen: dict[int, tuple[int, float]] = {}  # by output: counted tokens, last moment
        self._first: dict[int, float] = {}  # by output: moment of its first token
        self.left = request.sampling.n
        found.begin(request)

    def update(self, output: Output) -> None:
        metrics, now = self._metrics, time.monotonic()
        count, last = self._seen.get(output.index, (len(self._request.generated), self._start))
        fresh = output.completion_tokens - count
        if fresh > 0:
            metrics.draw(fresh)
            if output.index not in self._seen:
                metrics.first.observe(now - self._start)
                self._first[output.index] = now
                self._record.first = self._record.first or now
            else:
                metrics.gap.observe((now - last) / fresh)
            self._seen[output.index] = (output.completion_tokens, now)
        if output.finish is not None:
            if self.left == self._request.sampling.n:  # count the prompt once for n completions
                metrics.read(output.stats.prompt_tokens, output.stats.cached_tokens)
                metrics.queued.observe(output.stats.queue_seconds)
            self.left -= 1
            self._record.finish(self._request, output)
            metrics.whole.observe(now - self._start)
            metrics.hour.finished(self._times(output, now), output.completion_tokens)
            metrics.finished(output.finish.reason)
            if output.finish.reason == "abort":
                metrics.aborted.inc()

    def _times(self, output: Output, now: float) -> CompletionTimes:
        first = self._first.get(output.index, now)
        later = output.completion_tokens - 1
        token = (now - first) / later if later > 0 else None
        return CompletionTimes(first - self._start, token, now - self._start)
