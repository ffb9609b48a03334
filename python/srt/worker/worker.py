"""Worker: the model, its KV pool and its runner, made from a Config."""

from __future__ import annotations

import math
from typing import Any

import torch

from srt.attention.native import NativeAttention
from srt.config import Config, ModelConfig
from srt.core.batch import Batch, StepResult
from srt.layers.weight import Place, Slots
from srt.models import weights
from srt.models.config import ModelSpec, read_config
from srt.models.location import locate
from srt.models.registry import lookup
from srt.worker.forward import Eager
from srt.worker.kv import KVPool, available_memory, bytes_per_token, pool_pages
from srt.worker.runner import ModelRunner
from srt.worker.threads import Threads

# Below this many parameters float32 is as fast as bfloat16 on a CPU and far more reproducible.
SMALL = 100_000_000


class Worker:
    """One device rank.

    ``info`` holds the facts of ``engine.info.EngineInfo`` that the worker knows, by field name.
    """

    def __init__(self, config: Config) -> None:
        """Loads everything. Raises ValueError for a model that cannot be served, MemoryError for
        one that does not fit."""
        settings = config.model
        directory = locate(settings.model_path, settings.revision)
        fields, architecture = read_config(directory)
        family = lookup(architecture)
        spec = family.read(fields, architecture)
        length = context_length_of(settings, spec)
        device = device_of(settings.device)
        # A model without storage tells which tensors it needs before anything is allocated.
        outline = family(spec, Place(torch.device("meta"), torch.float32), 1)
        slots = outline.slots()
        dummy = settings.load_format == "dummy"
        entries = {} if dummy else weights.read_checkpoint(directory)
        if not dummy:
            weights.match(slots, entries, outline.ignores, directory)
        parameters = parameters_of(slots)
        dtype = dtype_of(settings.dtype, spec, parameters, device)
        free = available_memory(device)
        token_bytes = bytes_per_token(spec, dtype)
        pages = pool_pages(
            config.memory, token_bytes, parameters * dtype.itemsize, length, device, free
        )
        with torch.inference_mode():
            model = family(spec, Place(device, dtype), length)
            if dummy:
                weights.randomise(model.slots(), settings.random_seed)
            else:
                weights.load(model.slots(), entries)
            pool = KVPool(
                spec.num_layers, spec.num_kv_heads, spec.head_dim, pages,
                config.memory.page_size, dtype, device,
            )  # fmt: skip
        attention = NativeAttention(pool.keys, pool.values, pool.page_size, spec.windows)
        self.threads = Threads(settings.threads, parameters, device)
        self.model = model
        self.runner = ModelRunner(Eager(model, attention), pool, length, spec.vocab_size)
        self.info: dict[str, Any] = {
            "model_path": settings.model_path or directory.name,
            "architecture": architecture,
            "dtype": str(dtype).removeprefix("torch."),
            "device": str(device),
            "vocab_size": spec.vocab_size,
            "context_length": length,
            "capacity": pool.capacity,
            "page_size": pool.page_size,
            "eos": spec.eos,
            "parameters": parameters,
            "kv_bytes_per_token": token_bytes,
            "hidden_size": spec.hidden_size,
        }

    def run(self, batch: Batch) -> StepResult:
        """Compute one batch. Batches are to be given in order of their ids."""
        self.threads.prepare(batch.num_tokens)
        return self.runner.run(batch)


def parameters_of(slots: Slots) -> int:
    return sum(math.prod(slot.shape) for slot in slots.values())


def context_length_of(settings: ModelConfig, spec: ModelSpec) -> int:
    asked = settings.context_length
    if asked > spec.context_length:
        raise ValueError(
            f"context_length is {asked}; the model is made for {spec.context_length} tokens. "
            f"Lower it, or set a RoPE scaling in the model's config.json."
        )
    return asked or spec.context_length


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"device {name!r} cannot be used: {str(error).splitlines()[0]}."
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported; use auto, cpu or cuda.")
    return device


def dtype_of(name: str, spec: ModelSpec, parameters: int, device: torch.device) -> torch.dtype:
    """ "auto" is the checkpoint's dtype, except on a CPU: float32 for small models and in place of
    float16, which CPUs emulate."""
    if name == "auto":
        name = spec.dtype if spec.dtype in ("bfloat16", "float16", "float32") else "float32"
        if device.type == "cpu" and (parameters < SMALL or name == "float16"):
            name = "float32"
    return {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
    }[name]
