"""``python -m benchmark.gpu``: everything there is to know on a GPU's first half hour.

    environment   versions, the GPU
    ceilings      copy bandwidth and rates of products: what the bounds below are made of
    checks        test/gpu: bfloat16 against float64, a process a file
    attention     ours, FlashInfer's, torch's: short, long, skewed, shared, mixed, fp8
    products      the matrix products of 1 B, 8 B, 14 B, 32 B and of a mixture of experts
    layers        norms, gates, rotation with the append of keys and values
    sampling      greedy, temperature, top-k, top-p
    experts       routing and experts of a mixture
    passes        whole models: decode, prefill, mixed; launches, memory, waits, compilations
    profile       time by kernel
    load          the engine with 64 requests, overlap on and off

Each stage is a process with a share of the time. One that dies, hangs or breaks is recorded; where
it runs the engine, it is tried again eagerly and with the next attention backend. Results are lines
of JSON in --out as they come, and in the end report.md, report.json and plots. Exit status: 0, 1
where a stage found something wrong or broke, 2 without a GPU, 130 where it was interrupted (also by
SIGTERM, or by a terminal that is gone). Where the process itself was killed, --report FOLDER writes
the report of what is there.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from benchmark.gpu.report import write
from benchmark.gpu.stages import REPORT, STAGES, Stage, chosen
from benchmark.gpu.supervise import Supervisor
from benchmark.harness.command import command_parser


def parser() -> argparse.ArgumentParser:
    parser = command_parser("benchmark.gpu", __doc__)
    parser.add_argument("--stages", default=",".join(STAGES), help="with commas, in any order")
    parser.add_argument("--minutes", type=float, default=30.0, help="time for all stages")
    parser.add_argument(
        "--out", type=Path, help="folder of the results; default: benchmark/results/gpu-TIME"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FOLDER", help="write the report of an earlier run and exit"
    )
    parser.add_argument("--attention-backend", default="auto", help="of the engine; default: auto")
    parser.add_argument("--tiny", action="store_true", help="toy sizes on the CPU, for tests")
    parser.add_argument(
        "--wheels", action="store_true",
        help="print what to carry to a machine that has torch and no network, and exit",
    )  # fmt: skip
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.wheels:
        from benchmark.gpu.wheels import page

        print(page())
        return 0
    if options.report:
        if not (options.report / "stages").is_dir():
            parser().error(f"--report is {options.report}, which has no results of a run")
        print(write(options.report, list(STAGES.values())))
        return 0
    try:
        stages = chosen(options.stages)
    except ValueError as error:
        parser().error(str(error))
    if not 0 < options.minutes <= 24 * 60:
        parser().error(f"--minutes is {options.minutes:g}; it must be above 0, at most 1440")
    if problem := _problem(options):
        print(problem, file=sys.stderr)
        return 2
    name = time.strftime("gpu-%Y%m%d-%H%M%S")
    folder = options.out or Path(__file__).resolve().parents[1] / "results" / name
    if (folder / "stages").exists():
        parser().error(f"--out is {folder}, which has results already; give a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        parser().error(f"--out is {folder}, where nothing can be written: {error.strerror}")
    return supervised(options, stages, folder)


def _problem(options: argparse.Namespace) -> str:
    """Reason for which nothing can be run here, "" where there is none."""
    try:
        import torch
        from sglang.srt.config.sections import ATTENTION_BACKENDS
    except ImportError as error:
        return f"{error}; python -m benchmark.gpu --wheels lists what a machine needs"
    if options.attention_backend not in ATTENTION_BACKENDS:
        allowed = ", ".join(ATTENTION_BACKENDS)
        return f"--attention-backend is {options.attention_backend!r}; one of {allowed} is needed"
    if options.tiny or torch.cuda.is_available():
        return ""
    return (
        "No GPU: torch finds no CUDA device here. Run this on a machine with an NVIDIA GPU, or "
        "with --tiny to try its code on the CPU."
    )


def supervised(options: argparse.Namespace, stages: Sequence[Stage], folder: Path) -> int:
    """Run the stages, write the report, print where it is."""

    def command(stage: Stage, mode: str, seconds: float) -> list[str]:
        made = [sys.executable, "-m", "benchmark.gpu.stage_main", stage.name, "--out", str(folder),
                "--seconds", f"{seconds:.1f}", "--mode", mode,
                "--attention-backend", options.attention_backend]  # fmt: skip
        return [*made, "--tiny"] if options.tiny else made

    def say(line: str) -> None:
        with suppress(OSError):  # the terminal is gone; the records are in files
            print(line, flush=True)

    supervisor = Supervisor(folder, command, 60 * options.minutes, say)
    interrupted = False
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)
    try:
        supervisor.run(stages, reserve=0.0 if options.tiny else min(REPORT, 6 * options.minutes))
    except KeyboardInterrupt:
        interrupted = True
    page = write(folder, stages)
    say(f"{page}\nresults: {folder}")
    if interrupted:
        return 130
    tried = [outcome for outcome in supervisor.outcomes if outcome.status != "left out"]
    last = {outcome.stage: outcome.status for outcome in tried}
    return 0 if set(last.values()) <= {"good"} else 1


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End as Ctrl-C does: the stage is ended, the report written."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
