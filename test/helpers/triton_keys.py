"""Triton's own choice of kernel variants, on CPU tensors and without a GPU.

    with sm90() as device:
        ...                     launches take tensors of the CPU and compute nothing
        device.compiled         the variants that Triton would have compiled, in order

A driver that reports an H100 stands in for CUDA's, and a compiler that compiles nothing for
Triton's. What decides on a variant is Triton's: its binder, its keys, its caches and its hooks.
Addresses have the alignment that CUDA's allocator gives: torch aligns CPU tensors to 64 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import triton
import triton.compiler
from sgl_kernel.triton import (
    attention_kernels,
    layer_kernels,
    moe_kernels,
    sampling_kernels,
    scaled_kernels,
)
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

MODULES = (attention_kernels, layer_kernels, moe_kernels, sampling_kernels, scaled_kernels)


class _Launched:
    """A compiled kernel whose launch does nothing."""

    function = packed_metadata = None

    def launch_metadata(self, *arguments: Any) -> None:
        return None

    def run(self, *arguments: Any) -> None:
        return None


class Device:
    """Triton's driver of a device of compute capability 9.0.

    Attributes:
        compiled: name, signature, constants and attributes of each variant.
    """

    def __init__(self) -> None:
        self.compiled: list[tuple[str, dict[str, str], dict[Any, Any], dict[Any, Any]]] = []

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def compile(self, source: Any, **options: Any) -> _Launched:
        """Record the variant. ``source``: Triton's ``ASTSource``."""
        self.compiled.append((source.fn.__name__, source.signature, source.constants, source.attrs))
        return _Launched()

    def names(self) -> dict[str, int]:
        """Number of variants of each kernel."""
        names = [name for name, *_ in self.compiled]
        return {name: names.count(name) for name in sorted(set(names))}


@contextmanager
def sm90() -> Iterator[Device]:
    """Launches inside go to a new device, for which nothing is compiled yet."""
    device, driver = Device(), triton.runtime.driver
    before = driver._active, triton.compiler.compile
    driver.set_active(device)
    triton.compiler.compile = device.compile
    _forget()
    try:
        yield device
    finally:
        driver._active, triton.compiler.compile = before
        _forget()


def _forget() -> None:
    """Empty the kernels' caches of compiled variants."""
    for module in MODULES:
        for kernel in vars(module).values():
            if isinstance(kernel, JITFunction):
                kernel.device_caches.clear()
