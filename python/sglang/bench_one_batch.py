"""``python -m sglang.bench_one_batch``: batches of equal requests through the engine, one by one.

It takes the flags of ``launch_server``. The engine runs as it serves: planned, with its cache,
which is emptied before each batch. The prefill ends with the last first token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any

from sglang.backend.engine.embedded import Engine
from sglang.backend.engine.server_args import ServerArgs
from sglang.errors import SglangError
from sglang.srt.commands.bench.load import offer
from sglang.srt.commands.bench.offline import Offline
from sglang.srt.commands.bench.result import Result
from sglang.srt.commands.bench.workload import Conversation, Turn, WorkloadTokens
from sglang.srt.config.command_line import Parser

PROG = "python -m sglang.bench_one_batch"


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    out = Parser(prog=prog, description=(__doc__ or "").partition("\n\n")[2])
    add = out.add_argument
    for flag, default, what in (
        ("--batch-size", 1, "requests of a batch"),
        ("--input-len", 1024, "tokens of a prompt"),
        ("--output-len", 16, "tokens of an answer, at least 2"),
    ):
        text = f"{what}; several values are measured in turn; default: {default}"
        add(flag, type=int, nargs="+", default=[default], help=text)
    add("--run-name", default="default", help="of the figures; default: %(default)s")
    add("--result-filename", default="", help="JSON lines that the figures are appended to")
    ServerArgs.add_cli_args(out)
    return out


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Measure; 1 where a request failed, 2 where nothing could be measured."""
    options = parser(prog).parse_args(argv)
    try:
        for name, least in (("batch_size", 1), ("input_len", 1), ("output_len", 2)):
            if min(getattr(options, name)) < least:
                raise ValueError(
                    f"--{name.replace('_', '-')} is {min(getattr(options, name))}; it must be at "
                    f"least {least}"
                )
        found = asyncio.run(_measure(options, ServerArgs.from_cli_args(options)))
        for line in found:
            print(_shown(line))
        if options.result_filename:
            with open(options.result_filename, "a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in found)
    except (ValueError, TypeError, OSError, SglangError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 1 if any("error" in line for line in found) else 0


async def _measure(options: argparse.Namespace, server_args: ServerArgs) -> list[dict[str, Any]]:
    target = Offline(partial(Engine, server_args=server_args))
    found = []
    await target.start()
    try:
        rng = random.Random(server_args.random_seed)
        await _batch(target, rng, 1, 8, 2)  # a warm-up
        for sizes in product(options.batch_size, options.input_len, options.output_len):
            await target.flush()
            results = await _batch(target, rng, *sizes)
            found.append(_figures(options.run_name, results, sizes[1]))
    finally:
        await target.close()
    return found


async def _batch(
    target: Offline, rng: random.Random, size: int, read: int, written: int
) -> list[Result]:
    tokens = WorkloadTokens()
    work = [Conversation(i, (Turn(tokens.sample(rng, read), written),)) for i in range(size)]
    return (await offer(target, work, [0.0] * size)).results


def _figures(name: str, results: Sequence[Result], read: int) -> dict[str, Any]:
    """Figures of one batch. A latency that was not seen is None, and so is a rate without one:
    an answer that comes in one event has no gap between its tokens."""
    size, written = len(results), max(result.asked for result in results)
    line: dict[str, Any] = {"run_name": name, "batch_size": size, "input_len": read,
                            "output_len": written}  # fmt: skip
    errors = [result.error for result in results if result.error]
    if not all(result.first for result in results):
        errors.append("a request ended without a token")
    if errors:
        return {**line, "error": errors[0]}
    start, end = min(r.sent for r in results), max(r.end for r in results)
    prefill = max(r.first for r in results) - start
    gaps = [gap for r in results for gap in r.gaps]
    step = median(gaps) if gaps else None
    return {
        **line,
        "prefill_latency": prefill,
        "prefill_throughput": _rate(size * read, prefill),
        "median_decode_latency": step,
        "median_decode_throughput": _rate(size, step),
        "total_latency": end - start,
        "overall_throughput": _rate(size * (read + written), end - start),
    }


def _rate(count: int, seconds: float | None) -> float | None:
    """``count`` a second; None where no time was seen to pass."""
    return count / seconds if seconds else None


def _shown(line: dict[str, Any]) -> str:
    head = "batch {batch_size}, input {input_len}, output {output_len}".format(**line)
    if "error" in line:
        return f"{head}\nerror: {line['error']}"

    def figure(name: str, digits: int) -> str:
        value = line[name]
        return "-" if value is None else f"{value:.{digits}f}"

    return (
        f"{head}\n"
        f"Prefill. latency: {figure('prefill_latency', 5)} s, "
        f"throughput: {figure('prefill_throughput', 2)} token/s\n"
        f"Decode.  median latency: {figure('median_decode_latency', 5)} s, "
        f"median throughput: {figure('median_decode_throughput', 2)} token/s\n"
        f"Total.   latency: {figure('total_latency', 3)} s, "
        f"throughput: {figure('overall_throughput', 2)} token/s"
    )


if __name__ == "__main__":
    sys.exit(main())
