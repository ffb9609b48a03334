"""The package flashinfer: a faster ``plan``, and compilation of the modules that a model needs.

A module holds the kernels of one dtype, head size, kind of pass, with or without window, and with
or without soft cap. It is compiled at first use, in about a minute, and kept in a folder
(``FLASHINFER_WORKSPACE_BASE``). ``build`` compiles all modules of a model in parallel.

Written for flashinfer 0.6.8.post1.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Modules of the package whose plans compute the length of the longest row.
PLANNERS = ("decode", "prefill")
# Seconds between two progress reports of a build.
INTERVAL = 0.5


@dataclass(frozen=True)
class ModuleNeeds:
    """Properties of a model that select modules.

    Attributes:
        dtype: dtype of queries, keys and values.
        head_dim: dimensions of a query, key or value.
        tensor_cores: decoding uses the module of prompts.
        windows: windows of the layers, 0 for none.
        capped: scores have a soft cap.
        fa3: prompts may use the kernels of FlashAttention-3 (many minutes to compile).
    """

    dtype: torch.dtype
    head_dim: int
    tensor_cores: bool
    windows: tuple[int, ...]
    capped: bool
    fa3: bool = False


def quick_plans(library: Any) -> Any:
    """Patch the package so that its plans compute the longest row quickly; return the package.

    Its plans call Python's ``max`` over a tensor, which makes a tensor of each length: 0.36 ms for
    256 rows, per kind of layer and pass. The patch replaces ``max`` there by ``largest``.
    """
    for name in PLANNERS:
        planner: Any = sys.modules.get(f"{library.__name__}.{name}")
        if planner is not None:
            planner.max = largest
    return library


def largest(*values: Any, **options: Any) -> Any:
    """Return Python's ``max``; for a single tensor, its largest element as a 0-d tensor."""
    if len(values) == 1 and isinstance(values[0], Tensor):
        return values[0].max()
    return builtins.max(*values, **options)


def prompt_spec(
    kernels: str, dtype: torch.dtype, head_dim: int, window: bool, capped: bool = False
) -> Any:
    """Return the JitSpec of a module for prompts. ``kernels``: "fa2" or "fa3"."""
    jit = importlib.import_module("flashinfer.jit")
    dtypes = (dtype, dtype, dtype, torch.int32)
    # Arguments: dimensions of keys, of values, and 0 for no position encoding.
    return jit.gen_batch_prefill_module(
        kernels, *dtypes, head_dim, head_dim, 0, window, capped, False
    )


def specs(needs: ModuleNeeds) -> list[Any]:
    """Return the modules that a model needs, as ``flashinfer.jit.JitSpec`` with a ``name``."""
    jit = importlib.import_module("flashinfer.jit")
    cascade = importlib.import_module("flashinfer.jit.cascade")
    dtypes = (needs.dtype, needs.dtype, needs.dtype, torch.int32)
    found = [cascade.gen_cascade_module()]
    for window in sorted({size > 0 for size in needs.windows}):
        for kernels in ("fa2", "fa3") if needs.fa3 else ("fa2",):
            found.append(prompt_spec(kernels, needs.dtype, needs.head_dim, window, needs.capped))
        if not needs.tensor_cores:
            sizes = (needs.head_dim, needs.head_dim, 0)
            found.append(jit.gen_batch_decode_module(*dtypes, *sizes, window, needs.capped))
    return found


def build(wanted: Iterable[Any], seen: Callable[[int], None]) -> float:
    """Compile the modules that are not compiled yet, one per processor at a time. Return seconds.

    seen: called every ``INTERVAL`` seconds with the number of compiled modules. Raises
    RuntimeError if the compiler fails.
    """
    wanted, began = list(wanted), time.perf_counter()
    jit = importlib.import_module("flashinfer.jit")
    with ThreadPoolExecutor(1, "flashinfer-build") as pool:
        work = pool.submit(jit.build_jit_specs, wanted, verbose=False, skip_prebuilt=True)
        while not work.done():
            wait([work], timeout=INTERVAL)
            seen(sum(spec.is_compiled for spec in wanted))
        work.result()
    return time.perf_counter() - began
