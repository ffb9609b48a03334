"""Choice of the attention implementation for a device: ``--attention-backend``.

    native          plain torch, on every device
    triton          the kernels of sgl_kernel.triton, on NVIDIA GPUs
    flashinfer      the kernels of the package flashinfer, on NVIDIA GPUs since Ampere
    flashinfer-fa3  the same, prompts by FlashAttention-3, on NVIDIA GPUs of the Hopper family

"auto" takes the last of these that can run, but FlashAttention-3 only if it is compiled already.
FlashAttention-3 is compared with ``native`` before it is used (``attention.self_check``).
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sglang.srt.attention.attention_protocol import Attention, KVShape
from sglang.srt.numeric.torch_later import Tensor, torch

log = logging.getLogger("sglang.srt.attention")
FA3 = "flashinfer-fa3"
PREFERRED = (FA3, "flashinfer", "triton", "native")
# Head sizes that flashinfer's kernels support.
FLASHINFER_DIMS = (64, 128, 256)
TRITON_DIMS = range(16, 257)


class Shape(Protocol):
    """The part of a model's spec (``models.model_spec.ModelSpec``) that attention needs."""

    @property
    def num_heads(self) -> int: ...
    @property
    def kv(self) -> KVShape: ...
    @property
    def sinks(self) -> bool: ...
    @property
    def windows(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class BackendChoice:
    """``name`` of the chosen implementation, and the ``reason`` for the choice in words."""

    name: str
    reason: str


def choose(
    asked: str,
    device: Any,
    shape: Shape | None = None,
    dtype: torch.dtype | None = None,
) -> BackendChoice:
    """Return the implementation for ``asked``: "auto" or a name. ``shape``: model spec; ``dtype``:
    of the KV cache; None if not known yet. Raises ValueError, with the cause and the remedy, if an
    implementation requested by name cannot run."""
    if asked != "auto":
        lacks = _lacks(asked, device, shape, dtype)
        if lacks:
            raise ValueError(f"--attention-backend {asked} cannot run: {lacks}")
        return BackendChoice(asked, "asked for")
    if device.type != "cuda":
        return BackendChoice("native", f"the device is {device.type}")
    passed: list[str] = []
    for name in PREFERRED:
        lacks = _lacks(name, device, shape, dtype) or _awaits(name, shape, dtype)
        if not lacks:
            return BackendChoice(name, "; ".join(passed) or "the fastest there is")
        passed.append(f"not {name}: {lacks.partition(';')[0]}")
    raise AssertionError("native runs everywhere")


def candidates(asked: str, device: Any, shape: Shape, dtype: torch.dtype) -> list[BackendChoice]:
    """Return the implementation for ``asked``, and for "auto" also the fallbacks, fastest first.
    Raises the errors of ``choose``."""
    first = choose(asked, device, shape, dtype)
    if asked != "auto":
        return [first]
    slower = PREFERRED[PREFERRED.index(first.name) + 1 :]
    after = [name for name in slower if not _lacks(name, device, shape, dtype)]
    return [first, *(BackendChoice(name, f"{first.name} failed") for name in after)]


def build(
    name: str, keys: Sequence[Tensor], values: Sequence[Tensor], page_size: int, shape: Shape,
    disabled: Collection[str] = (),
) -> Attention:  # fmt: skip
    """Make the implementation ``name`` over KV pools, without ``disabled`` kernels. Imports the
    module of that implementation only."""
    heads = shape.num_heads
    if name == "triton":
        from sglang.srt.attention.triton_attention import TritonAttention

        return TritonAttention(keys, values, page_size, shape.windows, heads, disabled)
    if name in ("flashinfer", FA3):
        from sglang.srt.attention.flashinfer_attention import FlashInferAttention

        return FlashInferAttention(
            keys, values, page_size, shape.windows, heads, disabled, fa3=name == FA3
        )
    from sglang.srt.attention.native_attention import NativeAttention

    return NativeAttention(keys, values, page_size, shape.windows)


def workspace(name: str, shape: Shape, rows: int, device: Any) -> int:
    """Return the bytes that the implementation ``name`` allocates for partial results. ``rows``:
    see ``flashinfer_attention.workspace_bytes``."""
    if name not in ("flashinfer", FA3):
        return 0
    from sglang.srt.attention.flashinfer_attention import processors_of, workspace_bytes

    kv = shape.kv
    return workspace_bytes(shape.num_heads, kv.heads, kv.key_dim, rows, processors_of(device))


def _lacks(name: str, device: Any, shape: Shape | None, dtype: torch.dtype | None) -> str:
    """Return the reason why ``name`` cannot run, with the remedy; "" if it can."""
    if name == "native":
        return ""
    if name == "triton":
        return triton_lacks(device, shape) or _triton_lacks_float8(device, dtype)
    if device.type != "cuda":
        return f"the device is {device.type}; use native, or --device cuda."
    if not found("flashinfer"):
        return (
            "the package flashinfer is not installed; "
            "pip install -e '.[flashinfer]' in the project's folder."
        )
    if not _compiler():
        return "flashinfer compiles its kernels and finds no nvcc; set CUDA_HOME, or use triton."
    capability = torch.cuda.get_device_capability(device)
    shown = ".".join(map(str, capability))
    if capability < (8, 0):
        return f"the GPU's compute capability is {shown}, 8.0 is needed; use triton or native."
    if name == FA3 and capability[0] != 9:
        return f"the GPU's compute capability is {shown}, it must be 9.0; use flashinfer."
    if dtype not in (None, torch.float16, torch.bfloat16):
        return f"the KV cache is {dtype}, it must be 16-bit; use triton."
    if shape is None:
        return ""
    if shape.sinks:
        return "its kernels know no attention sinks; use triton or native."
    if not shape.kv.plain:
        return f"{_uneven(shape.kv)}; use native."
    if shape.kv.key_dim not in FLASHINFER_DIMS:
        return f"heads of {shape.kv.key_dim} are none of {FLASHINFER_DIMS}; use triton or native."
    return ""


def takes_fa3(asked: str, device: Any, shape: Shape, dtype: torch.dtype, capped: bool) -> bool:
    """Return True if ``asked`` uses FlashAttention-3's kernels once they are compiled. ``capped``:
    scores have a soft cap, for which "auto" uses other kernels."""
    wanted = asked == FA3 or (asked == "auto" and not capped)
    return wanted and not _lacks(FA3, device, shape, dtype)


def _awaits(name: str, shape: Shape | None, dtype: torch.dtype | None) -> str:
    """Return the reason why "auto" does not take ``name`` although it can run, "" for none."""
    if name != FA3:
        return ""
    if shape is None or dtype is None:
        return "which of its kernels are compiled shows with the model"
    from sglang.srt.attention.flashinfer_attention import fa3_compiled

    if fa3_compiled(shape.kv.key_dim, dtype, shape.windows):
        return ""
    return f"its kernels are not compiled yet; --attention-backend {FA3} compiles them once"


def _uneven(kv: KVShape) -> str:
    return f"its keys and values are of one size, not of {kv.key_dim} and {kv.value_dim} dimensions"


def triton_lacks(device: Any, shape: Shape | None = None) -> str:
    """Return the reason why the kernels of sgl_kernel.triton cannot run, with the remedy."""
    if not found("triton"):
        return (
            "the package triton is not installed; pip install -e '.[gpu]' in the project's folder."
        )
    if not found("sgl_kernel"):
        return "the package sgl-kernel is not installed; pip install ./sgl-kernel."
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not interpreted:
        return (
            f"the device is {device.type}; use native, or --device cuda (TRITON_INTERPRET=1 runs "
            f"it on a CPU, for tests)."
        )
    if shape is None:
        return ""
    if not shape.kv.plain:
        return f"{_uneven(shape.kv)}; use native."
    if shape.kv.key_dim not in TRITON_DIMS:
        return f"heads of {shape.kv.key_dim} are not in 16 to 256; use native."
    return ""


def _triton_lacks_float8(device: Any, dtype: torch.dtype | None) -> str:
    if dtype != torch.float8_e4m3fn or device.type != "cuda":
        return ""
    capability = torch.cuda.get_device_capability(device)
    if capability >= (8, 9):
        return ""
    shown = ".".join(map(str, capability))
    return f"for an fp8 KV cache it needs compute capability 8.9, the GPU has {shown}; use native."


def _compiler() -> bool:
    """Return True if flashinfer's kernels are precompiled or nvcc is found to compile them."""
    if found("flashinfer_jit_cache"):
        return True
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    return shutil.which("nvcc") is not None or Path(home, "bin", "nvcc").exists()


def found(package: str) -> bool:
    """Return True if ``package`` is installed, without importing it."""
    return importlib.util.find_spec(package) is not None
