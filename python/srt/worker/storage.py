"""Storage: formats of weights and KV cache in memory, which follow from the requested formats and
those of the checkpoint."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.config import Config, ModelConfig
from sglang.srt.config.sections import PUBLISHED
from sglang.srt.layers.float8_product import choose_product
from sglang.srt.layers.weight import Slots
from sglang.srt.models.checkpoint import Checkpoint
from sglang.srt.models.model_spec import ModelSpec
from sglang.srt.numeric.host_arrays import (
    BFLOAT16,
    FLOAT8,
    FLOAT16,
    FLOAT32,
    INT8,
    DType,
    torch_dtype,
)

log = logging.getLogger("sglang.srt.worker")

# Bytes of a parameter in memory, scales included, by --quantization.
BYTES = {"int8": 1.01, "int8wo": 1.01, "int4": 0.57}
# Bytes of a quantised weight of a checkpoint by its bits, with scales and zeros for groups of 64.
PACKED_BYTES = {4: 0.6, 8: 1.1}
FLOAT8_BYTES = 1.04  # bytes of a float8 weight of a checkpoint, scales included
KV_DTYPES = {"int8": INT8, "fp8": FLOAT8}
DTYPES: dict[str, DType] = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}
# With fewer parameters, float32 is as fast as bfloat16 on a CPU and far more reproducible.
SMALL = 100_000_000


@dataclass(frozen=True)
class Storage:
    """Format of the weights in memory, and the products that read it.

    Attributes:
        dtype: dtype of weights that are floats.
        torch_because: the reason why native kernels do not run the model, "" if they do.
        quantization: quantization at loading: a name of ``BYTES``, or "none".
        bits: bits of the checkpoint's quantised weights that stay quantised, 0 for none.
        weight_bytes: estimated bytes of all weights.
        float8: names of the products for float8 weights of the checkpoint
            (``layers.float8_product``). Key True: one scale per row; False: several.
    """

    parameters: int
    dtype: DType
    kv_dtype: DType
    torch_because: str
    quantization: str
    bits: int
    weight_bytes: int
    float8: Mapping[bool, str] = field(default_factory=dict)


def storage_of(
    config: Config,
    spec: ModelSpec,
    slots: Slots,
    checkpoint: Checkpoint | None,
    device: Any,
) -> Storage:
    """Return the storage of a model; raise ValueError for formats that cannot be combined."""
    settings, asked = config.model, config.memory.kv_cache_dtype
    parameters = sum(math.prod(slot.shape) for slot in slots.values())
    on_load = quantised_on_load(settings.quantization, checkpoint)
    published = checkpoint is not None and any(map(checkpoint.bits, checkpoint.shapes))
    dtype = dtype_of(settings.dtype, spec, parameters, device, published)
    why = no_native(settings, device)
    if why and on_load != "none":
        raise ValueError(f"--quantization {on_load} needs native kernels: {why}. Leave it out.")
    if why and asked == "int8":
        raise ValueError(f"--kv-cache-dtype int8 needs native kernels: {why}. Use fp8 or auto.")
    bits = packed_bits(checkpoint, dtype, not why)
    size = weight_bytes(slots, checkpoint, on_load, dtype, bits > 0)
    kv_dtype = KV_DTYPES.get(asked, dtype)
    forms = {} if checkpoint is None else float8_forms(slots, checkpoint)
    float8 = float8_products(settings, set(forms.values()), dtype, device, not why)
    kept = sum(math.prod(slots[name].shape) for name, form in forms.items() if form in float8)
    size -= int(kept * (dtype.itemsize - FLOAT8_BYTES))
    return Storage(parameters, dtype, kv_dtype, why, on_load, bits, size, float8)


def float8_products(
    settings: ModelConfig, forms: Collection[bool], dtype: DType, device: Any,
    native: bool,
) -> dict[bool, str]:  # fmt: skip
    """Return ``Storage.float8`` for weights of ``forms`` (True: one scale per row). Raises
    ValueError if ``--fp8-gemm-backend`` names a product that cannot run."""
    asked, found = settings.fp8_gemm_backend, {}
    for rowwise in forms:
        if native:
            name, reason = "", "native CPU kernels compute in bfloat16"
            if asked not in ("auto", "none"):
                raise ValueError(f"--fp8-gemm-backend {asked} cannot run: {reason}; leave it out.")
        else:
            name, reason = choose_product(asked, device, torch_dtype(dtype), rowwise)
        what = "rows" if rowwise else "groups of inputs"
        log.info("float8 weights with scales of %s: %s (%s)", what, name or dtype, reason)
        if name:
            found[rowwise] = name
    return found


def float8_forms(slots: Slots, checkpoint: Checkpoint) -> dict[str, bool]:
    """Return the float8 weights by name. Value True: one scale per row; False: several."""
    groups = {name: checkpoint.float8_group(name) for name in slots}
    return {name: group >= slots[name].shape[1] for name, group in groups.items() if group}


def quantised_on_load(asked: str, checkpoint: Checkpoint | None) -> str:
    """Return the quantisation to apply at loading: "none", or a name of ``BYTES``.

    If ``asked`` names a published format (``PUBLISHED``), the checkpoint must have that format and
    is loaded as it is. Raises ValueError if not, and if weights would be quantised twice.
    """
    if asked in PUBLISHED:
        method = "" if checkpoint is None else checkpoint.method
        if asked == method:
            return "none"
        what = f"quantised with {method}" if method else "not quantised"
        if checkpoint is None:
            what = "of dummy weights"
        raise ValueError(
            f"--quantization {asked} says what the checkpoint is; it is {what}. Leave it out."
        )
    if asked != "none" and checkpoint is not None and any(map(checkpoint.bits, checkpoint.shapes)):
        raise ValueError(
            f"--quantization {asked} would quantise weights a second time: the checkpoint is "
            f"{checkpoint.describe()}. Leave it out, or use the unquantised checkpoint."
        )
    return asked


def dtype_of(
    name: str, spec: ModelSpec, parameters: int, device: Any, published: bool = False
) -> DType:
    """Return the dtype of weights that are floats.

    CPUs emulate float16, and the native kernels do not support it. On a CPU a float16 model uses
    float32, which represents the same numbers; a larger model ``published`` in 4 or 8 bits uses
    bfloat16, with which its weights stay quantised. "auto" is the dtype of ``config.json``, except
    on a CPU: float32 for small models, bfloat16 for larger ``published`` ones.
    """
    if device.type != "cpu":
        return DTYPES[name] if name != "auto" else recorded(spec)
    small, half = parameters < SMALL, name == "float16"
    if name != "auto" and not half:
        return DTYPES[name]
    if published and not small:
        dtype: DType = BFLOAT16
    elif half or small or spec.dtype == "float16":
        dtype = FLOAT32
    else:
        dtype = recorded(spec)
    if half:
        log.warning("--dtype float16 is emulated by CPUs; the model is computed in %s", dtype.name)
    return dtype


def recorded(spec: ModelSpec) -> DType:
    """Return the dtype that ``config.json`` names; float32 if it names none or an unsupported
    one."""
    name = spec.dtype.removeprefix("torch.")
    if name and name not in DTYPES:
        log.warning(
            "config.json has dtype %r, which is not supported; the model is computed in float32. "
            "Give --dtype %s for another", spec.dtype, " or ".join(DTYPES),
        )  # fmt: skip
    return DTYPES.get(name, FLOAT32)


def no_native(settings: ModelConfig, device: Any) -> str:
    """Return why native CPU kernels do not run a model, "" if they do. Raises ValueError."""
    if settings.cpu_kernels == "torch":
        return "--cpu-kernels torch"
    try:
        from sglang.srt.worker.packer import unfit
    except ImportError:
        why = "the package sgl-kernel is not installed (pip install ./sgl-kernel)"
    else:
        why = unfit(device)
    if why and settings.cpu_kernels == "native":
        raise ValueError(f"--cpu-kernels native cannot be: {why}.")
    return why


def packed_bits(checkpoint: Checkpoint | None, dtype: DType, native: bool) -> int:
    """Return the bits of most quantised weights of a checkpoint if they stay quantised: with native
    kernels and bfloat16. Return 0 if they become floats (float32 means exact arithmetic)."""
    if checkpoint is None or not native or dtype != BFLOAT16:
        return 0
    bits = [checkpoint.bits(name) for name in checkpoint.shapes]
    return max((b for b in set(bits) if b), key=bits.count, default=0)


def weight_bytes(
    slots: Slots, checkpoint: Checkpoint | None, on_load: str, dtype: DType, packed: bool
) -> int:
    total = 0.0
    for name, slot in slots.items():
        bits = checkpoint.bits(name) if checkpoint is not None and packed else 0
        each = PACKED_BYTES[bits] if bits else BYTES.get(on_load, dtype.itemsize)
        total += math.prod(slot.shape) * each
    return int(total)
