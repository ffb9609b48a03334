"""Options: the command line, and what it asks for: a workload and targets."""

from __future__ import annotations

import argparse
import json
import random
from functools import partial
from typing import Any

from sglang import Engine
from sglang.srt.commands.bench.arrivals import offsets
from sglang.srt.commands.bench.offline import Offline
from sglang.srt.commands.bench.server_target import PROTOCOLS, Asking, Endpoint
from sglang.srt.commands.bench.target import Target
from sglang.srt.commands.bench.workload import (
    Conversation,
    WorkloadTokens,
    multi_turn,
    random_lengths,
    shared_prefix,
)

from benchmark.models import EMBEDDED
from benchmark.serving.azure import azure_lengths
from benchmark.serving.static import Static

BACKENDS = (*PROTOCOLS, "engine", "engine-nocache", "transformers")
WORKLOADS = ("shared-prefix", "multi-turn", "random", "azure")
LOCAL = "http://127.0.0.1:30000"
_USAGE = """\
examples:
  python -m benchmark.serving                                   the engine, embedded model
  python -m benchmark.serving --backend sglang                  a server on port 30000
  python -m benchmark.serving --backend openai --base-url http://10.0.0.7:8000 \\
      --workload random --request-rate 4 --num-requests 200
  python -m benchmark.serving --compare engine-nocache --compare transformers \\
      --rounds 5 --flush-cache
"""


def parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(
        prog="python -m benchmark.serving",
        description="Offers load to a server or an in-process engine and reports what came back.",
        epilog=_USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_targets(out.add_argument_group("what is measured"))
    _add_workload(out.add_argument_group("workload"))
    _add_run(out.add_argument_group("the run"))
    return out


def _add_targets(group: Any) -> None:
    add = group.add_argument
    add(
        "--backend",
        default="",
        choices=BACKENDS,
        help="default: sglang where --base-url is given, else the engine in this process",
    )
    add("--base-url", default="", help=f"of a server; default: {LOCAL}")
    add(
        "--compare",
        action="append",
        default=[],
        metavar="BACKEND[@URL]",
        help="measure this too, in turns, and compare the answers; may be given again",
    )
    add("--api-key", default="", help="sent as Authorization: Bearer KEY")
    add("--model", default="", help="name sent to OpenAI-compatible servers; default: their first")
    add(
        "--model-path",
        default="",
        help="weights for engine and transformers; default: the embedded model",
    )
    add(
        "--engine-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the in-process engine; may be given again",
    )
    add(
        "--dtype",
        default="float32",
        help="of engine and transformers; default: float32, in which answers compare exactly",
    )
    add("--batch-size", type=int, default=64, help="of transformers; default: %(default)s")
    add("--text", action="store_true", help="send words instead of token ids")
    add("--stop-at-eos", action="store_true", help="let answers end early; else ignore_eos is sent")
    add("--extra-body", type=json.loads, default={}, metavar="JSON",
        help="further fields of every request")  # fmt: skip


def _add_workload(group: Any) -> None:
    add = group.add_argument
    add("--workload", default="shared-prefix", choices=WORKLOADS, help="default: %(default)s")
    add("--num-requests", type=int, default=64, help="default: %(default)s")
    add("--seed", type=int, default=0, help="same seed, same work; default: %(default)s")
    add("--num-prefixes", type=int, default=1, help="shared-prefix; default: %(default)s")
    add(
        "--prefix-len",
        type=int,
        default=1024,
        help="shared-prefix; of multi-turn, the system prompt; default: %(default)s tokens",
    )
    add("--question-len", type=int, default=32, help="tokens of each's own; default: %(default)s")
    add("--output-len", type=int, default=16, help="default: %(default)s")
    add("--turns", type=int, default=4, help="multi-turn; default: %(default)s")
    add(
        "--input-range",
        type=int,
        nargs=2,
        default=(32, 512),
        metavar=("LOW", "HIGH"),
        help="random; default: 32 512",
    )
    add(
        "--output-range",
        type=int,
        nargs=2,
        default=(16, 128),
        metavar=("LOW", "HIGH"),
        help="random; default: 16 128",
    )
    add("--length-scale", type=float, default=1.0, help="azure; default: %(default)s")
    add(
        "--longest",
        type=int,
        default=4096,
        help="azure: prompt and output are cut to this; default: %(default)s",
    )
    add("--token-range", type=int, nargs=2, default=(300, 1000), metavar=("LOW", "HIGH"),
        help="ids of the prompts, HIGH excluded; default: 300 1000")  # fmt: skip


def _add_run(group: Any) -> None:
    add = group.add_argument
    add(
        "--request-rate",
        type=float,
        default=float("inf"),
        help="conversations begun a second, as a Poisson process; default: inf, all at once",
    )
    add("--max-concurrency", type=int, default=0, help="requests under way; 0: any number")
    add("--rounds", type=int, default=1, help="runs of each target, in turns; medians are shown")
    add("--warmup-requests", type=int, default=4, help="not measured; default: %(default)s")
    add("--flush-cache", action="store_true", help="empty the prefix cache before every run")
    add("--timeout", type=float, default=600.0, help="seconds a request may take")
    add(
        "--http-overhead",
        action="store_true",
        help="instead of all that: launch a server, and measure what HTTP adds to each token",
    )
    add("--clients", type=int, default=1000, help="streams at once, of --http-overhead")
    add("--output-file", default="", help="append one JSON line a run")  # fmt: skip


def workload(options: argparse.Namespace, seed: int) -> list[Conversation]:
    """The conversations of ``--workload``."""
    rng, count = random.Random(f"work {seed}"), options.num_requests
    tokens = WorkloadTokens(*options.token_range)
    question, output = options.question_len, options.output_len
    if options.workload == "shared-prefix":
        return shared_prefix(
            rng, tokens, count, prefixes=options.num_prefixes, prefix_len=options.prefix_len,
            question_len=question, output_len=output,
        )  # fmt: skip
    if options.workload == "multi-turn":
        return multi_turn(
            rng, tokens, count, turns=options.turns, prefix_len=options.prefix_len,
            question_len=question, output_len=output,
        )  # fmt: skip
    if options.workload == "random":
        ranges = tuple(options.input_range), tuple(options.output_range)
        return random_lengths(rng, tokens, count, input_len=ranges[0], output_len=ranges[1])
    return azure_lengths(rng, tokens, count, scale=options.length_scale, longest=options.longest)


def arrivals(options: argparse.Namespace, count: int) -> list[float]:
    """Start of each conversation, in seconds. Raises ValueError if the rate is not positive."""
    return offsets(random.Random(f"arrivals {options.seed}"), options.request_rate, count)


def targets(options: argparse.Namespace) -> list[Target]:
    """``--backend`` first, then each ``--compare``. Raises ValueError for what cannot be."""
    backend = options.backend or ("sglang" if options.base_url else "engine")
    specs = [backend, *options.compare]
    # Later turns hold the answers, which OpenAI's protocol tells as text only.
    talks = options.workload == "multi-turn" and any(spec.startswith("openai") for spec in specs)
    return [_target(options, spec, options.text or talks) for spec in specs]


def _target(options: argparse.Namespace, spec: str, as_text: bool) -> Target:
    backend, _, url = spec.partition("@")
    if backend not in BACKENDS:
        raise ValueError(f"{backend!r} is not a backend; use one of {BACKENDS}")
    if backend in PROTOCOLS:
        asking = Asking(options.model, as_text, not options.stop_at_eos, options.extra_body)
        return Endpoint(backend, url or options.base_url or LOCAL, asking, options.api_key)
    if as_text or options.extra_body:
        raise ValueError(f"text prompts and --extra-body are for servers; {backend} takes ids")
    if backend == "transformers":
        path = options.model_path or str(EMBEDDED)
        return Static(path, batch_size=options.batch_size, dtype=options.dtype)
    settings = dict(setting(text) for text in options.engine_arg)
    settings |= {"dtype": options.dtype, "log_level": "warning"}
    settings |= {"model_path": options.model_path} if options.model_path else {}
    settings["disable_radix_cache"] = backend == "engine-nocache"
    return Offline(partial(Engine, **settings), name=backend, ignore_eos=not options.stop_at_eos)


def setting(text: str) -> tuple[str, Any]:
    """Name and value of ``NAME=VALUE``, the value read as JSON where it is. Raises ValueError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--engine-arg is {text!r}; use NAME=VALUE")
    try:
        return name.replace("-", "_"), json.loads(value)
    except ValueError:
        return name.replace("-", "_"), value
