"""``python -m benchmark.curves``: throughput against batch, context and cache hit rate.

The engine in this process, random weights. Every point is measured once a round, and the rounds'
medians are shown. Decode is timed on prompts that are in the cache: one token a request is left to
compute, then the sampled ones.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmark.curves import page
from benchmark.curves.measure import BATCHES, CONTEXTS, Measure, Sample
from benchmark.harness.command import command_parser
from benchmark.harness.machine import machine
from benchmark.harness.records import append
from benchmark.models import SHAPES, cached
from benchmark.peers.__main__ import CACHE
from benchmark.peers.child import ROOT
from benchmark.peers.roofline import Meter
from benchmark.serving.options import setting


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 where nothing could be measured."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    about = {**machine(), "size": options.size, "command": shlex.join(given)}
    try:
        samples = _measure(options)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(page.markdown(about, samples))
    if options.output_file:
        append(options.output_file, *({**asdict(sample), **about} for sample in samples))
    if options.write_docs:
        page.into(ROOT / "docs", about, samples)
    return 0


def parser() -> argparse.ArgumentParser:
    """Parser of the command line."""
    out = command_parser("benchmark.curves", __doc__, 1)
    add = out.add_argument
    add("--size", default="S", choices=list(SHAPES), help="default: %(default)s")
    add("--rounds", type=int, default=3, help="default: %(default)s")
    add("--longest", type=int, default=CONTEXTS[-1], help="context; default: %(default)s")
    add("--most", type=int, default=BATCHES[-1], help="batch; default: %(default)s")
    add("--drawn", type=int, default=32, help="tokens a request; default: %(default)s")
    add("--engine-arg", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of the engine; may be given again")  # fmt: skip
    add("--cache", type=Path, default=CACHE, help="folder of the weights; default: %(default)s")
    add("--output-file", type=Path, help="append one JSON line a sample")
    add("--write-docs", action="store_true", help="put table and plot into docs/benchmarks.md")
    return out


def _measure(options: argparse.Namespace) -> list[Sample]:
    """Measure the curves. Raises ValueError if an answer was not as requested, OSError if weights
    cannot be made."""
    from sglang import Engine

    shape = SHAPES[options.size]
    measure = Measure(None, shape, options.drawn, options.most, options.longest)
    try:
        limits = Meter(len(os.sched_getaffinity(0))).limits(2 * shape.parameters)
        measure = replace(measure, limits=limits)
    except OSError as error:
        print(f"no limits: {error}")
    settings: dict[str, Any] = {
        "model_path": str(cached(options.cache, options.size)),
        "max_total_tokens": measure.room,
        "log_level": "warning",
        **dict(setting(text) for text in options.engine_arg),
    }
    with Engine(**settings) as engine:
        measure = replace(measure, engine=engine)
        list(measure.samples(-1))  # warms up
        return [sample for seed in range(options.rounds) for sample in measure.samples(seed)]


if __name__ == "__main__":
    sys.exit(main())
