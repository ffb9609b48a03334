"""``python -m sglang.bench_serving``: load on a server, with upstream's flags and figures.

Requests are greedy, streamed, and made of random token ids (synthetic words for chats), so that
their lengths are exact. ``--request-rate`` makes a Poisson process of their arrivals.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from sglang.srt.commands.bench.arrivals import offsets
from sglang.srt.commands.bench.dataset import Dataset
from sglang.srt.commands.bench.load import BenchRun, offer
from sglang.srt.commands.bench.load_client import HttpError
from sglang.srt.commands.bench.result import Result
from sglang.srt.commands.bench.server_target import Asking, Endpoint
from sglang.srt.commands.bench.show import figures, lines, serving_rows
from sglang.srt.commands.bench.stats import summarise
from sglang.srt.config.command_line import Parser

# A backend, the protocol that it speaks and the port that it listens on by default.
BACKENDS = {
    "sglang": ("sglang", 30000),
    "sglang-native": ("sglang", 30000),
    "sglang-oai": ("openai", 30000),
    "sglang-oai-chat": ("openai-chat", 30000),
    "vllm": ("openai", 8000),
    "vllm-chat": ("openai-chat", 8000),
    "lmdeploy": ("openai", 23333),
    "lmdeploy-chat": ("openai-chat", 23333),
}
_SHOWN = 5  # errors printed

PROG = "python -m sglang.bench_serving"


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    out = Parser(prog=prog, description=(__doc__ or "").partition("\n\n")[2])
    add = out.add_argument
    add("--backend", default="sglang", choices=list(BACKENDS), help="default: %(default)s")
    add("--base-url", default="", help="of the server; default: http://HOST:PORT")
    add("--host", default="127.0.0.1", help="default: %(default)s")
    add("--port", type=int, default=0, help="default: the backend's usual one")
    add("--api-key", default="", help="sent as Authorization: Bearer KEY")
    add("--model", default="", help="name sent to /v1 routes; default: the first that is listed")
    Dataset.add_cli_args(out)
    add("--request-rate", type=float, default=float("inf"), help="a second; default: all at once")
    add("--max-concurrency", type=int, default=0, help="requests at once; default: any number")
    add("--warmup-requests", type=int, default=1, help="default: %(default)s")
    add("--flush-cache", action="store_true", help="empty the server's cache before the run")
    add("--disable-ignore-eos", action="store_true", help="let answers end by themselves")
    add("--return-logprob", action="store_true", help="ask for log-probabilities (sglang)")
    add("--extra-request-body", type=json.loads, default={}, metavar="JSON",
        help="further fields of every request")  # fmt: skip
    add("--timeout", type=float, default=6 * 3600.0, help="seconds a request may take")
    add("--output-file", default="", help="JSON lines that the figures are appended to")
    add("--output-details", action="store_true", help="each request's figures in it too")
    for name in ("--disable-tqdm", "--tokenize-prompt"):
        add(name, action="store_true", help="accepted: there is no bar, and prompts are ids")
    return out


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Measure. Return 0 where every request was answered, 1 otherwise, 2 where none was sent."""
    options = parser(prog).parse_args(argv)
    try:
        run = asyncio.run(_measure(options, Dataset.from_cli_args(options)))
    except (ValueError, OSError, HttpError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _report(options, run)
    failed = [result.error for result in run.results if result.error]
    for reason in failed[:_SHOWN]:
        print(f"error: {reason}", file=sys.stderr)
    return 1 if failed else 0


async def _measure(options: argparse.Namespace, dataset: Dataset) -> BenchRun:
    protocol, port = BACKENDS[options.backend]
    url = options.base_url or f"http://{options.host}:{options.port or port}"
    extra = dict(options.extra_request_body)
    if options.return_logprob:
        extra["return_logprob"] = True
    chat = protocol == "openai-chat"
    asking = Asking(options.model, chat, not options.disable_ignore_eos, extra)
    work = dataset.work()
    starts = offsets(random.Random(dataset.seed), options.request_rate, len(work))
    target = Endpoint(protocol, url, asking, options.api_key)
    limits = {"max_concurrency": options.max_concurrency, "timeout": options.timeout}
    try:
        await target.start()
        # Other prompts than the measured ones: a warm-up must not fill the cache with those.
        warmup = replace(dataset, seed=dataset.seed + 1).work()[: options.warmup_requests]
        if warmup:
            await offer(target, warmup, [0.0] * len(warmup), **limits)
        if options.flush_cache:
            await target.flush()
        return await offer(target, work, starts, **limits)
    finally:
        await target.close()


def _report(options: argparse.Namespace, run: BenchRun) -> None:
    summary = summarise(run.results, run.cpu_seconds)
    rows: list[tuple[str, object]] = [
        ("Backend", options.backend),
        ("Traffic request rate", options.request_rate),
        ("Max request concurrency", options.max_concurrency or "not set"),
    ]
    print("\n" + lines("Serving Benchmark Result", [*rows, *serving_rows(summary)]))
    if not options.output_file:
        return
    line: dict[str, Any] = {
        "backend": options.backend,
        "request_rate": str(options.request_rate),  # JSON has no infinity
        "max_concurrency": options.max_concurrency or None,
        **asdict(Dataset.from_cli_args(options)),
        **figures(summary),
    }
    if options.output_details:
        line |= _details(run.results)
    with open(options.output_file, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _details(results: Sequence[Result]) -> dict[str, list[Any]]:
    return {
        "input_lens": [r.prompt_tokens for r in results],
        "output_lens": [r.output_tokens for r in results],
        "ttfts": [r.ttft if r.first else None for r in results],
        "itls": [r.gaps for r in results],
        "generated_texts": [r.text for r in results],
        "errors": [r.error for r in results],
    }


if __name__ == "__main__":
    sys.exit(main())
