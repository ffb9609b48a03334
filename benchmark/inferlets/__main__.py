"""Claim: at 32 programs a token costs at most 1.03 times the built-in completion's as a lease, 1.05
times with forward_with_sampling, 1.15 times with distribution and sampling in the program (Pie:
1.02 to 1.11, Tables 3 and 4); dispatch policies differ as in Table 5.

    python -m benchmark.inferlets [--model PATH] [--programs 32] [--tokens 64] [--policies]

Milliseconds a token of all programs together: by the clock, and of the processor, which other work
of the machine changes less; the least of some rounds, which take the ways in turn. All texts are
those of the built-in completion. Batches are counted: tokens over passes of the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import sglang as sgl
from sglang.srt.inferlet.dispatch_policies import POLICIES

from benchmark.harness.command import command_parser
from benchmark.inferlets.decoding import PLAIN, ahead, best, distributions, lease, sampled

SUBJECT = "The weather report says that tomorrow will be a fine day for the farmer"
HEADS = (("clock", 9), ("ratio", 7), ("processor", 9), ("ratio", 7), ("mean batch", 11))
Way = Callable[[Any, list[str], int], list[str]]


class Measured(NamedTuple):
    """One round: seconds by the clock and of the processor, and passes of the engine."""

    seconds: float
    processor: float
    passes: int


def prompts_of(count: int) -> list[str]:
    """Prompts of about equal length that share a beginning."""
    return [f"{SUBJECT} number {index}, who" for index in range(count)]


def completed(engine: Any, prompts: list[str], tokens: int) -> list[str]:
    """The built-in completion, all prompts at once."""
    params = {**PLAIN, "max_new_tokens": tokens}

    async def all_of_them() -> list[Any]:
        jobs = [engine.async_generate(prompt, params) for prompt in prompts]
        return list(await asyncio.gather(*jobs))

    return [answer["text"] for answer in asyncio.run(all_of_them())]


def by_programs(main: Callable[[Any], Awaitable[Any]], policy: str = "cohort") -> Way:
    """A way that runs a program for each prompt."""

    def run(engine: Any, prompts: list[str], tokens: int) -> list[str]:
        programs = [engine.inferlet(main, prompt, str(tokens), policy=policy) for prompt in prompts]
        return [program.result(600) for program in programs]

    return run


def measure(engine: Any, way: Way, count: int, tokens: int, want: list[str] | None) -> Measured:
    """One round. Raises AssertionError where a text differs from ``want``."""
    engine.flush_cache()
    before = engine.get_server_info()["stats"]["passes"]
    started, used = time.perf_counter(), time.process_time()
    texts = way(engine, prompts_of(count), tokens)
    seconds, used = time.perf_counter() - started, time.process_time() - used
    passes = engine.get_server_info()["stats"]["passes"] - before
    assert want is None or texts == want, "texts differ from the built-in completion's"
    return Measured(seconds, used, passes)


def report(name: str, rounds: list[Measured], count: int, tokens: int, base: Measured) -> None:
    """Print a line, its ratios to ``base``."""
    least = best_of(rounds)
    clock, processor = (one / tokens * 1e3 for one in least[:2])
    print(
        f"{name:<34} {clock:>9.3f} {least.seconds / base.seconds:>7.3f} {processor:>9.3f} "
        f"{least.processor / base.processor:>7.3f} {count * tokens / least.passes:>11.1f}"
    )


def best_of(rounds: list[Measured]) -> Measured:
    """The least of each number."""
    return Measured(*(min(values) for values in zip(*rounds)))


def compare_ways(options: argparse.Namespace) -> None:
    """Time a token of each way of decoding."""
    ways: dict[str, Way] = {
        "built-in completion": completed,
        "lease": by_programs(lease),
        "forward_with_sampling": by_programs(sampled),
        "the same with futures": by_programs(ahead),
        "distribution of 1, program samples": by_programs(best),
        "distribution of 256": by_programs(distributions),
    }
    count, tokens = options.programs, options.tokens
    with sgl.Engine(**settings_of(options)) as engine:
        want = completed(engine, prompts_of(count), tokens)
        rounds: dict[str, list[Measured]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, way in ways.items():
                rounds[name].append(measure(engine, way, count, tokens, want))
    print(f"{count} programs, {tokens} tokens each")
    heads = (f"{head:>{width}}" for head, width in HEADS)
    print(f"{'ms a token':<34}", *heads)
    base = best_of(rounds["built-in completion"])
    for name in ways:
        report(name, rounds[name], count, tokens, base)


def compare_policies(options: argparse.Namespace) -> None:
    """Table 5: mean batch and tokens a second of each policy, each on an engine of its own."""
    count, tokens = options.programs, options.tokens
    print(f"{'policy':<12} {'tokens/s':>10} {'mean batch':>11}")
    want: list[str] | None = None
    for policy in POLICIES:
        with sgl.Engine(**settings_of(options)) as engine:
            want = want or completed(engine, prompts_of(count), tokens)
            way = by_programs(sampled, policy)
            rounds = [measure(engine, way, count, tokens, want) for _ in range(options.rounds)]
        least = min(one.seconds for one in rounds)
        batch = count * tokens / min(one.passes for one in rounds)
        print(f"{policy:<12} {count * tokens / least:>10.0f} {batch:>11.1f}")


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    settings: dict[str, Any] = {"max_total_tokens": options.max_total_tokens}
    if options.model:
        settings["model_path"] = options.model
    return settings


def main() -> None:
    parser = command_parser("benchmark.inferlets", __doc__)
    parser.add_argument("--model", default="", help="folder of a checkpoint; default: embedded")
    parser.add_argument("--programs", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-total-tokens", type=int, default=32768)
    parser.add_argument("--policies", action="store_true", help="compare policies of dispatch")
    options = parser.parse_args()
    if options.policies:
        compare_policies(options)
    else:
        compare_ways(options)


if __name__ == "__main__":
    main()
