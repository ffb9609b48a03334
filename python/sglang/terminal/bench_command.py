"""``sglang bench KIND``: the benchmarks of the installed package under one name."""

from __future__ import annotations

import argparse
from importlib import import_module

KINDS = {
    "serving": ("sglang.bench_serving", "load on a running server: latencies and throughput"),
    "offline-throughput": (
        "sglang.bench_offline_throughput", "one batch of requests through an engine of its own",
    ),
    "one-batch": (
        "sglang.bench_one_batch", "batches of equal requests, one after the other: prefill, decode",
    ),
}  # fmt: skip
OTHER_NAMES = {
    "serve": "serving", "throughput": "offline-throughput", "offline": "offline-throughput",
    "latency": "one-batch", "batch": "one-batch",
}  # fmt: skip
"""Names of vLLM's benchmarks, and short ones."""

EPILOG = """
vLLM's names serve, throughput and latency are taken too.

  sglang bench serving --base-url http://127.0.0.1:30000 --num-prompts 200 --request-rate 4
  sglang bench offline-throughput --model-path ./my-model --num-prompts 100
  sglang bench one-batch --batch-size 1 8 32 --input-len 512 --output-len 64
"""


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    """The kind; every flag behind it is the benchmark's own."""
    parser.add_argument(
        "kind", metavar="KIND", choices=[*KINDS, *OTHER_NAMES],
        help="; ".join(f"{name}: {about}" for name, (_, about) in KINDS.items()),
    )  # fmt: skip
    rest = parser.add_argument(
        "flags", nargs=argparse.REMAINDER, help="of the benchmark: sglang bench KIND --help"
    )
    rest.required = False
    parser.epilog = EPILOG


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """The benchmark's own exit code: 0, 1 where a request failed, 2 where none was sent."""
    kind = OTHER_NAMES.get(arguments.kind, arguments.kind)
    module, _ = KINDS[kind]
    code: int = import_module(module).main(arguments.flags, prog=f"sglang bench {kind}")
    return code
