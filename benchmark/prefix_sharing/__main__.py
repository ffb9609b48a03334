"""``python -m benchmark.prefix_sharing``: many requests that share a long prefix, cache on and off.

The claim is the headline of the SGLang paper (Zheng et al. 2024, section 6.2: "up to 6.4x higher
throughput"): with the default work, 64 requests that share 1024 of their 1056 prompt tokens and
generate 16, the prefix cache gives at least that. Runs alternate, the cache is emptied before each,
the ratio is the median over the pairs, and all answers must be equal. The engine's own counter of
computed tokens is set against its lower bound, where every distinct token is computed once.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from sglang import Engine
from sglang.srt.commands.bench.offline import Offline
from sglang.srt.commands.bench.server_target import Asking, Endpoint
from sglang.srt.commands.bench.target import Target
from sglang.srt.commands.bench.workload import (
    Conversation,
    WorkloadTokens,
    distinct_tokens,
    shared_prefix,
)

from benchmark.harness.command import command_parser
from benchmark.harness.machine import heading
from benchmark.models import resolved
from benchmark.serving.report import table
from benchmark.serving.session import Column, Work, comparisons, measure, speedup
from benchmark.serving.static import Static


def _parser() -> argparse.ArgumentParser:
    out = command_parser("benchmark.prefix_sharing", __doc__)
    add = out.add_argument
    add(
        "--model",
        default="S",
        help="S, M, L (random weights), 'embedded', or a directory; default: %(default)s",
    )
    add(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16"),
        help="answers are compared exactly, for which float32 is meant; default: %(default)s",
    )
    add("--num-requests", type=int, default=64)
    add("--prefix-len", type=int, default=1024)
    add("--question-len", type=int, default=32)
    add("--output-len", type=int, default=16)
    add("--rounds", type=int, default=3, help="pairs of runs; default: %(default)s")
    add("--seed", type=int, default=0)
    add("--target", type=float, default=6.4, help="least speedup; default: %(default)s")
    add("--server", action="store_true", help="two servers over HTTP, not two engines in process")
    add("--peer", action=argparse.BooleanOptionalAction, default=find_spec("transformers") is not
        None, help="measure transformers generate beside; default: if installed")  # fmt: skip
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where answers are equal and the speedup is reached, else 1."""
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="prefix-sharing-") as folder:
        path = resolved(options.model, Path(folder), options.dtype)
        with _targets(options, path) as targets:
            columns = asyncio.run(_measure(options, targets))
    print(heading())
    print(table([(column.target.name, column.typical) for column in columns]))
    return 0 if _verdict(options, columns) else 1


@contextmanager
def _targets(options: argparse.Namespace, path: str) -> Iterator[list[Target]]:
    """Cache on, cache off, and the peer; servers are stopped at the end."""
    peer: list[Target] = []
    if options.peer:
        peer = [Static(path, batch_size=options.num_requests, dtype=options.dtype)]
    longest = options.prefix_len + options.question_len + options.output_len
    settings = {
        "model_path": path,
        "dtype": options.dtype,
        "log_level": "warning",
        # Room for all requests without sharing: memory must not limit the side without the cache.
        "max_total_tokens": (options.num_requests + 1) * longest,
    }
    off = {**settings, "disable_radix_cache": True}
    if not options.server:
        yield [
            Offline(partial(Engine, **settings), name="cache on"),
            Offline(partial(Engine, **off), name="cache off"),
            *peer,
        ]
        return
    from sglang import Runtime

    with Runtime(**settings) as first, Runtime(**off) as second:
        on = Endpoint("sglang", first.url, Asking())
        without = Endpoint("sglang", second.url, Asking())
        on.name, without.name = "cache on", "cache off"
        yield [on, without, *peer]


def _work(options: argparse.Namespace, seed: int, requests: int) -> list[Conversation]:
    return shared_prefix(
        random.Random(seed), WorkloadTokens(300, 1000), requests, prefix_len=options.prefix_len,
        question_len=options.question_len, output_len=options.output_len,
    )  # fmt: skip


async def _measure(options: argparse.Namespace, targets: list[Target]) -> list[Column]:
    work = _work(options, options.seed, options.num_requests)
    return await measure(
        targets,
        Work(work, [0.0] * len(work)),
        warmup=_work(options, options.seed + 1, 2),
        rounds=options.rounds,
        flush=True,
    )


def _verdict(options: argparse.Namespace, columns: list[Column]) -> bool:
    """Print what was found; False where an answer was wrong or the ratio is too low."""
    on, off, *peers = columns
    work = _work(options, options.seed, options.num_requests)
    drawn = len(work) * (options.output_len - 1)
    _print_counters(on, distinct_tokens(work) + drawn)
    _print_counters(off, len(work) * (options.prefix_len + options.question_len) + drawn)
    ratio = speedup(on, off)
    reached = "reached" if ratio >= options.target else "MISSED"
    print(f"cache on is {ratio:.2f}x as fast as cache off; target {options.target}x {reached}")
    for peer in peers:
        print(f"cache on is {speedup(on, peer):.2f}x as fast as {peer.target.name}")
    good: bool = ratio >= options.target
    for names, comparison in comparisons(columns):
        print(f"{names}: {comparison}")
        good = good and comparison.same == comparison.total
    for column in columns:
        for line in column.problems[:5]:
            print(f"{column.target.name}: {line}", file=sys.stderr)
        good = good and not column.problems
    return good


def _print_counters(column: Column, bound: int) -> None:
    """Print the time of prefill (to the last first token) and of the rest; passes and tokens."""
    results = column.typical_run.results
    begin = min(result.sent for result in results)
    prefill = max(result.first for result in results) - begin
    rest = max(result.end for result in results) - begin - prefill
    line = f"{column.target.name}: all first tokens after {prefill:.2f} s, the rest {rest:.2f} s"
    if all("computed_tokens" in counted for counted in column.counted):
        computed = round(median([counted["computed_tokens"] for counted in column.counted]))
        passes = median([counted.get("passes", 0) for counted in column.counted])
        line += f"; {computed} tokens computed (least: {bound}) in {passes:.0f} passes"
    print(line)


if __name__ == "__main__":
    sys.exit(main())
