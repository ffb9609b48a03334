"""ModelWorker: the model, its KV pool and its runner, made from a Config."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from sglang.srt.attention.backend_choice import choose, make_attention
from sglang.srt.config import Config, ModelConfig
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.workers import NO_MASKS, Finish, Masks
from sglang.srt.files.location import locate
from sglang.srt.layers.operations import TORCH, operations_of
from sglang.srt.layers.weight import Place
from sglang.srt.models import weights
from sglang.srt.models.checkpoint import Checkpoint
from sglang.srt.models.checkpoint_format import open_checkpoint
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.models.model_spec import ModelSpec, json_whitespace, read_config
from sglang.srt.models.registry import lookup
from sglang.srt.models.renamed_checkpoint import named
from sglang.srt.worker.features import Features
from sglang.srt.worker.forward import Eager, Forward
from sglang.srt.worker.graphs import captured
from sglang.srt.worker.kv import KVPool, available_memory, bytes_per_token, pool_pages
from sglang.srt.worker.lora_weights import LoraWeights, adapters_of, resident_bytes
from sglang.srt.worker.malloc_settings import returned_at_once
from sglang.srt.worker.runner import ModelRunner
from sglang.srt.worker.storage import Storage, storage_of

log = logging.getLogger("sglang.srt.worker")

LONGEST = 1 << 21  # tokens of context that a configuration alone may ask for
# Multiply-adds that one thread does in the time it takes to wake the others at every operation.
LIGHT = 1 << 27
# Torch's own number of threads, before a worker of this process has set another.
DEFAULT_THREADS = torch.get_num_threads()


@dataclass(frozen=True)
class ModelPlan:
    """Description of a model to load, known before anything is allocated."""

    directory: Path
    architecture: str
    family: type[DecoderModel]
    spec: ModelSpec
    length: int
    device: torch.device
    storage: Storage
    checkpoint: Checkpoint | None  # None: dummy weights

    @property
    def dtype(self) -> torch.dtype:
        return self.storage.dtype

    @property
    def torch_because(self) -> str:
        return self.storage.torch_because


class ModelWorker:
    """One device rank. Implements ``core.workers.Worker``.

    ``info`` holds the facts of ``engine.info.EngineInfo`` that the worker knows, by field name.
    """

    def __init__(self, config: Config) -> None:
        """Loads everything. Raises ValueError for a model that cannot be served, MemoryError for
        one that does not fit."""
        settings, memory = config.model, config.memory
        plan = plan_of(config)
        spec, storage, kv_dtype = plan.spec, plan.storage, plan.storage.kv_dtype
        token_bytes = bytes_per_token(spec, kv_dtype)
        held = storage.weight_bytes
        held += resident_bytes(plan.family, plan.spec, config.lora, plan.device, plan.dtype)
        free = available_memory(plan.device)
        pages = pool_pages(memory, token_bytes, held, plan.length, plan.device, free)
        threads = settings.threads or DEFAULT_THREADS
        with torch.inference_mode():
            self.model, self.adapters = load_model(plan, config, threads)
            pool = KVPool(spec.num_layers, spec.kv, pages, memory.page_size, kv_dtype, plan.device)
        forward, kernels = forward_of(plan, settings, self.model, pool, threads)
        # Beside native kernels, which have threads of their own, torch has little to do.
        self.threads = Threads(
            settings.threads if plan.torch_because else 1, storage.parameters, plan.device
        )
        sections: bool = getattr(plan.family, "sections", False)
        encode = getattr(self.model, "encode", None)
        features = Features(encode, config.media.media_cache_bytes) if encode else None
        self.runner = ModelRunner(
            forward, pool, plan.length, spec.vocab_size, features, sections, bool(spec.labels),
            self.adapters,
        )  # fmt: skip
        self.info: dict[str, Any] = {
            "model_path": settings.model_path or plan.directory.name,
            "architecture": plan.architecture,
            "dtype": str(plan.dtype).removeprefix("torch."),
            "device": str(plan.device),
            "kernels": kernels,
            "quantization": (plan.checkpoint and plan.checkpoint.method) or storage.quantization,
            "vocab_size": spec.vocab_size,
            "context_length": plan.length,
            "capacity": pool.capacity,
            "page_size": pool.page_size,
            "eos": spec.eos,
            "parameters": storage.parameters,
            "kv_bytes_per_token": token_bytes,
            "hidden_size": spec.hidden_size,
            "purpose": spec.purpose,
            "labels": spec.labels,
            "vision": features is not None,
            "sections": sections,
            "json_whitespace_pattern": config.grammar.json_whitespace(
                json_whitespace(plan.directory)
            ),
        }

    def load_adapter(self, number: int, path: str, pinned: bool = False) -> dict[str, Any]:
        """See ``core.workers.Worker.load_adapter``."""
        if self.adapters is None:
            raise ValueError("adapters are off; start with --enable-lora.")
        return self.adapters.load(number, str(locate(path)), pinned)

    def unload_adapter(self, number: int) -> None:
        """See ``core.workers.Worker.unload_adapter``."""
        if self.adapters is not None:
            self.adapters.unload(number)

    def run(self, batch: Batch, masks: Masks = NO_MASKS) -> StepResult:
        """Launch a batch and wait for its outputs."""
        return self.launch(batch, masks)()

    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        """See ``core.workers.Worker.launch``. On a CPU a batch is computed when this returns."""
        self.threads.prepare(batch.num_tokens)
        return self.runner.launch(batch, masks)


class Threads:
    """Number of torch's threads: always ``fixed`` where that is set; else one thread for a light
    pass and torch's own number for a heavy one. Set in the thread that runs the passes: others keep
    theirs."""

    def __init__(self, fixed: int, parameters: int, device: torch.device) -> None:
        self.most = fixed or DEFAULT_THREADS
        self.adaptive = not fixed and device.type == "cpu" and self.most > 1
        self.parameters = parameters

    def prepare(self, num_tokens: int) -> None:
        """Set the threads before a pass over ``num_tokens`` tokens."""
        light = self.adaptive and num_tokens * self.parameters <= LIGHT
        wanted = 1 if light else self.most
        if torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)


def plan_of(config: Config) -> ModelPlan:
    """Reads what describes the model. Raises ValueError where it cannot be served."""
    settings = config.model
    directory = locate(settings.model_path, settings.revision)
    fields, architecture = read_config(directory)
    family = lookup(architecture, fields.values)
    spec = family.read(fields, architecture)
    length = context_length_of(settings, spec)
    device = device_of(settings.device)
    choose(settings.attention_backend, device)  # refused before anything is loaded
    # A model without storage tells which tensors it needs before anything is allocated.
    outline = family(spec, Place(torch.device("meta"), torch.float32), 1)
    slots = outline.slots()
    checkpoint = None
    if settings.load_format != "dummy":
        checkpoint = named(open_checkpoint(directory, fields), family)
        weights.match(slots, checkpoint, outline.ignores)
    storage = storage_of(config, spec, slots, checkpoint, device)
    return ModelPlan(directory, architecture, family, spec, length, device, storage, checkpoint)


def load_model(
    plan: ModelPlan, config: Config, threads: int
) -> tuple[DecoderModel, LoraWeights | None]:
    """Load a model with its weights, packed where native kernels will read them, and its adapters,
    none of which is loaded."""
    settings = config.model
    with returned_at_once():
        states, operations = torch.float32, TORCH
        disabled = settings.disable_fused_kernels
        if plan.torch_because:
            states = plan.dtype
            operations = operations_of(plan.device, disabled)
        place = Place(
            plan.device, plan.dtype, activations=states, operations=operations, disabled=disabled
        )
        model = plan.family(plan.spec, place, plan.length)
        adapters = adapters_of(model, config.lora, plan.device, plan.dtype)
        filled, keep, bits = None, None, plan.storage.bits
        if not plan.torch_because:
            from sglang.srt.worker.native_forward import Packer

            packer = Packer(model, plan.storage.quantization, threads, bits)
            filled, keep = packer.filled, packer.keep if bits else None
        if plan.checkpoint is not None:
            if plan.checkpoint.describe():
                held = f"kept in {bits} bits" if bits else f"read into {plan.dtype}"
                log.info("weights: %s, %s", plan.checkpoint.describe(), held)
            weights.load(model.slots(), plan.checkpoint, filled=filled, keep=keep)
        else:
            weights.randomise(model.slots(), settings.random_seed, filled=filled)
    return model, adapters


def forward_of(
    plan: ModelPlan, settings: ModelConfig, model: DecoderModel, pool: KVPool, threads: int
) -> tuple[Forward, str]:
    """Forward passes, and their name: an instruction set or "torch"."""
    if not plan.torch_because:
        from sglang.srt.worker.native_forward import Layered, Native

        native = (Native if model.recordable else Layered)(model, pool, threads)
        log.info("kernels: sgl-kernel, %s, %d threads", native.isa, threads)
        return native, native.isa
    disabled = settings.disable_fused_kernels
    attention = make_attention(
        settings.attention_backend, pool, plan.spec, plan.device, disabled
    )
    if plan.device.type == "cpu":
        log.info("kernels: torch (%s)", plan.torch_because)
    sections: bool = getattr(plan.family, "sections", False)
    graphs = None
    if general := {"decode", "moe"}.intersection(disabled):
        log.info("no CUDA graphs: --disable-fused-kernels %s", ",".join(sorted(general)))
    else:
        graphs = captured(model, attention, settings, pool, plan.length, sections)
    eager = Eager(model, attention, "sampling" not in disabled)
    if graphs is not None:
        graphs.eager.fused_sampling = eager.fused_sampling
    return graphs or eager, "torch"


def context_length_of(settings: ModelConfig, spec: ModelSpec) -> int:
    asked = settings.context_length
    if asked > spec.context_length:
        raise ValueError(
            f"context_length is {asked}; the model is made for {spec.context_length} tokens. "
            f"Lower it, or set a RoPE scaling in the model's config.json."
        )
    if not asked and spec.context_length > LONGEST:
        raise ValueError(
            f"the model's configuration says {spec.context_length} tokens of context, for which "
            f"tables of positions would be made; say what is needed with --context-length."
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
