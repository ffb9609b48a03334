"""Roofline: the least time that work can take on this machine (Williams, Waterman, Patterson 2009).

A phase takes at least max(bytes / bandwidth, operations / peak), and phases follow one another:

    prefill       operations  2 T P + 4 H D N sum of keys seen + 2 R V E, over T prompt tokens,
                              R of them last ones; bytes: all weights once
    decode step   operations  R (2 P + 2 V E + 4 H D N keys); bytes: all weights, KV of R rows

with N layers, H heads of D, embedding width E, vocabulary V, and P weights in the layers. A prefix
that prompts share counts once, in prefill and in the KV that a step reads. A schedule is as short
as it can be: all prompts in one prefill, then all sequences sample together.

Bandwidth is measured over a buffer as large as the weights, so a model that fits the cache gets the
cache's. The peak is the fastest matrix product found here. Both are measured in the same run as the
engines: on a shared machine they change as much.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from benchmark.models import Shape
from benchmark.peers.sides.wire import Request, shared_beginning

SOURCE = Path(__file__).with_name("bandwidth.c")
BYTES_READ = 1 << 31  # bytes that one measurement reads
SIDE = 1536  # rows and columns of the matrices of the peak
SLOW = 1.0  # seconds of a product that is not tried again


@dataclass(frozen=True)
class Limits:
    """Limits of one machine, for one size of weights: bytes a second, operations a second."""

    bandwidth: float
    bfloat16: float
    int8: float


def seconds(shape: Shape, requests: Sequence[Request], limits: Limits, kind: str) -> float:
    """Least seconds of the requests. ``kind`` is the weights' format, "bfloat16" or "int8"; the KV
    is bfloat16."""
    weights = shape.parameters * (2 if kind == "bfloat16" else 1)
    peak = limits.bfloat16 if kind == "bfloat16" else limits.int8
    head = 2 * shape.vocab * shape.hidden
    inner = 2 * (shape.parameters - shape.vocab * shape.hidden)
    # Operations a key that a token sees; bytes of KV a token.
    seen = 4 * shape.heads * shape.head * shape.layers
    kv = 2 * 2 * shape.kv_heads * shape.head * shape.layers
    shared = shared_beginning([prompt for prompt, _ in requests])
    own = [len(prompt) - shared for prompt, _ in requests]
    keys = shared * (shared + 1) / 2 + sum(n * shared + n * (n + 1) / 2 for n in own)
    operations = (shared + sum(own)) * inner + seen * keys + len(requests) * head
    total = max(operations / peak, weights / limits.bandwidth)
    for step in range(1, max(count for _, count in requests)):
        lengths = [n + step for n, (_, count) in zip(own, requests) if count > step]
        read = weights + kv * (shared + sum(lengths))
        done = sum(inner + head + seen * (shared + length) for length in lengths)
        total += max(read / limits.bandwidth, done / peak)
    return total


class Meter:
    """Measures the limits; compiles ``bandwidth.c`` once. Raises OSError without a C compiler."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        with tempfile.TemporaryDirectory(prefix="bandwidth-") as folder:
            library = Path(folder) / "bandwidth.so"
            flags = ["-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
            command = [os.environ.get("CC", "cc"), *flags, str(SOURCE), "-o", str(library)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise OSError(f"{' '.join(command)} failed: {done.stderr[-500:]}")
            self._read = ctypes.CDLL(str(library)).read_bandwidth
        self._read.restype = ctypes.c_double
        self._read.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int]

    def bandwidth(self, size: int, tries: int = 3) -> float:
        """Bytes a second read from a buffer of ``size`` bytes, the best of several tries."""
        rounds = max(1, BYTES_READ // size)
        return max(float(self._read(size, self.threads, rounds)) for _ in range(tries))

    def peak(self, kind: str, tries: int = 5) -> float:
        """Operations a second of the fastest matrix product in ``kind``: torch's or our own."""
        best = 0.0
        for product in [*_torch_products(kind, self.threads), *_own_products(kind, self.threads)]:
            for _ in range(tries):
                began = perf_counter()
                product()
                seconds = perf_counter() - began
                best = max(best, 2 * SIDE**3 / seconds)
                if seconds > SLOW:  # an emulated format; no try will be the fastest
                    break
        return best

    def limits(self, weights: int) -> Limits:
        """Limits for weights of ``weights`` bytes."""
        bfloat16 = self.peak("bfloat16")
        # Where int8 is slow, weights may be rounded up to bf16 on the way.
        return Limits(self.bandwidth(weights), bfloat16, max(bfloat16, self.peak("int8")))


def _torch_products(kind: str, threads: int) -> list[Callable[[], object]]:
    import torch

    torch.set_num_threads(threads)
    if kind == "int8":
        a, b = (torch.randint(-9, 9, (SIDE, SIDE), dtype=torch.int8) for _ in range(2))
        return [lambda: torch._int_mm(a, b)]
    c = torch.randn(SIDE, SIDE)
    d = c.bfloat16()
    return [lambda: d @ d, lambda: c @ c]


def _own_products(kind: str, threads: int) -> list[Callable[[], object]]:
    """Empty where sgl-kernel is not installed, or was not compiled."""
    import torch

    try:
        from sgl_kernel.packed import linear, pack

        weight = pack(torch.randn(SIDE, SIDE), "w8a8" if kind == "int8" else "bf16")
    except (ImportError, RuntimeError):
        return []
    x = torch.randn(SIDE, SIDE)
    return [lambda: linear(x, weight, threads=threads)]
