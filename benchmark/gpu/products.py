"""Products: the matrix products of four published sizes of models, at 1 to 4096 tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.gpu.bench import Bench, share
from benchmark.gpu.shapes import SHAPES, TINY
from benchmark.gpu.timing import copies, timed

TOKENS = (1, 32, 256, 4096)
# The head computes the last positions alone, so no pass has it for more rows.
HEAD_ROWS = 256


def products(bench: Bench) -> None:
    """Seconds, and the bound: weights, inputs and outputs by the copy rate, or operations."""
    for shape in (TINY,) if bench.tiny else SHAPES:
        for name, (rows, columns) in shape.projections.items():
            for tokens in (1, 3) if bench.tiny else TOKENS:
                if name == "head" and tokens > HEAD_ROWS:
                    continue
                label = f"{shape.name} {name} x {tokens}"
                if not bench.enough(3, f"{label} and what follows"):
                    return
                if not bench.first(label):
                    continue
                try:
                    found = _measured(bench, rows, columns, tokens)
                except (RuntimeError, MemoryError) as error:
                    bench.failed(label, error)
                    continue
                bench.row(
                    "products", model=shape.name, product=name, tokens=tokens,
                    shape=f"{rows} x {columns}", **found,
                )  # fmt: skip
        if bench.on_gpu:
            torch.cuda.empty_cache()


def _measured(bench: Bench, rows: int, columns: int, tokens: int) -> dict[str, Any]:
    size = bench.dtype.itemsize * rows * columns
    weights = [bench.random(rows, columns, scale=columns**-0.5) for _ in range(copies(size))]
    x = bench.random(tokens, columns)
    works: list[Callable[[], Tensor]] = [partial(F.linear, x, weight) for weight in weights]
    timing = timed(bench, works, 0.2)
    moved = bench.dtype.itemsize * (rows * columns + tokens * (rows + columns))
    bound = bench.bound(moved, 2.0 * rows * columns * tokens)
    return {
        "us": timing.seconds * 1e6, "bound us": bound * 1e6 or None,
        "of bound": share(bound, timing.seconds), "how": timing.how,
    }  # fmt: skip
