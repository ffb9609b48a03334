"""The package flashinfer: how its plans are made quicker, and the modules that a model needs.

A module holds the kernels of one dtype, head size, window (with or without), soft cap (likewise)
and kind of pass. It is compiled at first use, in about a minute, and kept in a folder
(``FLASHINFER_WORKSPACE_BASE``). ``build`` compiles all that a model needs at once.

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

# Files of the package whose plans look for the longest row.
PLANNERS = ("decode", "prefill")
# Seconds between two looks at what is compiled.
INTERVAL = 0.5


@dataclass(frozen=True)
class ModuleNeeds:
    """The model's part in the choice of modules.

    Attributes:
        dtype: of queries, keys and values.
        head_dim: of all three.
        tensor_cores: decoding takes the module of prompts.
        windows: of the layers, 0 for none.
        capped: whether scores have a soft cap.
        fa3: prompts may take the kernels of FlashAttention-3 (many minutes to compile).
    """

    dtype: torch.dtype
    head_dim: int
    tensor_cores: bool
    windows: tuple[int, ...]
    capped: bool
    fa3: bool = False


def quick_plans(library: Any) -> Any:
    """The package, whose plans find the longest row quickly.

    They call Python's ``max`` over a tensor, which makes a tensor of each length: 0.36 ms for 256
    rows, for each kind of layer and pass. Their files get a ``max`` that leaves tensors to torch.
    """
    for name in PLANNERS:
        planner: Any = sys.modules.get(f"{library.__name__}.{name}")
        if planner is not None:
            planner.max = largest
    return library


def largest(*values: Any, **options: Any) -> Any:
    """Python's ``max``; of a single tensor, its largest element as a tensor without dimensions."""
    if len(values) == 1 and isinstance(values[0], Tensor):
        return values[0].max()
    return builtins.max(*values, **options)


def prompt_spec(
    kernels: str, dtype: torch.dtype, head_dim: int, window: bool, capped: bool = False
) -> Any:
    """Description of a module of prompts; ``kernels``: "fa2" or "fa3"."""
    jit = importlib.import_module("flashinfer.jit")
    dtypes = (dtype, dtype, dtype, torch.int32)
    # Dimensions of keys and of values; no position code.
    return jit.gen_batch_prefill_module(
        kernels, *dtypes, head_dim, head_dim, 0, window, capped, False
    )


def specs(needs: ModuleNeeds) -> list[Any]:
    """Descriptions of the modules, ``flashinfer.jit.JitSpec``, each with a ``name``."""
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
    """Compile what is not compiled yet, as much at once as there are processors. Return seconds.

    seen: called again and again with the number of modules that are ready. Raises RuntimeError
    where the compiler fails.
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
