"""``python -m benchmark.paper``: the paper's evaluation, measured and put into docs/evaluation.md.

Every claim on every contender in turns, then our engine beside itself: with parts off, with some of
its hits, for its answers, its hit rates and its overhead. A part that fails or has no time is
named on the page and keeps no other from running; ``--resume`` measures those that were not whole.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmark.harness.command import command_parser
from benchmark.harness.records import read
from benchmark.models import EMBEDDED, SHAPES
from benchmark.paper import report
from benchmark.paper.plan import Plan
from benchmark.paper.records import Log, complete
from benchmark.peers.child import ROOT

RESULTS = ROOT / "benchmark" / "results" / "paper.jsonl"
SPARE = 0.95  # planned share of the time: a round that was begun is ended


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 1 where an answer differs or a part failed; 2 where nothing could be measured."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(given)
    # Processes that were started end too where this one is ended by a signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if options.smoke:
            from benchmark.paper.smoke import smoke

            return smoke(_say)
        records = read(options.output_file) if options.report else _measured(options, given).records
        report.into(options.docs, records)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    wrong = report.problems(records)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def parser() -> argparse.ArgumentParser:
    """Parser of the command line."""
    out = command_parser(
        "benchmark.paper", __doc__, 1, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = out.add_argument
    add("--only", nargs="+", default=[], metavar="NAME", help="claims, kinds of parts, or both")
    add("--contenders", nargs="+", default=[], metavar="NAME", help="default: all there are")
    add(
        "--size", default="S", choices=list(SHAPES), help="of the model that speed is measured with"
    )
    add("--minutes", type=float, default=60.0, help="that the run may take")
    add("--seed", type=int, default=0, help="of the items")
    add("--peers", type=Path, default=ROOT / ".peers", help="folder of the peers' environments")
    add("--output-file", type=Path, default=RESULTS, help="records, a line of JSON each")
    add("--resume", action="store_true", help="keep what the file has; measure what is not whole")
    add("--report", action="store_true", help="measure nothing: the page from the file")
    add("--docs", type=Path, default=ROOT / "docs", help="folder of the page")
    add("--smoke", action="store_true", help="all of it on very little; no page is written")
    return out


def _measured(options: argparse.Namespace, given: Sequence[str]) -> Log:
    """Measure what the options name. Raises ValueError for an unknown name, or no time."""
    from benchmark.harness.contenders import contenders
    from benchmark.harness.machine import machine
    from benchmark.paper.desk import Desk
    from benchmark.paper.figures import OURS
    from benchmark.paper.parts import WORKS, parts

    if options.minutes <= 0:
        raise ValueError(f"--minutes is {options.minutes:g}; give more than 0")
    there = [contender.name for contender in contenders(EMBEDDED, options.peers)]
    if unknown := [name for name in options.contenders if name not in there]:
        raise ValueError(f"--contenders has {unknown[0]!r}; use some of {there}")
    if options.contenders and OURS not in options.contenders:
        raise ValueError(f"--contenders has no {OURS!r}; all are measured beside it")
    desk = Desk(options.size, options.seed, options.peers, options.output_file.parent,
                lambda record: log.tell(record), _say, options.contenders)  # fmt: skip
    wanted = parts(desk, options.only, WORKS)
    log = Log(options.output_file, options.resume)  # no word was wrong: it may begin anew
    done = complete(log.records) if options.resume and not options.only else set()
    wanted = [part for part in wanted if part.name not in done]
    command = shlex.join(["python", "-m", "benchmark.paper", *given])
    log.tell({"kind": "machine", **machine(), "model": options.size, "command": command})
    try:
        Plan(wanted, 60 * options.minutes * SPARE, log.tell, _say).run()
    finally:
        desk.close()
    return log


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
