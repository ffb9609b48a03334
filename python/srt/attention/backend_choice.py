"""Choice of the attention implementation for a device: ``--attention-backend``.

    native          plain torch, on every device
    triton          the kernels of sgl_kernel.triton, on NVIDIA GPUs
    flashinfer      the kernels of the package flashinfer, on NVIDIA GPUs since Ampere
    flashinfer-fa3  the same, prompts by FlashAttention-3, on NVIDIA GPUs of the Hopper family

"auto" takes the last of these that can run; FlashAttention-3 only where it is compiled already. It
is held to ``native`` before it is used (``attention.self_check``).
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
# Sizes that flashinfer's kernels are made for.
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
    """``name`` of an implementation, and ``reason`` in words."""

    name: str
    reason: str


def choose(
    asked: str,
    device: Any,
    shape: Shape | None = None,
    dtype: torch.dtype | None = None,
) -> BackendChoice:
    """The implementation for ``asked``. ``shape`` and ``dtype``: None where not known yet.

    Raises ValueError, with the cause and what to do, where one requested by name cannot run.
    """
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
    """The implementation for ``asked``, then, for "auto", those to go on with where it fails, the
    fastest first. Raises the errors of ``choose``."""
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
    """The implementation called ``name``, without the kernels that are ``disabled``. Its own
    imports happen here, and only here."""
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
    """Bytes that the implementation called ``name`` keeps for partial results; ``rows`` as for
    ``flashinfer_attention.workspace_bytes``."""
    if name not in ("flashinfer", FA3):
        return 0
    from sglang.srt.attention.flashinfer_attention import processors_of, workspace_bytes

    kv = shape.kv
    return workspace_bytes(shape.num_heads, kv.heads, kv.key_dim, rows, processors_of(device))


def _lacks(name: str, device: Any, shape: Shape | None, dtype: torch.dtype | None) -> str:
    """Cause that keeps ``name`` from running, and what to do; "" where it can run."""
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
    """Whether ``asked`` takes FlashAttention-3's kernels once they are compiled. ``capped``: scores
    have a soft cap; "auto" leaves these layers to other kernels."""
    wanted = asked == FA3 or (asked == "auto" and not capped)
    return wanted and not _lacks(FA3, device, shape, dtype)


def _awaits(name: str, shape: Shape | None, dtype: torch.dtype | None) -> str:
    """Cause that keeps "auto" from taking what could run."""
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
    """Cause that keeps the kernels of sgl_kernel.triton from running, and what to do."""
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
    """Whether flashinfer can compile its kernels, or has them compiled."""
    if found("flashinfer_jit_cache"):
        return True
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    return shutil.which("nvcc") is not None or Path(home, "bin", "nvcc").exists()


def found(package: str) -> bool:
    """Whether ``package`` is installed; it is not imported."""
    return importlib.util.find_spec(package) is not None
