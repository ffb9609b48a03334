"""``python -m benchmark.speculation``: tokens guessed ahead, by n-gram and by a draft model.

Greedy texts that repeat their prompt and themselves, and stories sampled at temperature 1. Each
runs without speculation and with either kind, in turns on one engine; the texts must be the same,
token for token. The model is the embedded one, made deeper by layers that add nothing. Its draft
model is much cheaper than itself and samples alike (``models``): what "draft" gains is the most a
draft model can. "draft, wrong" has one with random weights, which is the least.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.harness.command import command_parser
from benchmark.harness.rounds import in_turns
from benchmark.harness.tables import Figure, Row, told
from benchmark.models import EMBEDDED
from benchmark.speculation.models import of_depth

PASSAGE = "The little dog ran to the river. It saw a red boat, and a cat in the red boat. "
STARTS = ("The old farmer", "A bird in the snow", "My sister", "On Monday the teacher",
          "Two wolves", "The queen of the sea", "In the kitchen", "Nobody knew")  # fmt: skip
WORK: dict[str, tuple[str, float]] = {"repetitive": (PASSAGE * 4, 0.0), "free": ("", 1.0)}
MOST_PASSES = 0.5  # a token, of repetitive text with n-grams


class Changed(Exception):
    """A text is not what it is without speculation."""


@dataclass(frozen=True)
class Run:
    """One batch. ``cpu``: seconds of the processor; the counts are sums over the requests."""

    seconds: float
    cpu: float
    tokens: list[list[int]]
    passes: int
    drafted: int
    accepted: int

    @property
    def count(self) -> int:
        return sum(map(len, self.tokens))


def run(engine: Any, work: str, count: int, length: int, source: str) -> Run:
    """``count`` requests at once, with an empty prefix cache."""
    before, temperature = WORK[work]
    prompts = [before + STARTS[i % len(STARTS)] for i in range(count)]
    params = [
        {"max_new_tokens": length, "temperature": temperature, "sampling_seed": i,
         "ignore_eos": True, "speculation": source}
        for i in range(count)
    ]  # fmt: skip
    engine.flush_cache()
    began, used = time.perf_counter(), time.process_time()
    answers = engine.generate(prompts, params)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    meta = [answer["meta_info"] for answer in answers]
    return Run(
        seconds,
        cpu,
        [answer["output_ids"] for answer in answers],
        sum(one["forward_passes"] for one in meta),
        sum(one["drafted_tokens"] for one in meta),
        sum(one["accepted_tokens"] for one in meta),
    )


class Plain(Figure):
    """A figure with two decimal places, and its spread only if there is one."""

    def __str__(self) -> str:
        low, high = min(self.values), max(self.values)
        spread = f" ({low:.2f}-{high:.2f})" if high > low else ""
        return f"{self.median:.2f}{spread}"


def measure(
    sides: dict[str, tuple[Any, str]], work: str, count: int, length: int, rounds: int
) -> list[Row]:
    """A row a side; the first is the one that the others are held against. Raises Changed."""
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    for engine, source in sides.values():
        run(engine, work, count, length, source)
    for _, name in in_turns(sides, rounds):
        runs[name].append(run(sides[name][0], work, count, length, sides[name][1]))
    off = next(iter(runs.values()))
    rows = []
    for name, own in runs.items():
        for found, want in zip(own, off):
            differ = [
                i
                for i, pair in enumerate(zip(found.tokens, want.tokens))
                if len({*map(tuple, pair)}) > 1
            ]
            if len(differ) > count // 100:  # in float32 a random number may fall on a boundary
                raise Changed(f"{work}, {name}: requests {differ} have another text than without")
        first = own[0]
        limit = MOST_PASSES if (work, name) == ("repetitive", "ngram") else None
        figures: dict[str, Figure] = {
            "tokens/s": Figure([r.count / r.seconds for r in own]),
            "to off": Plain([b.seconds / a.seconds for a, b in zip(own, off)]),
            "by CPU": Plain([b.cpu / a.cpu for a, b in zip(own, off)]),
            "passes/token": Plain([first.passes / first.count], limit),
            "drafted/token": Plain([first.drafted / first.count]),
            "accepted": Plain([first.accepted / max(first.drafted, 1)]),
        }
        rows.append(Row(name, figures))
    return rows


def _parser() -> argparse.ArgumentParser:
    out = command_parser("benchmark.speculation", __doc__)
    add = out.add_argument
    add("--layers", type=int, default=48, help="of the model; its draft model has 4")
    add("--num-requests", type=int, nargs="*", default=[1, 4], help="at once; default: 1 4")
    add("--output-len", type=int, default=96, help="tokens of a text; default: %(default)s")
    add("--rounds", type=int, default=3, help="of each; default: %(default)s")
    add("--threads", type=int, default=0, help="CPU threads")
    add("--output-file", default="", help="append one JSON line a row")
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where no text changes and no claim is missed, else 1."""
    from sglang import Engine

    options = _parser().parse_args(arguments)
    rows: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory(prefix="speculation-") as folder:
        wrong = _wrong(Path(folder) / "wrong")
        path = of_depth(Path(folder) / "model", options.layers)
        settings = {"model_path": str(path), "dtype": "float32", "threads": options.threads,
                    "max_total_tokens": 1 << 15, "log_level": "warning"}  # fmt: skip
        good = Engine(**settings, speculative_draft_model_path=str(EMBEDDED))
        bad = Engine(**settings, speculative_draft_model_path=str(wrong))
        sides = {"off": (good, "off"), "ngram": (good, "ngram"), "draft": (good, "draft"),
                 "draft, wrong": (bad, "draft")}  # fmt: skip
        try:
            for work in WORK:
                for count in options.num_requests:
                    title = f"{work}, {count} at once"
                    args = (sides, work, count, options.output_len, options.rounds)
                    rows[title] = measure(*args)
        except Changed as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        finally:
            good.shutdown()
            bad.shutdown()
    return told(rows, options)


def _wrong(folder: Path) -> Path:
    """A draft model as large as the embedded one, with random weights."""
    import torch
    from safetensors.torch import load_file, save_file

    of_depth(folder, 4)
    random = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(value.shape, generator=random).to(value.dtype) * 0.05
        for name, value in load_file(folder / "model.safetensors").items()
    }
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


if __name__ == "__main__":
    sys.exit(main())
