"""``python -m benchmark.serving``: load on a server or an engine, a table, JSON lines, checks."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from sglang.srt.commands.bench.load_client import HttpError
from sglang.srt.commands.bench.stats import as_json

from benchmark.harness import records
from benchmark.harness.machine import about
from benchmark.serving import overhead
from benchmark.serving.options import arrivals, parser, targets, workload
from benchmark.serving.report import table
from benchmark.serving.session import Column, Work, comparisons, measure, speedup

_SHOWN = 5  # problems printed


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every answer came as requested and compared answers are equal, 1 if not, 2 if
    nothing could be measured."""
    options = parser().parse_args(arguments)
    try:
        measured = overhead.run(options) if options.http_overhead else _measure(options)
        columns = asyncio.run(measured)
    except (ValueError, OSError, ImportError, HttpError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table([(column.target.name, column.typical) for column in columns]))
    if options.http_overhead:
        print(overhead.report(columns))
    if options.output_file:
        _write(options, columns)
    return 0 if _verdict(columns) else 1


async def _measure(options: argparse.Namespace) -> list[Column]:
    work = workload(options, options.seed)
    # Other prompts than the measured ones: warming up must not fill the cache with them.
    warmup = workload(options, options.seed + 1)[: options.warmup_requests]
    return await measure(
        targets(options),
        Work(
            work, arrivals(options, len(work)), options.max_concurrency, options.timeout,
            exact=not options.stop_at_eos,
        ),
        warmup=warmup,
        rounds=options.rounds,
        flush=options.flush_cache,
    )  # fmt: skip


def _verdict(columns: Sequence[Column]) -> bool:
    """Print ratios, comparisons and problems; False where an answer was wrong."""
    good = True
    for column in columns[1:]:
        if columns[0].problems or column.problems:
            continue  # a run that failed in part was not the same work
        ratio = speedup(columns[0], column)
        print(f"{columns[0].target.name} is {ratio:.2f}x as fast as {column.target.name}")
    for names, comparison in comparisons(columns):
        print(f"{names}: {comparison}")
        good = good and comparison.same == comparison.total
    for column in columns:
        for line in column.problems[:_SHOWN]:
            print(f"{column.target.name}: {line}", file=sys.stderr)
        if len(column.problems) > _SHOWN:
            print(f"... and {len(column.problems) - _SHOWN} more", file=sys.stderr)
        good = good and not column.problems
    return good


def _write(options: argparse.Namespace, columns: Sequence[Column]) -> None:
    asked = {name: value for name, value in vars(options).items() if name != "api_key"}
    asked["request_rate"] = str(options.request_rate)  # JSON has no infinity
    common = {**about(options), "options": asked}
    for column in columns:
        runs = zip(column.summaries, column.counted, strict=True)
        for number, (summary, counted) in enumerate(runs):
            line = {
                "target": column.target.name, "round": number, **as_json(summary),
                "counted": counted, "problems": column.problems[:_SHOWN], **common,
            }  # fmt: skip
            records.append(options.output_file, line)


if __name__ == "__main__":
    sys.exit(main())
