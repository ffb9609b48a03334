"""EngineMetrics: the engine's statistics as gauges and counters of /metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

# Gauges by their name in the engine's statistics: name in /metrics, and help text.
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
    "parked_tokens": ("num_parked_tokens", "KV tokens on the device that only these had"),
    "host_total_tokens": ("max_host_num_tokens", "host memory for KV, in tokens"),
    "disk_tokens": ("num_disk_tokens", "KV tokens on disk"),
    "disk_total_tokens": ("max_disk_num_tokens", "disk for KV, in tokens"),
}
# Counters, in the same form.
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
    "disk_read_bytes": ("disk_read_bytes_total", "bytes of KV read from disk"),
    "disk_written_bytes": ("disk_written_bytes_total", "bytes of KV written to disk"),
    "disk_faults": ("disk_faults_total", "copies from or to disk that failed"),
    "disk_dropped_tokens": ("disk_dropped_tokens_total", "KV tokens not written to disk in time"),
    "disk_waits": ("disk_waits_total", "requests that waited for a read from disk"),
    "disk_wait_seconds": ("disk_wait_seconds_total", "seconds that they waited"),
    "disk_late": ("disk_late_total", "of these, requests whose read failed or was late"),
    "parked_seconds": ("parked_seconds_total", "seconds of the calls that contexts waited for"),
    "parked_waste": (
        "parked_waste_gb_seconds_total",
        "memory times time that waiting contexts withheld, or that requests held while KV of "
        "waiting contexts was computed again",
    ),
    "parked_yielded": ("parked_yielded_total", "times that memory took KV of a waiting context"),
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


class MetricFamilies:
    """Factory of the metrics of one registry. All have the served model's name as a label."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry, self._model = registry, model_name

    def labelled(self, kind: Any, name: str, help: str, *labels: str, **options: Any) -> Any:
        """Return a family of metrics, one for each value of the additional labels."""
        names = ["model_name", *labels]
        return kind(f"sglang:{name}", help, names, registry=self._registry, **options)

    def single(self, kind: Any, name: str, help: str, **options: Any) -> Any:
        """Return the metric of a family without additional labels."""
        return self.labelled(kind, name, help, **options).labels(self._model)


class EngineMetrics:
    """Metrics of the serving engines. Gauges are sums over the engines. Counters keep their values
    when an engine is replaced."""

    def __init__(self, families: MetricFamilies) -> None:
        one = families.single
        self._restarts = one(Counter, "engine_restarts_total", "engines in place of a lost one")
        self._resumed = one(
            Counter, "resumed_requests_total", "requests that went on after their engine was lost"
        )
        self._gauges = {key: one(Gauge, *names) for key, names in _GAUGES.items()}
        self._counters = {key: one(Counter, *names) for key, names in _COUNTERS.items()}
        self._counted: dict[str, dict[str, float]] = {}  # by engine and name
        self._up = one(Gauge, "engine_up", "number of engines that answer")
        self._used = one(Gauge, "num_used_tokens", "KV tokens of running requests")
        self._usage = one(Gauge, "token_usage", "their share of the KV cache")
        self._rate = one(Gauge, "gen_throughput", "tokens generated a second")
        self._hits = one(Gauge, "cache_hit_rate", "share of prompt tokens cached")
        self._accepted = one(Gauge, "spec_accept_rate", "accepted share of draft tokens")
        self._last = (time.monotonic(), 0.0)

    def restarted(self, engine: str) -> None:
        """Record that an engine was replaced. The new engine counts from 0; its counts are added to
        the old."""
        self._restarts.inc()
        self._counted.pop(engine, None)

    def resumed(self) -> None:
        """Count a request that continues on another engine."""
        self._resumed.inc()

    def read(self, engines: Mapping[str, Mapping[str, float]]) -> None:
        """Update the metrics from the statistics of the engines, by engine name; {} without an
        engine. Rates cover the time since the last call that was at least a second ago."""
        stats: dict[str, float] = {}
        for name, own in engines.items():
            counted = self._counted.setdefault(name, {})
            for key, value in own.items():
                stats[key] = stats.get(key, 0) + value
                if key in self._counters:
                    self._counters[key].inc(value - counted.get(key, 0.0))
                    counted[key] = value
        for key, gauge in self._gauges.items():
            gauge.set(stats.get(key, 0))
        total = stats.get("total_tokens", 0)
        used = total - stats.get("free_tokens", total) - stats.get("evictable_tokens", 0)
        self._up.set(len(engines))
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
