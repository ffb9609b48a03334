"""Claim: on a CPU, programs that call tools and park finish at least 1.2 times as often with KV in
host memory as with the radix cache alone, and 1.5 times as often as without any cache.

    python -m benchmark.interception.real_engine [--seconds 15] [--clients 60] [--rounds 2]

A real engine and a model of 15.7 million parameters with random weights. Each client runs one
session of InferCept's Table 1 after the other, with contexts and turns an eighth as long and calls
a twentieth. The KV cache has 8,000 tokens. The arms take turns; the tokens of sessions that both
have finished are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import sglang as sgl

from benchmark.harness.command import command_parser
from benchmark.interception.sessions import WORKLOADS, Session, sessions
from benchmark.models import SHAPES, cached

SHORTER, FASTER = 8, 20  # contexts and turns; calls
CLAIMS = {"discard": 1.5, "radix": 1.2}  # least ratio of arm ``priced`` to these
TIERS = {"enable_hierarchical_cache": True, "hicache_ratio": 8.0}
ARMS: dict[str, dict[str, Any]] = {
    "discard": {"disable_radix_cache": True},
    "radix": {},
    "tiers": TIERS,
    "priced": TIERS,
}


@dataclass
class Finished:
    """Sessions that one arm has finished.

    Attributes:
        tokens: generated, by client and number of the session.
        latencies: without the calls, in ms a generated token.
    """

    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)

    @property
    def p50(self) -> float:
        return median(self.latencies or [0.0])


async def client(
    engine: Any, number: int, vocab: int, until: float, found: Finished, parks: bool
) -> None:
    """Run sessions until the moment ``until``."""
    for session in sessions(1.0, 1000.0, number, list(WORKLOADS)):
        began, r = time.perf_counter(), random.Random(number << 20 | session.number)
        generated, paused = await play(engine, session, r, vocab, parks)
        if time.perf_counter() > until:
            return
        found.tokens[number, session.number] = generated
        seconds = time.perf_counter() - began - paused
        found.latencies.append(1e3 * seconds / len(generated))


async def play(
    engine: Any, session: Session, r: random.Random, vocab: int, parks: bool
) -> tuple[list[int], float]:
    """Run one session, which parks at its calls or sends its whole context again. Return its
    generated tokens and the seconds of its calls."""
    ids = context = [r.randrange(vocab) for _ in range(max(session.prompt // SHORTER, 8))]
    generated: list[int] = []
    paused, more = 0.0, dict[str, str]()
    for turn in session.turns:
        most = max(turn.generated // SHORTER, 1)
        sampling = {"max_new_tokens": most, "temperature": 0, "ignore_eos": True}
        asked: dict[str, Any] = {"input_ids": ids, "sampling_params": sampling}
        if parks and turn.seconds:
            asked["park"] = {"tool": session.workload}
        out = await engine.async_generate(**asked, **more)
        context += out["output_ids"]
        generated += out["output_ids"]
        if turn.seconds:
            await asyncio.sleep(turn.seconds / FASTER)
            paused += turn.seconds / FASTER
            told = [r.randrange(vocab) for _ in range(max(turn.returned // SHORTER, 1))]
            context += told
            if parks:
                ids, more = told, {"resume": out["meta_info"]["finish_reason"]["resume"]}
    return generated, paused


def measure(model: Path, vocab: int, arm: str, options: argparse.Namespace) -> Finished:
    """One arm for some seconds."""
    found = Finished()
    with sgl.Engine(
        model_path=str(model), max_total_tokens=options.tokens, threads=1, log_level="warning",
        **ARMS[arm],
    ) as engine:  # fmt: skip
        engine.generate(input_ids=[5, 6, 7], sampling_params={"max_new_tokens": 4})

        async def everybody() -> None:
            until = time.perf_counter() + options.seconds
            numbers = range(options.clients)
            parks = arm == "priced"
            await asyncio.gather(*(client(engine, n, vocab, until, found, parks) for n in numbers))

        asyncio.run(everybody())
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("benchmark.interception.real_engine", __doc__, None)
    parser.add_argument("--seconds", type=float, default=15.0, help="an arm and round")
    parser.add_argument("--clients", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=8000, help="of the KV cache")
    parser.add_argument("--model", choices=SHAPES, default="S", help="shape of the random model")
    options = parser.parse_args(arguments)
    ratios: dict[str, list[float]] = {arm: [] for arm in CLAIMS}
    with tempfile.TemporaryDirectory() as folder:
        model = cached(Path(folder), options.model)
        for _ in range(options.rounds):
            found = {arm: measure(model, SHAPES[options.model].vocab, arm, options) for arm in ARMS}
            for arm, of in found.items():
                rate = len(of.tokens) / options.seconds
                print(f"{arm:<8} {rate:6.2f} sessions/s, median {of.p50:6.1f} ms/token", flush=True)
            priced = found["priced"].tokens
            for arm, of in found.items():
                both = priced.keys() & of.tokens.keys()
                if any(priced[key] != of.tokens[key] for key in both):
                    print(f"the tokens of {len(both)} sessions of {arm} and priced differ")
                    return 1
            for arm, numbers in ratios.items():
                numbers.append(len(priced) / max(len(found[arm].tokens), 1))
    print("the tokens of all arms are equal")
    good = True
    for arm, numbers in ratios.items():
        middle = median(numbers)
        print(f"priced / {arm}: {middle:.2f}x (claimed {CLAIMS[arm]}x)")
        good = good and middle >= CLAIMS[arm]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
