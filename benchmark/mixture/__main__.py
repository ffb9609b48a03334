"""``python -m benchmark.mixture``: throughput with a mixture of experts, and with int8 weights, as
ratios to a dense model in bfloat16 of the same active size.

Random weights, in turns: prompts of ``--input-len`` tokens with one sampled token each, and texts
of ``--output-len`` tokens after short prompts, for each number of requests at once. Every text is
checked: its log-probabilities are finite, it is the same in every round, and its request alone
gives it too.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.harness.command import command_parser
from benchmark.harness.rounds import in_turns
from benchmark.harness.tables import Figure, Ratio, Row, told
from benchmark.mixture.models import Experts, Sizes, make

SHORT = 4  # tokens of a prompt whose text is long


class Wrong(Exception):
    """A text is not what it must be."""


@dataclass(frozen=True)
class Run:
    """One batch. ``cpu``: seconds of the processor."""

    seconds: float
    cpu: float
    texts: list[list[int]]


@dataclass(frozen=True)
class Work:
    """``count`` requests at once, each of so many tokens in and out."""

    count: int
    tokens_in: int
    tokens_out: int

    @property
    def name(self) -> str:
        if self.tokens_out == 1:
            return f"prompts, {self.count} of {self.tokens_in} tokens"
        return f"decoding, {self.count} at once"

    @property
    def tokens(self) -> int:
        return self.count * (self.tokens_in if self.tokens_out == 1 else self.tokens_out)

    def run(self, engine: Any, vocab: int, only: int | None = None, **options: Any) -> Any:
        """The answers; ``only``: of one of the requests."""
        r = random.Random(self.count)
        prompts = [
            [r.randrange(1, vocab) for _ in range(self.tokens_in)] for _ in range(self.count)
        ]
        params = [
            {"max_new_tokens": self.tokens_out, "temperature": 1.0, "sampling_seed": i,
             "ignore_eos": True}
            for i in range(self.count)
        ]  # fmt: skip
        if only is not None:
            prompts, params = [prompts[only]], [params[only]]
        engine.flush_cache()
        return engine.generate(input_ids=prompts, sampling_params=params, **options)


def timed(engine: Any, work: Work, vocab: int) -> Run:
    began, used = time.perf_counter(), time.process_time()
    answers = work.run(engine, vocab)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    return Run(seconds, cpu, [answer["output_ids"] for answer in answers])


def check(engine: Any, work: Work, vocab: int) -> list[list[int]]:
    """The texts of the batch. Raises Wrong where a log-probability is not finite, or a request
    alone has another text."""
    answers = work.run(engine, vocab, return_logprob=True)
    for answer in answers:
        values = [value for value, *_ in answer["meta_info"]["output_token_logprobs"]]
        if len(values) != work.tokens_out or not all(map(math.isfinite, values)):
            raise Wrong(f"{work.name}: {len(values)} log-probabilities, {values}")
    texts: list[list[int]] = [answer["output_ids"] for answer in answers]
    for i in {0, work.count - 1}:
        if work.run(engine, vocab, only=i)[0]["output_ids"] != texts[i]:
            raise Wrong(f"{work.name}: request {i} has another text alone")
    return texts


def measure(engines: dict[str, Any], work: Work, vocab: int, rounds: int) -> list[Row]:
    """A row an engine; the first is the one that the others are held against. Raises Wrong."""
    texts = {name: check(engine, work, vocab) for name, engine in engines.items()}
    runs: dict[str, list[Run]] = {name: [] for name in engines}
    for number, name in in_turns(engines, rounds):
        runs[name].append(timed(engines[name], work, vocab))
        if runs[name][-1].texts != texts[name]:
            raise Wrong(f"{work.name}, {name}: a text of round {number} is another one")
    base = next(iter(runs.values()))
    return [
        Row(name, {
            "tokens/s": Figure([work.tokens / r.seconds for r in own]),
            "to dense": Ratio([b.seconds / r.seconds for r, b in zip(own, base)]),
            "by CPU": Ratio([b.cpu / r.cpu for r, b in zip(own, base)]),
        })
        for name, own in runs.items()
    ]  # fmt: skip


def parser() -> argparse.ArgumentParser:
    out = command_parser("benchmark.mixture", __doc__)
    add = out.add_argument
    add("--width", type=int, default=1024, help="of the hidden states; default: %(default)s")
    add("--layers", type=int, default=6, help="default: %(default)s")
    add("--inner", type=int, default=4096, help="of a token's experts; default: %(default)s")
    add("--vocab", type=int, default=8192, help="default: %(default)s")
    add("--experts", nargs="*", default=["8/2", "64/8"], metavar="ALL/CHOSEN",
        help="default: 8/2 64/8")  # fmt: skip
    add("--num-requests", type=int, nargs="*", default=[1, 8, 32], help="default: 1 8 32")
    add("--input-len", type=int, default=512, help="tokens of a long prompt; default: 512")
    add("--output-len", type=int, default=32, help="tokens of a long text; default: 32")
    add("--rounds", type=int, default=3, help="of each; default: %(default)s")
    add("--threads", type=int, default=0, help="CPU threads")
    add("--output-file", default="", help="append one JSON line a row")
    return out


def open_engines(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from sglang import Engine

    sizes = Sizes(options.width, options.layers, options.inner, options.vocab)
    engines: dict[str, Any] = {}
    pairs = [tuple(map(int, pair.split("/"))) for pair in options.experts]
    for number, experts in enumerate([Experts(), *(Experts(*pair) for pair in pairs)]):
        path = make(folder / str(number), sizes, experts)
        total, active = experts.parameters(sizes)
        print(f"{experts.name}: {total / 1e6:.0f} M in layers, {active / 1e6:.0f} M active")
        for quantization in ("none", "int8"):
            kind = "bf16" if quantization == "none" else quantization
            engines[f"{experts.name}, {kind}"] = Engine(
                model_path=str(path), load_format="dummy", dtype="bfloat16",
                quantization=quantization, threads=options.threads, log_level="warning",
                max_total_tokens=max(4096, 2 * max(options.num_requests) * options.input_len),
            )  # fmt: skip
    return engines


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every text is right, else 1."""
    options = parser().parse_args(arguments)
    works = [Work(n, SHORT, options.output_len) for n in options.num_requests]
    works.append(Work(2, options.input_len, 1))
    engines: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="mixture-") as folder:
        try:
            engines = open_engines(options, Path(folder))
            tables = {
                work.name: measure(engines, work, options.vocab, options.rounds) for work in works
            }
        except Wrong as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        finally:
            for engine in engines.values():
                engine.shutdown()
    return told(tables, options)


if __name__ == "__main__":
    sys.exit(main())
