"""Worker: the model, its KV pool and its runner, made from a Config."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from srt.attention.choose import choose, make_attention
from srt.config import Config, ModelConfig
from srt.core.batch import Batch, StepResult
from srt.layers.weight import Place, Slots
from srt.models import weights
from srt.models.checkpoint import Checkpoint
from srt.models.config import ModelSpec, read_config
from srt.models.location import locate
from srt.models.model import Model
from srt.models.open import open_checkpoint
from srt.models.registry import lookup
from srt.worker.forward import Eager, Forward
from srt.worker.graphs import captured
from srt.worker.heap import returned_at_once
from srt.worker.kv import KVPool, available_memory, bytes_per_token, pool_pages
from srt.worker.runner import ModelRunner
from srt.worker.threads import DEFAULT, Threads

log = logging.getLogger("srt.worker")

# Bytes of a parameter in memory, by --quantization; its scales included.
BYTES = {"int8": 1.01, "int8wo": 1.01, "int4": 0.57}
# Below this many parameters float32 is as fast as bfloat16 on a CPU and far more reproducible.
SMALL = 100_000_000


@dataclass(frozen=True)
class Plan:
    """What will be loaded, known before anything is allocated."""

    directory: Path
    architecture: str
    family: type[Model]
    spec: ModelSpec
    length: int
    device: torch.device
    dtype: torch.dtype
    parameters: int
    checkpoint: Checkpoint | None  # None: dummy weights
    torch_because: str  # why native kernels do not run it, "" where they do


class Worker:
    """One device rank.

    ``info`` holds the facts of ``engine.info.EngineInfo`` that the worker knows, by field name.
    """

    def __init__(self, config: Config) -> None:
        """Loads everything. Raises ValueError for a model that cannot be served, MemoryError for
        one that does not fit."""
        settings, memory = config.model, config.memory
        plan = plan_of(config)
        spec, native = plan.spec, not plan.torch_because
        kv_dtype = torch.int8 if memory.kv_cache_dtype == "int8" else plan.dtype
        token_bytes = bytes_per_token(spec, kv_dtype)
        weight_bytes = int(plan.parameters * BYTES.get(settings.quantization, plan.dtype.itemsize))
        pages = pool_pages(
            memory, token_bytes, weight_bytes, plan.length, plan.device,
            available_memory(plan.device),
        )  # fmt: skip
        threads = settings.threads or DEFAULT
        with torch.inference_mode():
            self.model = load_model(plan, settings, threads)
            pool = KVPool(
                spec.num_layers, spec.num_kv_heads, spec.head_dim, pages, memory.page_size,
                kv_dtype, plan.device,
            )  # fmt: skip
        forward, kernels = forward_of(plan, settings, self.model, pool, threads)
        # Beside native kernels, which have threads of their own, torch has little to do.
        self.threads = Threads(1 if native else settings.threads, plan.parameters, plan.device)
        self.runner = ModelRunner(forward, pool, plan.length, spec.vocab_size)
        self.info: dict[str, Any] = {
            "model_path": settings.model_path or plan.directory.name,
            "architecture": plan.architecture,
            "dtype": str(plan.dtype).removeprefix("torch."),
            "device": str(plan.device),
            "kernels": kernels,
            "quantization": settings.quantization,
            "vocab_size": spec.vocab_size,
            "context_length": plan.length,
            "capacity": pool.capacity,
            "page_size": pool.page_size,
            "eos": spec.eos,
            "parameters": plan.parameters,
            "kv_bytes_per_token": token_bytes,
            "hidden_size": spec.hidden_size,
        }

    def run(self, batch: Batch) -> StepResult:
        """Compute one batch. Batches are to be given in order of their ids."""
        return self.launch(batch)()

    def launch(self, batch: Batch) -> Callable[[], StepResult]:
        """As ``ModelRunner.launch``: the next batch may be launched before this one's results are
        asked for. On a CPU a batch is computed when this returns."""
        self.threads.prepare(batch.num_tokens)
        return self.runner.launch(batch)


def plan_of(config: Config) -> Plan:
    """Reads what describes the model. Raises ValueError where it cannot be served."""
    settings = config.model
    directory = locate(settings.model_path, settings.revision)
    fields, architecture = read_config(directory)
    family = lookup(architecture)
    spec = family.read(fields, architecture)
    length = context_length_of(settings, spec)
    device = device_of(settings.device)
    choose(settings.attention_backend, device)  # refused before anything is loaded
    # A model without storage tells which tensors it needs before anything is allocated.
    outline = family(spec, Place(torch.device("meta"), torch.float32), 1)
    slots = outline.slots()
    checkpoint = None
    if settings.load_format != "dummy":
        checkpoint = open_checkpoint(directory, fields)
        weights.match(slots, checkpoint, outline.ignores)
    parameters = parameters_of(slots)
    dtype = dtype_of(settings.dtype, spec, parameters, device)
    why = no_native(settings, dtype, device)
    wants = {"quantization": settings.quantization, "kv-cache-dtype": config.memory.kv_cache_dtype}
    for name, value in wants.items():
        if why and value not in ("none", "auto"):
            raise ValueError(f"--{name} {value} needs native kernels: {why}. Leave it out.")
    return Plan(
        directory, architecture, family, spec, length, device, dtype, parameters, checkpoint, why
    )


def load_model(plan: Plan, settings: ModelConfig, threads: int) -> Model:
    """With its weights, packed where native kernels will read them."""
    with returned_at_once():
        states = plan.dtype if plan.torch_because else torch.float32
        place = Place(plan.device, plan.dtype, activations=states)
        model = plan.family(plan.spec, place, plan.length)
        filled = None
        if not plan.torch_because:
            from srt.worker.native import Packer

            filled = Packer(model, settings.quantization, threads).filled
        if plan.checkpoint is not None:
            weights.load(model.slots(), plan.checkpoint, filled=filled)
        else:
            weights.randomise(model.slots(), settings.random_seed, filled=filled)
    return model


def forward_of(
    plan: Plan, settings: ModelConfig, model: Model, pool: KVPool, threads: int
) -> tuple[Forward, str]:
    """How passes are computed, and what by: an instruction set or "torch"."""
    if not plan.torch_because:
        from srt.worker.native import Layered, Native

        native = (Native if model.recordable else Layered)(model, pool, threads)
        log.info("kernels: sgl-kernel, %s, %d threads", native.isa, threads)
        return native, native.isa
    attention = make_attention(settings.attention_backend, pool, plan.spec, plan.device)
    if plan.device.type == "cpu":
        log.info("kernels: torch (%s)", plan.torch_because)
    graphs = captured(model, attention, settings, pool, plan.length)
    return graphs or Eager(model, attention), "torch"


def no_native(settings: ModelConfig, dtype: torch.dtype, device: torch.device) -> str:
    """Why a model does not run on native CPU kernels, "" where it does."""
    if settings.cpu_kernels == "torch":
        return "--cpu-kernels torch"
    try:
        from srt.worker.native import unfit
    except ImportError:
        why = "the package sgl-kernel is not installed (pip install ./sgl-kernel)"
    else:
        why = unfit(dtype, device)
    if why and settings.cpu_kernels == "native":
        raise ValueError(f"--cpu-kernels native cannot be: {why}.")
    return why


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
