"""GatewayMetrics: metrics for the Gateway API inference extension, by its model server protocol.

The queue and the use of the KV cache are among the engine's gauges (``engine_metrics``). The two
metrics here have their content in labels.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from prometheus_client import Gauge
from sglang.srt.web.telemetry.engine_metrics import MetricFamilies


class GatewayMetrics:
    """Metrics of the KV cache's shape and of the loaded adapters."""

    def __init__(self, families: MetricFamilies, model_name: str) -> None:
        self._model = model_name
        self._cache = families.labelled(
            Gauge, "cache_config_info", "shape of the KV cache", "page_size", "num_pages"
        )
        self._adapters = families.labelled(
            Gauge, "lora_requests_info", "adapters; the value is the time of the scrape",
            "max_lora", "running_lora_adapters", "waiting_lora_adapters",
        )  # fmt: skip

    def read(
        self, page_size: int, tokens: int, most_adapters: int, adapters: Iterable[str]
    ) -> None:
        """Update the metrics.

        Args:
            page_size: tokens of a page.
            tokens: tokens of the whole KV cache.
            most_adapters: adapters that one batch may have; 0: the engine takes no adapters.
            adapters: names of the loaded adapters.
        """
        self._cache.clear()
        self._cache.labels(self._model, page_size, tokens // page_size).set(1)
        self._adapters.clear()
        if most_adapters:
            names = ",".join(sorted(adapters))
            self._adapters.labels(self._model, most_adapters, names, "").set(time.time())
