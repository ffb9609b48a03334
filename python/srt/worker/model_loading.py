"""Loading of a model: its description (ModelPlan), its memory use, its weights."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from sglang.srt.attention.backend_choice import choose, triton_lacks
from sglang.srt.config import Config, ModelConfig
from sglang.srt.config.sections import FUSED_KERNELS
from sglang.srt.core import heap
from sglang.srt.files.location import locate
from sglang.srt.layers.float8_product import PRODUCTS, Multiply, check
from sglang.srt.layers.kernel_trial import KernelTrial, TrialSizes
from sglang.srt.layers.operations import TORCH, operations_of
from sglang.srt.layers.tape_writer import missing_word
from sglang.srt.layers.weight import HostPlace, OutlinePlace, Place
from sglang.srt.models import weights
from sglang.srt.models.causal import CausalLM
from sglang.srt.models.checkpoint import Checkpoint
from sglang.srt.models.checkpoint_format import open_checkpoint
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.models.mixture import MixtureSpec
from sglang.srt.models.model_spec import ModelSpec, read_config
from sglang.srt.models.registry import lookup
from sglang.srt.models.renamed_checkpoint import RenamedCheckpoint, named
from sglang.srt.models.vision.vision_language import VisionLanguageSpec
from sglang.srt.numeric.host_arrays import FLOAT32, HOST, Device, DType, torch_dtype
from sglang.srt.numeric.torch_later import torch
from sglang.srt.parallel.groups import WHOLE, Shard
from sglang.srt.worker.fallbacks import Fallbacks
from sglang.srt.worker.float8_weights import Float8Weights
from sglang.srt.worker.held_weights import HeldWeights
from sglang.srt.worker.kv import MemoryUse, available_memory
from sglang.srt.worker.lora_weights import LoraWeights, adapters_of, resident_bytes
from sglang.srt.worker.scratch import scratch_bytes
from sglang.srt.worker.storage import Storage, storage_of

log = logging.getLogger("sglang.srt.worker")
LONGEST = 1 << 21  # limit of the context length in tokens if --context-length is not given


@dataclass(frozen=True)
class ModelPlan:
    """Description of a model to load, known before anything is allocated."""

    directory: Path
    architecture: str
    family: type[DecoderModel]
    spec: ModelSpec
    length: int
    device: Device
    storage: Storage
    checkpoint: Checkpoint | None  # None: dummy weights
    shard: Shard = WHOLE
    unrecorded: str = ""  # part of the model that cannot be recorded as an op list, "" for none

    @property
    def dtype(self) -> DType:
        return self.storage.dtype

    @property
    def on_host(self) -> bool:
        """True if weights and KV are NumPy arrays and passes are native, without torch."""
        return not (self.torch_because or self.unrecorded) and self.shard.whole

    @property
    def place(self) -> Any:
        """Device of the weights: ``HOST`` for NumPy arrays, a torch device for tensors."""
        return HOST if self.on_host else torch.device(self.device)

    @property
    def torch_because(self) -> str:
        return self.storage.torch_because

    @property
    def local(self) -> ModelSpec:
        """The spec of this rank's part, with its heads and layers alone. The model itself is
        constructed from ``spec``."""
        return self.spec if self.shard.whole else narrowed(self.spec, self.shard)


def narrowed(spec: ModelSpec, shard: Shard) -> ModelSpec:
    """Return the spec with the heads and layers of a shard alone. Raises ValueError if the ranks
    cannot divide the heads."""
    layers = range(spec.num_layers) if shard.layers is None else shard.layers
    inner: dict[str, Any] = {}
    if isinstance(spec, VisionLanguageSpec):
        inner["text"] = narrowed(spec.text, shard)
    return replace(
        spec, num_layers=len(layers), windows=spec.windows[layers.start : layers.stop],
        num_heads=shard.group.heads(spec.num_heads, "num_attention_heads")[0],
        num_kv_heads=shard.group.heads(spec.num_kv_heads, "num_key_value_heads")[0], **inner,
    )  # fmt: skip


class LoadedModel(NamedTuple):
    """A model with its weights. ``adapters``: no adapter is loaded yet; None without LoRA.
    ``fallbacks``, ``weight_bytes``: see ``EngineInfo``."""

    model: DecoderModel
    adapters: LoraWeights | None
    fallbacks: tuple[str, ...]
    weight_bytes: int


def plan_of(config: Config, shard: Shard = WHOLE) -> ModelPlan:
    """Read a model's configuration and tensor names. Raises ValueError if the model cannot be
    served, or not by this number of ranks."""
    settings = config.model
    directory = locate(settings.model_path, settings.revision)
    fields, architecture = read_config(directory)
    family = lookup(architecture, fields.values)
    spec = family.read(fields, architecture)
    length = context_length_of(settings, spec)
    device = device_of(settings.device, config.parallel.base_gpu_id)
    choose(settings.attention_backend, device)  # raises before anything is loaded
    # An outline, a model without storage, names the tensors that the model needs.
    meta = OutlinePlace(HOST, FLOAT32)
    checkpoint = None
    if settings.load_format != "dummy":
        checkpoint = named(open_checkpoint(directory, fields), family)
        if spec.tied:
            checkpoint = with_embedding(family, checkpoint)
            spec = replace(spec, tied=not has_own_head(family, spec, checkpoint))
    outline = family(spec, meta, 1)
    slots = outline.slots()
    if checkpoint is not None:
        weights.match(slots, checkpoint, outline.ignores)
    storage = storage_of(config, spec, slots, checkpoint, device)
    if not shard.whole:
        own = family(spec, replace(meta, group=shard.group), 1, shard.layers).slots()
        whole, part = (sum(int(s.target.size) for s in x.values()) for x in (slots, own))
        storage = replace(storage, weight_bytes=storage.weight_bytes * part // whole)
    plan = ModelPlan(
        directory, architecture, family, spec, length, device, storage, checkpoint, shard,
        unrecorded="vision towers" if outline.multimodal else missing_word(outline),
    )  # fmt: skip
    if not plan.on_host:
        need_torch(plan)
    return plan


def with_embedding(family: type[DecoderModel], checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint. A tied embedding stored only under the head's name is renamed."""
    shapes = checkpoint.shapes
    if not issubclass(family, CausalLM) or family.EMBEDDING in shapes or family.HEAD not in shapes:
        return checkpoint
    names = {family.EMBEDDING if name == family.HEAD else name: name for name in shapes}
    return RenamedCheckpoint(checkpoint, names)


