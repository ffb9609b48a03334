"""Native matrix products against torch's: ``python -m benchmark.kernels.gemm``.

Both sides run in turns over the same copies of the weights, more of them than the caches hold, and
the ratio of a turn's two times is taken; its median counts. GB/s (of packed weights) and GFLOP/s
are those of the fastest turn. With one thread processor time counts, not the clock: cores may be
shared. Outputs are compared before anything is measured. Two limits are measured as well: how fast
the same memory can be read at all, and how fast bf16 products run on weights that never leave the
nearest cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from sgl_kernel import native, packed
from torch import Tensor
from torch.nn import functional

from benchmark.harness.command import command_parser

SHAPES = ((2048, 768), (5632, 2048), (32000, 768))
ROWS = (1, 4, 16, 64, 512)
MEMORY = 96 << 20  # bytes of weights to go through: more than a cache holds
BOUNDS = {"f32": 1e-4, "bf16": 1e-2, "w8a8": 5e-2, "w8": 2e-2, "w4": 0.3}


@dataclass(frozen=True)
class Weights:
    """Copies of one matrix: packed, and as torch wants it for the product it has."""

    format: str
    packed: list[packed.Packed]
    torch: list[Callable[[Tensor], Tensor]] | None  # None: torch has no such product


def weights(format: str, n: int, k: int, threads: int) -> Weights:
    w = torch.randn(n, k) / k**0.5
    first = packed.pack(w, format, threads=threads)
    copies = max(1, MEMORY // len(first.data))
    ours = [first, *(packed.pack(w, format, threads=threads) for _ in range(copies - 1))]
    return Weights(format, ours, [product for _ in range(copies) if (product := rival(format, w))])


def rival(format: str, w: Tensor) -> Callable[[Tensor], Tensor] | None:
    """torch's product with a copy of ``w``; activations as it takes them are made beforehand."""
    if format == "f32":
        copy = w.clone()
        return lambda x: functional.linear(x, copy)
    if format == "bf16":
        half = w.bfloat16()
        return lambda x: functional.linear(x, half)
    scale = w.abs().amax(-1) / 127
    q = (w / scale[:, None]).round().to(torch.int8)
    if format == "w8":
        narrow = scale.bfloat16()
        return lambda x: torch.ops.aten._weight_int8pack_mm(x, q, narrow)
    if format == "w8a8":  # without the conversion of x, which is a part of ours
        columns, factors = q.t(), scale
        return lambda x: torch._int_mm(x, columns) * factors
    return None


def activations(format: str, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """x as torch's product takes it, and what its result is to be multiplied with."""
    if format == "f32":
        return x, None
    if format != "w8a8":
        return x.bfloat16(), None
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().to(torch.int8), scale


def measure(w: Weights, m: int, threads: int, turns: int) -> str:
    clock = time.process_time if threads == 1 else time.perf_counter
    n, k = w.packed[0].n, w.packed[0].k
    x, out = torch.randn(m, k), torch.empty(m, n)
    theirs, scale = activations(w.format, x)
    copies = min(len(w.packed), max(1, 512 // m))
    exact = x @ w.packed[0].rows(torch.arange(n), threads).T
    check(w.format, packed.linear(x, w.packed[0], threads=threads), exact)
    # _int_mm is for more rows than 16.
    rivals = [] if not w.torch or (w.format == "w8a8" and m <= 16) else w.torch[:copies]
    if rivals:
        y = rivals[0](theirs).float()
        check(w.format, y * scale if scale is not None else y, exact)

    def ours_once() -> None:
        for each in w.packed[:copies]:
            packed.linear(x, each, out=out, threads=threads)

    def rivals_once() -> None:
        for each in rivals:
            each(theirs)

    def seconds(run: Callable[[], None]) -> float:
        begin = clock()
        run()
        return (clock() - begin) / copies

    pairs = [(seconds(ours_once), seconds(rivals_once)) for _ in range(turns)]
    best = min(mine for mine, _ in pairs)
    text = f"{len(w.packed[0].data) / best / 1e9:6.1f} {2e-9 * m * n * k / best:7.0f}"
    return f"{text} {median(b / a for a, b in pairs):6.2f}" if rivals else f"{text}      -"


def check(format: str, y: Tensor, exact: Tensor) -> None:
    error = ((y - exact).abs() / exact.abs().amax(-1, keepdim=True)).max()
    assert error <= BOUNDS[format], f"{format}: outputs differ by {error:.1e}"


def read_limit(threads: int, turns: int) -> float:
    """GB/s of reading memory in two runs a thread: the sum of a large tensor of floats."""
    torch.set_num_threads(threads)
    data = torch.ones(MEMORY // 2)
    clock = time.process_time if threads == 1 else time.perf_counter
    best = float("inf")
    for _ in range(turns):
        begin = clock()
        data.sum()
        best = min(best, clock() - begin)
    return data.nbytes / best / 1e9


def product_limit(threads: int, turns: int) -> float:
    """GFLOP/s of bf16 on a matrix that fits the second cache: the kernel without memory."""
    w = packed.pack(torch.randn(64 * threads, 512), "bf16")
    x, out = torch.randn(480, 512), torch.empty(480, 64 * threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    best = float("inf")
    for _ in range(10 * turns):
        begin = clock()
        packed.linear(x, w, out=out, threads=threads)
        best = min(best, clock() - begin)
    return 2e-9 * out.numel() * 512 / best


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("benchmark.kernels.gemm", __doc__)
    parser.add_argument("--threads", type=int, default=native.cores())
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--formats", nargs="+", default=list(packed.FORMATS))
    parser.add_argument("--smoke", action="store_true", help="one small matrix")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    shapes, rows = (((300, 256),), (1, 5)) if options.smoke else (SHAPES, ROWS)
    if not options.smoke:
        print(
            f"{native.isa()}, {options.threads} threads; memory is read at "
            f"{read_limit(options.threads, options.turns):.0f} GB/s, bf16 products without memory "
            f"run at {product_limit(options.threads, options.turns):.0f} GFLOP/s"
        )
    print("GB/s of weights, GFLOP/s, torch's time over ours, by rows of x")
    print(f"{'':20s}" + "".join(f"{m:>22d}" for m in rows))
    for n, k in shapes:
        for format in options.formats:
            w = weights(format, n, k, options.threads)
            cells = [measure(w, m, options.threads, options.turns) for m in rows]
            print(f"{f'{n} x {k} {format}':20s}" + " ".join(cells), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
