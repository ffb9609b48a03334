"""``python -m benchmark.select``: one of 10, 100, 1,000 options.

The same select three ways, which take turns on one engine in this process: options as the branches
of one tree; a request for each option, all in one batch; and constrained decoding, which scores
none. The tree's log-probabilities must be those of the requests, and so must its decision. Guidance
is measured beside them where ``make bench-peers`` has installed it; its ``select`` is constrained
decoding too.

The claim: 1,000 options in at most a tenth of the time of the requests.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from sglang import Engine

from benchmark.harness.claim import Item
from benchmark.harness.command import command_parser
from benchmark.harness.contenders import contenders
from benchmark.harness.machine import machine
from benchmark.harness.records import append
from benchmark.models import EMBEDDED
from benchmark.select.options import KINDS, options, prompt
from benchmark.select.ways import ROWS, WAYS, Differs, select, verify
from benchmark.select.workload import CLAIM

LARGE, FASTER = 1000, 10.0


def _parser() -> argparse.ArgumentParser:
    out = command_parser("benchmark.select", __doc__)
    add = out.add_argument
    add("--model", default="", help="folder of a checkpoint; default: the embedded model")
    add("--counts", type=int, nargs="*", default=[10, 100, 1000], help="numbers of options")
    add("--kinds", nargs="*", default=list(KINDS), choices=KINDS, help="of options")
    add("--sentences", type=int, default=8, help="of the prompt; default: %(default)s")
    add("--rounds", type=int, default=3, help="default: %(default)s")
    add("--seed", type=int, default=0)
    add("--tolerance", type=float, default=0.0, help="of a log-probability; default: equal")
    add("--peers", default=".peers", help="folder of the peers' environments")
    add("--output-file", default="", help="append one JSON line a row")
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where all numbers agree and the claim holds, else 1."""
    given = _parser().parse_args(arguments)
    about = machine()
    print(f"{about['machine']}, load {about['load']}, commit {about['commit']}")
    rows: list[dict[str, Any]] = []
    try:
        with Engine(model_path=given.model, log_level="error") as engine:
            for kind in given.kinds:
                for count in given.counts:
                    rows += _measured(engine, kind, count, given)
    except Differs as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    rows += _guidance(given)
    if given.output_file:
        append(given.output_file, *({**row, "machine": about} for row in rows))
    missed = [row for row in rows if row.get("missed")]
    for row in missed:
        print(f"missed: {row['options']} {row['kind']} are {row['ratio']:.1f} times as fast")
    return 1 if missed else 0


def _measured(
    engine: Engine, kind: str, count: int, given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """A row for each way; its ratio is to the requests of the same round, the median of rounds."""
    names = [name for name in WAYS if count <= ROWS or name != "rows"]
    times: dict[str, list[float]] = {name: [] for name in names}
    computed, largest = dict[str, int](), 0.0
    for number in range(given.rounds + 1):  # the first one warms up
        text = prompt(given.sentences, given.seed + number)
        texts = options(kind, count, given.seed + number)
        done = {name: select(engine, name, text, texts) for name in names}
        if "rows" in done:
            largest = max(largest, verify(done["tree"], done["rows"], given.tolerance))
        if done["constrained"].decision.text not in texts:
            raise Differs(f"{done['constrained'].decision.text!r} is none of the options")
        for name, one in done.items():
            computed[name] = one.computed
            if number:
                times[name].append(one.seconds)
    for name in names:
        ratio = None
        if "rows" in times:
            ratio = median(rows / own for rows, own in zip(times["rows"], times[name]))
        missed = name == "tree" and count >= LARGE and ratio is not None and ratio < FASTER
        row = {
            "way": name, "kind": kind, "options": count, "seconds": median(times[name]),
            "ratio": ratio, "computed": computed[name], "difference": largest, "missed": missed,
        }  # fmt: skip
        print(_shown(row))
        yield row


def _shown(row: dict[str, Any]) -> str:
    ratio = "" if row["ratio"] is None else f"{row['ratio']:7.1f}x"
    return (
        f"{row['options']:>6} {row['kind']:<8} {row['way']:<12} {row['seconds'] * 1e3:9.1f} ms "
        f"{row.get('computed') or 0:>7} tokens {ratio}"
    )


def _guidance(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of Guidance, where it is installed."""
    model, peers = Path(given.model or EMBEDDED), Path(given.peers)
    [found] = [one for one in contenders(model, peers) if one.name == "guidance"]
    if found.missing:
        print(f"guidance: {found.missing}")
        return
    with tempfile.TemporaryDirectory(prefix="select-") as logs:
        side = found.start(Path(logs))
        try:
            for kind in given.kinds:
                for count in given.counts:
                    times = []
                    for number in range(given.rounds + 1):
                        text = prompt(given.sentences, given.seed + number)
                        item: Item = {
                            "prompt": text, "options": options(kind, count, given.seed + number),
                        }  # fmt: skip
                        begun = perf_counter()
                        [answer] = side.run(CLAIM, [item], "single").answers
                        if answer not in item["options"]:
                            raise Differs(f"guidance: {answer!r} is none of the options")
                        times.append(perf_counter() - begun)
                    row = {
                        "way": "guidance", "kind": kind, "options": count,
                        "seconds": median(times[1:]), "ratio": None,
                    }  # fmt: skip
                    print(_shown(row))
                    yield row
        finally:
            side.close()


if __name__ == "__main__":
    raise SystemExit(main())
