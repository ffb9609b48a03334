"""``python -m sglang.bench_offline_throughput``: one batch of requests, without HTTP or with it.

It takes the flags of ``launch_server`` and those of a dataset, as ``bench_serving`` has them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sglang.backend.engine.embedded import Engine
from sglang.backend.engine.launched_runtime import Runtime
from sglang.backend.engine.server_args import ServerArgs
from sglang.errors import SglangError
from sglang.srt.commands.bench.dataset import Dataset
from sglang.srt.commands.bench.show import lines
from sglang.srt.commands.bench.workload import Conversation
from sglang.srt.config.command_line import Parser

PROG = "python -m sglang.bench_offline_throughput"


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    out = Parser(
        prog=prog,
        description=(__doc__ or "").partition("\n\n")[2],
    )
    add = out.add_argument
    add("--backend", default="engine", choices=("engine", "runtime"), help="runtime: over HTTP")
    add("--skip-warmup", action="store_true", help="measure the first batch")
    add("--disable-ignore-eos", action="store_true", help="let answers end by themselves")
    add("--extra-request-body", type=json.loads, default={}, metavar="JSON",
        help="further sampling parameters")  # fmt: skip
    add("--result-filename", default="", help="JSON lines that the figures are appended to")
    Dataset.add_cli_args(out)
    ServerArgs.add_cli_args(out)
    return out


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Measure; 2 where it could not be done."""
    options = parser(prog).parse_args(argv)
    try:
        found = _measure(options, Dataset.from_cli_args(options))
    except (ValueError, TypeError, OSError, SglangError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n" + lines("Offline Throughput Benchmark Result", _rows(found)))
    if options.result_filename:
        with open(options.result_filename, "a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
    return 0


def _measure(options: argparse.Namespace, dataset: Dataset) -> dict[str, Any]:
    server_args = ServerArgs.from_cli_args(options)
    work = dataset.work()
    kind: Any = Engine if options.backend == "engine" else Runtime
    with kind(server_args=server_args) as backend:
        if not options.skip_warmup:
            small = replace(dataset, dataset_name="random", seed=dataset.seed + 1,
                            num_prompts=min(len(work), 16), random_input_len=256,
                            random_output_len=16, random_range_ratio=1.0)  # fmt: skip
            _generate(backend, small.work(), options)
            backend.flush_cache()
        started = time.perf_counter()
        answers = _generate(backend, work, options)
        return {"backend": options.backend, **_figures(answers, time.perf_counter() - started)}


def _generate(backend: Any, work: Sequence[Conversation], options: argparse.Namespace) -> Any:
    """The answers of one batch."""
    shared = {"temperature": 0, "ignore_eos": not options.disable_ignore_eos,
              **options.extra_request_body}  # fmt: skip
    turns = [conversation.turns[0] for conversation in work]
    answers = backend.generate(
        input_ids=[list(turn.tokens) for turn in turns],
        sampling_params=[{**shared, "max_new_tokens": turn.output} for turn in turns],
    )
    return json.loads(answers) if isinstance(answers, str) else answers


def _figures(answers: Sequence[dict[str, Any]], seconds: float) -> dict[str, Any]:
    metas = [answer["meta_info"] for answer in answers]
    read = sum(meta["prompt_tokens"] for meta in metas)
    written = sum(meta["completion_tokens"] for meta in metas)
    return {
        "successful_requests": len(metas),
        "total_latency": seconds,
        "total_input_tokens": read,
        "total_output_tokens": written,
        "request_throughput": len(metas) / seconds,
        "input_throughput": read / seconds,
        "output_throughput": written / seconds,
        "total_throughput": (read + written) / seconds,
    }


def _rows(found: dict[str, Any]) -> list[tuple[str, object]]:
    return [
        ("Backend", found["backend"]),
        ("Successful requests", found["successful_requests"]),
        ("Benchmark duration (s)", found["total_latency"]),
        ("Total input tokens", found["total_input_tokens"]),
        ("Total generated tokens", found["total_output_tokens"]),
        ("Request throughput (req/s)", found["request_throughput"]),
        ("Input token throughput (tok/s)", found["input_throughput"]),
        ("Output token throughput (tok/s)", found["output_throughput"]),
        ("Total token throughput (tok/s)", found["total_throughput"]),
    ]


if __name__ == "__main__":
    sys.exit(main())
