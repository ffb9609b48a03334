"""Settings of each engine of one server."""

from __future__ import annotations

import os
from dataclasses import replace

from sglang.srt.config import Config


def engine_configs(config: Config) -> list[tuple[str, Config]]:
    """The engines that a server starts, ``--dp-size`` of them, by name: each has GPUs, a
    directory for KV and ports for KV events of its own. None where it uses those of ``--engines``.
    """
    parallel, memory = config.parallel, config.memory
    if config.routing.engines:
        return []
    if parallel.dp_size == 1:
        return [("0", config)]
    found = []
    for rank in range(parallel.dp_size):
        first = parallel.base_gpu_id + rank * parallel.local_ranks
        own = replace(
            config,
            parallel=replace(parallel, base_gpu_id=first),
            kv_events=config.kv_events.of_engine(rank),
        )
        if memory.hicache_storage_dir:
            directory = os.path.join(memory.hicache_storage_dir, f"engine-{rank}")
            own = replace(own, memory=replace(memory, hicache_storage_dir=directory))
        found.append((str(rank), own))
    return found