def has_own_head(family: type[DecoderModel], spec: ModelSpec, checkpoint: Checkpoint) -> bool:
    """Return True if the checkpoint's head differs from its embedding although ``config.json`` ties
    the two. The head is used then, as in transformers since version 5."""
    if not issubclass(family, CausalLM) or spec.purpose != "generate":
        return False
    head, embedding = family.HEAD, family.EMBEDDING
    if not {head, embedding} <= checkpoint.shapes.keys():
        return False
    if weights.same(checkpoint, head, embedding):
        return False
    log.warning(
        "config.json has tie_word_embeddings true, but %s differs from %s, so both are used; "
        "set tie_word_embeddings to false", head, embedding,
    )  # fmt: skip
    return True


def need_torch(plan: ModelPlan) -> None:
    """Import torch. If torch is not installed, raise ValueError with the reason for the need."""
    why = "several ranks compute the model"
    if plan.torch_because:
        why = f"native CPU kernels do not run: {plan.torch_because}"
    elif plan.unrecorded:
        why = f"no native pass holds all of {plan.architecture} ({plan.unrecorded})"
    try:
        torch.get_num_threads()
    except ModuleNotFoundError as error:
        raise ValueError(f"{why}; {error}") from error


def memory_use(plan: ModelPlan, config: Config) -> MemoryUse:
    """Return an estimate of the memory of a model that is not loaded yet."""
    spec, storage, device = plan.local, plan.storage, plan.device
    others = config.parallel.dp_size  # engines that load beside this one
    shared_by = plan.shard.neighbours * others if device.type == "cpu" else 1
    return MemoryUse(
        available_memory(device) // shared_by, storage.weight_bytes,
        resident_bytes(plan.family, spec, config.lora, device, plan.dtype),
        scratch_bytes(config, spec, storage.kv_dtype, plan.dtype, device),
    )  # fmt: skip


def load_model(plan: ModelPlan, config: Config, threads: int) -> LoadedModel:
    """Load a model with its weights: packed for native kernels; in float8 if the checkpoint is
    float8 and the device has a product for it; else as floats."""
    settings = config.model
    failed = Fallbacks()
    products = checked_products(plan, settings, failed)
    with heap.returned_at_once():
        place = place_of(plan, settings, failed)
        float8 = None
        if products:
            matrices = replace(place, matrices=torch.device("cpu"))
            model = plan.family(plan.spec, matrices, plan.length, plan.shard.layers)
            float8 = Float8Weights(model, plan.place, products)
            if not float8.covers(model.slots()):
                float8 = None
                log.info("float8 weights become %s: some layers do not support float8", plan.dtype)
        if float8 is None:
            model = plan.family(plan.spec, place, plan.length, plan.shard.layers)
        held_weights = HeldWeights(model)
        adapters = adapters_of(model, config.lora, plan.place, plan.dtype)
        filled, keep, bits = None, None, plan.storage.bits
        if not plan.torch_because:
            from sglang.srt.worker.packer import Packer

            packer = Packer(model, plan.storage.quantization, threads, bits)
            filled, keep = packer.filled, packer.keep if bits else None
        if float8 is not None:
            filled, keep = float8.filled, float8.keep
        if plan.checkpoint is not None:
            if plan.checkpoint.describe():
                held = f"kept in {bits} bits" if bits else f"read into {plan.dtype}"
                log.info("weights: %s, %s", plan.checkpoint.describe(), held)
            weights.load(model.slots(), plan.checkpoint, filled=filled, keep=keep)
        else:
            weights.randomise(model.slots(), settings.random_seed, filled=filled)
    if float8 is not None:
        log.info("weights: %d matrices stay float8", float8.count)
    size = held_weights.nbytes(plan.storage.parameters)
    return LoadedModel(model, adapters, tuple(failed.lines), size)


