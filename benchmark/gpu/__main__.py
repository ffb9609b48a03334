"""``python -m benchmark.gpu``: everything there is to measure on a GPU, in ten minutes.

    environment   versions, the GPU
    ceilings      copy bandwidth and the rate of products: what the bounds below are made of
    checks        test/gpu: bfloat16 against float64
    kernels       attention: ours, FlashInfer's, torch's
    engine        decode and prefill of 1 B and 8 B models: eager, replayed, overlapped; goals

Each stage has a share of the time, and what does not fit is left out by name. Tables are printed
last; with ``--out`` they are saved as JSON after every stage. Exit status: 0, 1 where a check has
failed or a stage broke, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sglang.srt.config.sections import ATTENTION_BACKENDS

if TYPE_CHECKING:
    from benchmark.gpu.bench import Bench

# Stages and the most seconds each takes of ten minutes; what one leaves, the next ones have.
STAGES = {"environment": 10, "ceilings": 30, "checks": 150, "kernels": 130, "engine": 260}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmark.gpu")
    parser.add_argument("--stages", default=",".join(STAGES), help="with commas, in any order")
    parser.add_argument("--minutes", type=float, default=10.0, help="time for all stages")
    parser.add_argument("--out", type=Path, help="folder for gpu.json")
    parser.add_argument(
        "--attention-backend", default="auto", choices=ATTENTION_BACKENDS, help="of the engine"
    )
    parser.add_argument("--tiny", action="store_true", help="toy sizes on the CPU, for tests")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    wanted = options.stages.split(",")
    if unknown := sorted(set(wanted) - set(STAGES)):
        parser().error(f"--stages has {', '.join(unknown)}; there are {', '.join(STAGES)}")
    import torch

    from benchmark.gpu.bench import Bench

    if not options.tiny and not torch.cuda.is_available():
        print(
            "No GPU: torch finds no CUDA device here. Run this on a machine with an NVIDIA GPU, or "
            "with --tiny to try its code on the CPU.",
            file=sys.stderr,
        )
        return 2
    device = torch.device("cpu" if options.tiny else "cuda")
    dtype = torch.float32 if options.tiny else torch.bfloat16
    bench = Bench(device, dtype, options.tiny, options.out, options.attention_backend)
    good = run(bench, wanted, options.minutes)
    print("\n\n".join(table.text() for table in bench.tables))
    return 0 if good else 1


def run(bench: Bench, wanted: Sequence[str], minutes: float) -> bool:
    """All stages in order. One that breaks is reported and the others still run."""
    from benchmark.gpu.ceilings import ceilings, environment
    from benchmark.gpu.checks import checks
    from benchmark.gpu.engine import engine
    from benchmark.gpu.kernels import kernels

    stages: dict[str, Callable[[Bench], bool | None]] = {
        "environment": environment, "ceilings": ceilings, "checks": checks, "kernels": kernels,
        "engine": engine,
    }  # fmt: skip
    if {"kernels", "engine"} & set(wanted) and "ceilings" not in wanted:
        wanted = [*wanted, "ceilings"]  # bounds are made of them
    began, total, good = time.monotonic(), sum(STAGES.values()), True
    share = 0.0
    for name, stage in stages.items():
        share += STAGES[name] * minutes * 60 / total
        if name not in wanted:
            continue
        bench.deadline = began + share
        print(f"-- {name}", flush=True)
        try:
            good &= stage(bench) is not False
        except Exception as error:
            traceback.print_exc()
            bench.table(f"{name} (broken)").remarks.append(f"{type(error).__name__}: {error}")
            good = False
        bench.save()
    return good


if __name__ == "__main__":
    sys.exit(main())
