"""Stage main: ``python -m benchmark.gpu.stage_main``, the process of one stage.

Exit status: 0, 4 where something it checked is wrong, 3 where it broke, 1 where a case hung. On
SIGTERM the stacks of all threads go to the log.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from benchmark.harness.command import command_parser

BROKEN = 3


def parser() -> argparse.ArgumentParser:
    parser = command_parser("benchmark.gpu.stage_main", __doc__)
    parser.add_argument("stage")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--mode", default="")
    parser.add_argument("--attention-backend", default="auto")
    parser.add_argument("--tiny", action="store_true")
    return parser


def main() -> int:
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, all_threads=True, chain=True)
    options = parser().parse_args()
    deadline = time.monotonic() + options.seconds
    from benchmark.gpu.records import Log
    from benchmark.gpu.supervise import WRONG

    log = Log(options.out, options.stage)
    try:
        good = run(options, log, deadline)
    except Exception as error:
        traceback.print_exc()
        log.remark(f"broken: {type(error).__name__}: {' '.join(str(error).split())[:500]}")
        return BROKEN
    return 0 if good else WRONG


def run(options: argparse.Namespace, log: Any, deadline: float) -> bool:
    """The stage's own result."""
    import torch

    from benchmark.gpu import interpreter
    from benchmark.gpu.bench import Bench
    from benchmark.gpu.records import read, rows
    from benchmark.gpu.stages import CEILINGS, MODES, STAGES

    torch.manual_seed(0)
    interpreter.prepare()
    stage = STAGES[options.stage]
    device = torch.device("cpu" if options.tiny else "cuda")
    settings = {"attention_backend": options.attention_backend, **MODES.get(options.mode, {})}
    measured = {r["ceiling"]: r["value"] for r in rows(read(options.out, CEILINGS), "ceilings")}
    copy, product = (1e12 * float(measured.get(name) or 0) for name in ("copy", "product"))
    dtype = torch.float32 if options.tiny else torch.bfloat16
    bench = Bench(device, dtype, options.tiny, log, deadline, settings, copy, product)
    bench.begun |= {r["case"] for r in read(options.out, options.stage) if r["kind"] == "case"}
    module, _, function = stage.code.partition(":")
    work = getattr(importlib.import_module(f"benchmark.gpu.{module}"), function)
    return work(bench) is not False


if __name__ == "__main__":
    sys.exit(main())
