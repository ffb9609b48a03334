"""Metrics: what gateways and dashboards read at /metrics, under the names they know.

Labels are few and bounded: the served model's name, templates of routes, status codes, finish
reasons, and names of configured keys.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from sglang.srt.core.messages import Done
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.telemetry.request_record import RequestRecord, record

_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.0, 5.0)

# Gauges, by the name in the engine's statistics.
_GAUGES = {
    "running": ("num_running_reqs", "requests being computed"),
    "waiting": ("num_queue_reqs", "requests waiting"),
    "compiling": ("num_grammar_queue_reqs", "requests whose grammar is being compiled"),
    "total_tokens": ("max_total_num_tokens", "size of the KV cache in tokens"),
    "adapters": ("num_lora_adapters", "adapters loaded"),
    "adapter_bytes": ("lora_adapter_bytes", "memory of the adapters that are loaded"),
    "graph_rows": ("cuda_graph_max_rows", "rows of the largest CUDA graph; 0: there are none"),
    "fallbacks": ("num_fallbacks", "kernels or graphs that failed when the engine started"),
    "evictable_tokens": ("num_evictable_tokens", "KV tokens that only the prefix cache holds"),
    "host_tokens": ("num_host_tokens", "KV tokens in host memory"),
    "parked": ("num_parked_contexts", "Contexts that wait for a tool"),
    "parked_tokens": ("num_parked_tokens", "KV tokens on the device that only these had"),
    "host_total_tokens": ("max_host_num_tokens", "host memory for KV, in tokens"),
}
# Counters, likewise.
_COUNTERS = {
    "passes": ("forward_passes_total", "forward passes"),
    "failed_passes": ("failed_passes_total", "forward passes that raised"),
    "computed_tokens": ("computed_tokens_total", "tokens that went through a forward pass"),
    "forced_tokens": ("forced_tokens_total", "tokens forced by a grammar"),
    "drafted_tokens": ("drafted_tokens_total", "draft tokens"),
    "accepted_tokens": ("accepted_tokens_total", "draft tokens accepted"),
    "encoded_media": ("encoded_media_total", "images and videos that the vision tower has read"),
    "reread_media": ("reread_media_total", "images and videos whose hidden states were kept"),
    "compiled_kernels": ("kernel_compilations_total", "GPU kernels compiled while requests waited"),
    "evicted_tokens": ("evicted_tokens_total", "KV tokens evicted from the prefix cache"),
    "stored_tokens": ("stored_tokens_total", "KV tokens copied to host memory"),
    "loaded_tokens": ("loaded_tokens_total", "KV tokens copied from host memory"),
    "tool_seconds": ("tool_seconds_total", "Seconds of the calls that contexts waited for"),
    "parked_expired": ("parked_expired_total", "Waits for a tool that reached their deadline"),
    "parked_yielded": ("parked_yielded_total", "Times that memory took KV of a waiting context"),
    "retractions": ("num_retractions_total", "running requests sent back to the queue"),
    "postponed_rows": ("postponed_rows_total", "rows whose mask a later pass made"),
    "failed": ("num_failed_requests_total", "requests that the engine failed"),
    "grammars_compiled": ("grammar_compilations_total", "grammars compiled"),
    "grammar_hits": ("grammar_cache_hits_total", "grammars found compiled"),
    "grammar_failures": ("grammar_failures_total", "constraints that were refused"),
    "grammar_kills": ("grammar_kills_total", "compile processes that took too much"),
    "bad_frames": ("bad_frames_total", "malformed frames dropped"),
    "failed_audits": ("failed_audits_total", "audits of the KV memory that found a fault"),
}


class Metrics:
    """Metrics of one server. Counters grow with the requests; the engine's numbers are read at each
    scrape."""

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model_name
        one, family = self._make, self._family
        self.prompt_tokens = one(Counter, "prompt_tokens_total", "prompt tokens")
        self.generated = one(Counter, "generation_tokens_total", "generated tokens")
        self.cached_tokens = one(Counter, "cached_tokens_total", "prompt tokens found in the cache")
        self.requests = one(Counter, "num_requests_total", "completions finished")
        self.aborted = one(
            Counter, "num_aborted_requests_total", "completions ended by an abort or a lost client"
        )
        self.rejected = one(Counter, "num_rejected_requests_total", "requests past a limit (429)")
        self.restarts = one(Counter, "engine_restarts_total", "engines in place of a lost one")
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
        self._gauges = {key: one(Gauge, *names) for key, names in _GAUGES.items()}
        self._counters = {key: one(Counter, *names) for key, names in _COUNTERS.items()}
        self._counted = dict.fromkeys(_COUNTERS, 0.0)
        self._up = one(Gauge, "engine_up", "1 while there is an engine")
        self._used = one(Gauge, "num_used_tokens", "KV tokens of running requests")
        self._usage = one(Gauge, "token_usage", "their share of the KV cache")
        self._rate = one(Gauge, "gen_throughput", "tokens generated a second")
        self._hits = one(Gauge, "cache_hit_rate", "share of prompt tokens cached")
        self._accepted = one(Gauge, "spec_accept_rate", "accepted share of draft tokens")
        self._last = (time.monotonic(), 0.0)

    def _family(self, kind: Any, name: str, help: str, *labels: str, **options: Any) -> Any:
        names = ["model_name", *labels]
        return kind(f"sglang:{name}", help, names, registry=self._registry, **options)

    def _make(self, kind: Any, name: str, help: str, **options: Any) -> Any:
        return self._family(kind, name, help, **options).labels(self._model)

    @contextmanager
    def watch(self, request: CompletionRequest) -> Iterator[RequestWatch]:
        """Follow the outputs of one request, which its caller may leave before the end."""
        watch = RequestWatch(self, request, record())
        try:
            yield watch
        except (GeneratorExit, asyncio.CancelledError):
            self.aborted.inc(watch.left)
            raise

    @contextmanager
    def open_streams(self) -> Iterator[Callable[[], None]]:
        """A context around an answer. It yields a function to be called where the answer is a
        stream."""
        opened: list[Gauge] = []

        def streaming() -> None:
            self.streams.inc()
            opened.append(self.streams)

        try:
            yield streaming
        finally:
            for gauge in opened:
                gauge.dec()

    def restarted(self) -> None:
        """The engine is another one, which counts from 0: that is added."""
        self.restarts.inc()
        self._counted = dict.fromkeys(_COUNTERS, 0.0)

    def answered(self, found: RequestRecord) -> None:
        """An HTTP request has ended."""
        self._answers.labels(self._model, found.route, str(found.status)).inc()
        if found.status == 429:
            self.rejected.inc()
        if found.tenant:
            self._tenants.labels(self._model, found.tenant).inc()

    def finished(self, reason: str) -> None:
        """A completion has ended."""
        self.requests.inc()
        self._finishes.labels(self._model, reason).inc()

    def computed(self, done: Done, seconds: float) -> None:
        """A prompt was computed without generating."""
        self.finished(done.reason)
        self.whole.observe(seconds)
        self.read(done.stats.prompt_tokens, done.stats.cached_tokens)

    def read(self, prompt: int, cached: int) -> None:
        """A prompt was computed, ``cached`` tokens of it found in the cache."""
        self.prompt_tokens.inc(prompt)
        self.cached_tokens.inc(cached)
        self._spend(prompt)
        record().read(prompt, cached)

    def draw(self, tokens: int) -> None:
        """Count generated tokens."""
        self.generated.inc(tokens)
        self._spend(tokens)

    def _spend(self, tokens: int) -> None:
        """Count a tenant's tokens as they come: a background response outlives its HTTP request."""
        if tenant := CALLER.get().tenant:
            self._tokens.labels(self._model, tenant).inc(tokens)

    def set_gauges(self, stats: Mapping[str, float]) -> None:
        """Take the engine's statistics, {} where there is no engine; rates are since the last call
        at least a second ago."""
        total = stats.get("total_tokens", 0)
        used = total - stats.get("free_tokens", total) - stats.get("evictable_tokens", 0)
        for key, gauge in self._gauges.items():
            gauge.set(stats.get(key, 0))
        for key, value in stats.items():
            if key in self._counters:
                self._counters[key].inc(value - self._counted[key])
                self._counted[key] = value
        self._up.set(bool(stats))
        self._used.set(used)
        self._usage.set(used / total if total else 0.0)
        prompt = stats.get("prompt_tokens", 0)
        self._hits.set(stats.get("cached_tokens", 0) / prompt if prompt else 0.0)
        drafted = stats.get("drafted_tokens", 0)
        self._accepted.set(stats.get("accepted_tokens", 0) / drafted if drafted else 0.0)
        now, (then, before) = time.monotonic(), self._last
        if now - then >= 1.0:
            generated = stats.get("generated_tokens", before)
            self._rate.set(max(0.0, generated - before) / (now - then))
            self._last = (now, generated)

    def render(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self._registry)


