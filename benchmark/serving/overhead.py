"""Overhead: what HTTP costs a token. The same streams from a launched server and from the engine
called in this process; and as many from a bare server, which only writes."""

from __future__ import annotations

import argparse
import random
import resource
from collections.abc import Sequence
from functools import partial
from typing import Any

from sglang import Engine
from sglang.srt.commands.bench.offline import Offline
from sglang.srt.commands.bench.server_target import Asking
from sglang.srt.commands.bench.workload import WorkloadTokens, random_lengths

from benchmark.serving import bare
from benchmark.serving.launched import Cost, Launched
from benchmark.serving.session import Column, Work, measure

PROTOCOLS = ("sglang", "openai")
INPUT = (16, 48)  # tokens
SPARE = 64  # descriptors besides those of the connections


async def run(options: argparse.Namespace) -> list[Column]:
    """The engine's column, then the server's, of ``--clients`` streams that begin at once.

    Raises OSError and ValueError where they cannot be measured.
    """
    if options.backend not in ("", *PROTOCOLS):
        raise ValueError(
            f"--http-overhead asks by {' or '.join(PROTOCOLS)}, not by {options.backend}: the "
            "engine is to compute the same"
        )
    _allow(options.clients + SPARE)
    rng, tokens = random.Random(f"overhead {options.seed}"), WorkloadTokens(*options.token_range)
    output = (options.output_len, options.output_len)
    work = random_lengths(rng, tokens, options.clients, input_len=INPUT, output_len=output)
    settings: dict[str, Any] = {"log_level": "warning", "dtype": "float32"}
    flags = ["--log-level", "warning", "--dtype", "float32"]
    if options.model_path:
        settings["model_path"] = options.model_path
        flags += ["--model-path", options.model_path]
    server = Launched(flags, options.backend or "sglang", Asking())
    columns = await measure(
        [Offline(partial(Engine, **settings)), server],
        Work(work, [0.0] * len(work), timeout=options.timeout),
        warmup=work[:8],
        rounds=options.rounds,
        flush=True,
    )
    server.floor = await bare.cost(options.clients, options.output_len)
    return columns


def report(columns: Sequence[Column]) -> str:
    """The figures, side by side."""
    engine, served = columns[0].typical, columns[1].typical
    target = columns[1].target
    assert isinstance(target, Launched)
    counted = columns[1].counted[0]
    tokens = max(served.output_tokens, 1)
    lines = [
        f"{served.completed} streams ended well over HTTP, {served.failed} did not; "
        f"{served.output_tokens} tokens",
        f"server CPU {1e6 * counted['server_cpu_seconds'] / tokens:.1f} us a token, engine CPU "
        f"{1e6 * counted['engine_cpu_seconds'] / tokens:.1f} us a token",
        f"bare: {1e6 * (target.floor or 0.0):.1f} us of CPU a token, of a server that only writes",
        f"memory: server {_grown(target.server)}, engine {_grown(target.engine)}",
    ]
    if engine.itl is not None and served.itl is not None:
        for name in ("p50", "p99"):
            inside, http = getattr(engine.itl, name), getattr(served.itl, name)
            lines.append(
                f"token to token, {name}: {inside:.2f} ms in process, {http:.2f} ms over HTTP: "
                f"{http - inside:+.2f} ms"
            )
    lines.append(f"whole run: {served.seconds / engine.seconds:.2f}x the time of the engine alone")
    return "\n".join(lines)


def _grown(cost: Cost) -> str:
    return f"{cost.resident / 2**20:.0f} MiB at the end, {cost.peak / 2**20:.0f} MiB at most"


def _allow(descriptors: int) -> None:
    """Allow this process so many open descriptors. Raises OSError where the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < descriptors:
        if hard != resource.RLIM_INFINITY and hard < descriptors:
            raise OSError(f"{descriptors} descriptors are needed and {hard} allowed: ulimit -n")
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
