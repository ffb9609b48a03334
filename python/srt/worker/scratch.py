"""Scratch: an estimate of the GPU memory that passes, workspaces and CUDA graphs need besides
weights and KV cache. The size of the KV cache leaves this memory free. If it is too small, fewer
graphs are captured (``worker.forward_choice``)."""

from __future__ import annotations

from typing import Any

from sglang.srt.attention.backend_choice import choose, workspace
from sglang.srt.config import Config
from sglang.srt.models.model_spec import ModelSpec
from sglang.srt.numeric.host_arrays import DType, torch_dtype

# Copies of the largest logits in memory at once: the model's, float32, and the sampler's.
COPIES = 3
# Estimated bytes of one captured layer: kernel arguments and the driver's share.
LAYER_GRAPH = 256 << 10


def scratch_bytes(config: Config, spec: ModelSpec, kv_dtype: DType,
                  dtype: DType, device: Any) -> int:  # fmt: skip
    """Return the bytes needed besides weights and KV cache; 0 on a CPU, where they are few."""
    if device.type == "cpu":
        return 0
    from sglang.srt.worker.graphs import LOGITS, buckets

    settings, schedule = config.model, config.schedule
    rows = 0 if settings.disable_cuda_graph else settings.cuda_graph_max_bs
    chunk = schedule.chunked_prefill_size
    tokens = max(rows, chunk if chunk > 0 else spec.context_length)
    # Residual, norm, queries, keys, values, attention's output, and the gate and up projections.
    heads = spec.num_heads * spec.head_dim
    width = 3 * spec.hidden_size + 3 * heads + 3 * spec.intermediate_size
    passes = tokens * width * dtype.itemsize + COPIES * LOGITS * 4
    graphs = len(buckets(rows)) * spec.num_layers * LAYER_GRAPH if rows else 0
    name = choose(settings.attention_backend, device, spec, torch_dtype(kv_dtype)).name
    return passes + graphs + workspace(name, spec, rows, device)