class RequestWatch:
    """Counts what one request does, output by output, for the metrics and its request's record.

    ``left``: completions that have not ended.
    """

    def __init__(self, metrics: Metrics, request: CompletionRequest, found: RequestRecord) -> None:
        self._metrics, self._request, self._record = metrics, request, found
        self._start = time.monotonic()
        self._seen: dict[int, tuple[int, float]] = {}  # by output: tokens counted, when
        self.left = request.sampling.n
        found.begin(request)

    def update(self, output: Output) -> None:
        metrics, now = self._metrics, time.monotonic()
        count, last = self._seen.get(output.index, (0, self._start))
        fresh = output.completion_tokens - count
        if fresh > 0:
            metrics.draw(fresh)
            if count == 0:
                metrics.first.observe(now - self._start)
                self._record.first = self._record.first or now
            else:
                metrics.gap.observe((now - last) / fresh)
            self._seen[output.index] = (output.completion_tokens, now)
        if output.finish is not None:
            if self.left == self._request.sampling.n:  # completions of one prompt read it once
                metrics.read(output.stats.prompt_tokens, output.stats.cached_tokens)
                metrics.queued.observe(output.stats.queue_seconds)
            self.left -= 1
            self._record.finish(self._request, output)
            metrics.whole.observe(now - self._start)
            metrics.finished(output.finish.reason)
            if output.finish.reason == "abort":
                metrics.aborted.inc()
