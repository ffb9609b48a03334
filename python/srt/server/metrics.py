"""Metrics: what gateways and dashboards read at /metrics, under the names they know."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from srt.program.output import Output

_SECONDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.0, 2.0, 5.0)


class Metrics:
    """Counters grow with the requests; gauges are read from the engine at each scrape."""

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._model = model_name
        self.prompt_tokens = self._make(Counter, "prompt_tokens_total", "prompt tokens")
        self.generated = self._make(Counter, "generation_tokens_total", "generated tokens")
        self.cached_tokens = self._make(
            Counter, "cached_tokens_total", "prompt tokens found in the cache"
        )
        self.requests = self._make(Counter, "num_requests_total", "requests finished")
        self.first = self._make(
            Histogram, "time_to_first_token_seconds", "arrival to first token", buckets=_SECONDS
        )
        self.gap = self._make(
            Histogram, "inter_token_latency_seconds", "token to token", buckets=_GAPS
        )
        self.whole = self._make(
            Histogram, "e2e_request_latency_seconds", "arrival to end", buckets=_SECONDS
        )
        self._running = self._make(Gauge, "num_running_reqs", "requests being computed")
        self._waiting = self._make(Gauge, "num_queue_reqs", "requests waiting")
        self._compiling = self._make(
            Gauge, "num_grammar_queue_reqs", "requests whose grammar is being compiled"
        )
        self._forced = self._make(Gauge, "forced_tokens", "tokens written without a draw so far")
        self._used = self._make(Gauge, "num_used_tokens", "KV tokens of running requests")
        self._usage = self._make(Gauge, "token_usage", "their share of the KV cache")
        self._rate = self._make(Gauge, "gen_throughput", "tokens generated a second")
        self._hits = self._make(Gauge, "cache_hit_rate", "share of prompt tokens cached")
        self._last = (time.monotonic(), 0.0)

    def _make(self, kind: Any, name: str, help: str, **options: Any) -> Any:
        full = f"sglang:{name}"
        made = kind(full, help, ["model_name"], registry=self._registry, **options)
        return made.labels(self._model)

    def watch(self) -> Watch:
        """Follows the outputs of one ask."""
        return Watch(self)

    def set_gauges(self, stats: Mapping[str, float]) -> None:
        """Take the engine's statistics; rates are since the last call at least a second ago."""
        total = stats.get("total_tokens", 0)
        used = total - stats.get("free_tokens", total) - stats.get("evictable_tokens", 0)
        self._running.set(stats.get("running", 0))
        self._waiting.set(stats.get("waiting", 0))
        self._compiling.set(stats.get("compiling", 0))
        self._forced.set(stats.get("forced_tokens", 0))
        self._used.set(used)
        self._usage.set(used / total if total else 0.0)
        prompt = stats.get("prompt_tokens", 0)
        self._hits.set(stats.get("cached_tokens", 0) / prompt if prompt else 0.0)
        now, (then, before) = time.monotonic(), self._last
        if now - then >= 1.0:
            generated = stats.get("generated_tokens", before)
            self._rate.set((generated - before) / (now - then))
            self._last = (now, generated)

    def render(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self._registry)


class Watch:
    """Counts what one ask does, output by output."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._start = time.monotonic()
        self._seen: dict[int, tuple[int, float]] = {}  # by output: tokens counted, when
        self._prompt_counted = False

    def update(self, output: Output) -> None:
        metrics, now = self._metrics, time.monotonic()
        count, last = self._seen.get(output.index, (0, self._start))
        fresh = output.completion_tokens - count
        if fresh > 0:
            metrics.generated.inc(fresh)
            if count == 0:
                metrics.first.observe(now - self._start)
            else:
                metrics.gap.observe((now - last) / fresh)
            self._seen[output.index] = (output.completion_tokens, now)
        if output.finish is not None:
            metrics.requests.inc()
            metrics.whole.observe(now - self._start)
            if not self._prompt_counted:
                self._prompt_counted = True
                metrics.prompt_tokens.inc(output.prompt_tokens)
                metrics.cached_tokens.inc(output.cached_tokens)