def place_of(plan: ModelPlan, settings: ModelConfig, failed: Fallbacks) -> Place:
    """Return device, dtypes, rank group and fused kernels for the construction of the model."""
    if plan.on_host:
        return HostPlace(HOST, plan.dtype, plan.shard.group, activations=FLOAT32)
    states, operations = torch.float32, TORCH
    disabled = settings.disable_fused_kernels
    if plan.device.type == "cuda":
        disabled = tried_kernels(plan, disabled, failed)
    if plan.torch_because:
        states = torch_dtype(plan.dtype)
        operations = operations_of(plan.place, disabled)
    return Place(
        plan.place, torch_dtype(plan.dtype), plan.shard.group, activations=states,
        operations=operations, disabled=disabled,
    )  # fmt: skip


def checked_products(
    plan: ModelPlan, settings: ModelConfig, failed: Fallbacks
) -> dict[bool, Multiply]:
    """Return the products of ``Storage.float8`` that agree with the reference. Raises ValueError if
    a product does not agree that ``--fp8-gemm-backend`` names."""
    found = {}
    for rowwise, name in plan.storage.float8.items():
        try:
            check(PRODUCTS[name], rowwise, plan.place, torch_dtype(plan.dtype))
        except Exception as error:
            what = f"float8 products by {name}"
            failed.note(what, error, f"weights become {plan.dtype}")
            if settings.fp8_gemm_backend != "auto":
                raise ValueError(f"{failed.lines[-1]}; use --fp8-gemm-backend none.") from error
            continue
        found[rowwise] = PRODUCTS[name]
    return found


def tried_kernels(plan: ModelPlan, disabled: tuple[str, ...], failed: Fallbacks) -> tuple[str, ...]:
    """Return ``disabled`` and the fused kernels that fail on the device. Raises DeviceLost."""
    if triton_lacks(plan.device):
        return disabled
    spec, expert, act = plan.local, 0, ""
    if isinstance(spec, MixtureSpec):
        expert, act = spec.experts.inner, spec.experts.act
    trial = KernelTrial(
        TrialSizes(
            spec.hidden_size, spec.intermediate_size, spec.num_heads if spec.kv.plain else 0,
            spec.kv.heads, spec.head_dim, spec.rope.partial, expert, act,
        ),
        plan.place, torch_dtype(plan.dtype),
    )  # fmt: skip
    wanted = [name for name in FUSED_KERNELS if name not in disabled]
    for name, error in trial.failures(wanted):
        failed.note(f"the fused kernel {name}", error, "torch's operations are used")
        disabled = (*disabled, name)
    return disabled


def context_length_of(settings: ModelConfig, spec: ModelSpec) -> int:
    """Return the context length to serve, in tokens. Raises ValueError above the model's own."""
    requested = settings.context_length
    if requested > spec.context_length:
        raise ValueError(
            f"context_length is {requested}; the model is made for {spec.context_length} tokens. "
            f"Lower it, or set a RoPE scaling in the model's config.json."
        )
    if not requested and spec.context_length > LONGEST:
        raise ValueError(
            f"the model's configuration says {spec.context_length} tokens of context, for which "
            f"tables of positions would be made; say what is needed with --context-length."
        )
    return requested or spec.context_length


def device_of(name: str, first: int = 0) -> Device:
    """Return the device ``name``. "cuda" without a number is GPU ``first``, or the current GPU if
    ``first`` is 0. Imports torch for the name of a GPU, and for "auto" if the machine has a GPU.
    Raises ValueError if the device cannot be used."""
    if name == "auto":
        name = "cuda" if gpu_driver() and torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return Device(name)
    if name == "cuda" and first:
        name = f"cuda:{first}"
    try:
        device = torch.empty(1, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError, ModuleNotFoundError) as error:
        raise ValueError(
            f"device {name!r} cannot be used: {str(error).splitlines()[0].rstrip('.')}."
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported; use auto, cpu or cuda.")
    return Device(str(device))


def gpu_driver() -> bool:
    """Return True if NVIDIA's GPU driver and torch are installed."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return importlib.util.find_spec("torch") is not None
