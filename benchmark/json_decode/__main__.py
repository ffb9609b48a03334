"""``python -m benchmark.json_decode``: constrained decoding with and without jump-forward.

The work is the JSON decoding of the SGLang paper (Zheng et al. 2024, sections 4 and 6.3): a batch
of characters and of cities, each written as JSON by a regex; the characters by a JSON schema, whose
separators are fixed; and letters and spaces, where nothing is forced. Engines that differ in
``jump_forward`` take turns in this process. With "exact" the answers must be those of "off", token
for token; the paper's own "string" is shown beside and may differ.

Then what compiling costs, once against once a request (nothing compiled is found again), and what
masks cost: a batch under a constraint against the same batch free, at equal passes. The
paper has 1.6 times the throughput by jump-forward and 2.4 times by compiling once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from benchmark.harness.command import command_parser
from benchmark.harness.hooks.grammars import compiled_per_request, forget_grammars
from benchmark.harness.rounds import in_turns
from benchmark.harness.tables import Figure, Ratio, Row, told
from benchmark.json_decode.sides import Failed, Run, cpu_ratios, engines, ratios, run, runs_of
from benchmark.json_decode.workloads import ANYTHING, WORKLOADS, Workload
from benchmark.models import resolved

EQUAL_TOKENS = 96  # tokens of answers under a constraint that allows everything
PARTS = ("jump", "compile", "mask")


def _parser() -> argparse.ArgumentParser:
    out = command_parser("benchmark.json_decode", __doc__)
    add = out.add_argument
    add("--model", default="embedded",
        help="'embedded', S, M, L (random weights, a token a byte), or a directory")  # fmt: skip
    add("--load-format", default="auto", help="'dummy': random weights of the model's shape")
    add("--workloads", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    add("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    add("--num-requests", type=int, default=64, help="in a batch; default: %(default)s")
    add("--rounds", type=int, default=3, help="of each engine; default: %(default)s")
    add("--seed", type=int, default=0, help="of random weights")
    add("--string", action=argparse.BooleanOptionalAction, default=True,
        help="measure the paper's string-level jump too")  # fmt: skip
    add("--output-file", default="", help="append one JSON line a row")
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where "exact" changes no token and no claim is missed, else 1."""
    options = _parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="json-decode-") as folder:
        settings = _settings(options, Path(folder))
        names = ["exact", "off", *(["string"] if options.string else [])]
        tables: dict[str, list[Row]] = {}
        try:
            with engines(names, settings) as sides:
                if "jump" in options.parts:
                    tables |= _jump(options, sides)
                if "compile" in options.parts:
                    tables |= _compile(options, sides["exact"])
                if "mask" in options.parts:
                    tables |= _mask(options, sides["off"])
        except Failed as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return told(tables, options)


def _settings(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path = resolved(options.model, folder, seed=options.seed)
    out = {"model_path": path, "load_format": options.load_format, "dtype": "float32"}
    return {**out, "random_seed": options.seed}


def _sampling(workload: Workload, count: int) -> list[dict[str, Any]]:
    """Greedy."""
    kind, text = workload.constraint
    return [{kind: text, "max_new_tokens": workload.length, "temperature": 0}] * count


def _prompts(workload: Workload, count: int) -> list[str]:
    return [workload.prompt(i) for i in range(count)]


def _jump(options: argparse.Namespace, sides: dict[str, Any]) -> dict[str, list[Row]]:
    """Throughput of the engines, and where the tokens come from. Raises Failed."""
    speed, shares = [], []
    for name in options.workloads:
        workload = WORKLOADS[name]
        prompts = _prompts(workload, options.num_requests)
        runs = runs_of(sides, prompts, _sampling(workload, len(prompts)), options.rounds)
        first, off = runs["exact"][0], runs["off"][0]
        for number, pair in enumerate(zip(runs["exact"], runs["off"])):
            _same(name, number, *pair)
        figures = {f"{side}, tokens/s": Figure([r.rate for r in rs]) for side, rs in runs.items()}
        gain = ratios(runs["exact"], runs["off"])
        figures["exact / off"] = Ratio(gain, workload.speedup, above=False)
        figures["by CPU"] = Ratio(cpu_ratios(runs["exact"], runs["off"]))
        if "string" in runs:
            figures["string / off"] = Ratio(ratios(runs["string"], runs["off"]))
        speed.append(Row(name, figures))
        shares.append(Row(name, _shares(workload, first, off, runs.get("string"))))
    return {"throughput": speed, "tokens of the batch": shares}


class Plain(Figure):
    """A figure that does not vary."""

    def __str__(self) -> str:
        value = self.values[0]
        return f"{value:.0f}" if float(value).is_integer() else f"{value:.3f}"


def _shares(
    workload: Workload, exact: Run, off: Run, string: list[Run] | None
) -> dict[str, Figure]:
    figures: dict[str, Figure] = {
        "tokens": Plain([exact.count]),
        "answers cut": Plain([exact.cut]),
        "never sampled": Plain([exact.forced / exact.count], workload.forced, above=False),
        "accepted drafts": Plain([exact.accepted / exact.count]),
        "passes": Plain([exact.passes]),
        "passes, off": Plain([off.passes]),
    }
    if string:
        other = sum(a != b for a, b in zip(string[0].texts, off.texts))
        figures |= {"passes, string": Plain([string[0].passes]), "texts changed": Plain([other])}
    return figures


def _same(name: str, number: int, exact: Run, off: Run) -> None:
    for at, (ours, theirs) in enumerate(zip(exact.tokens, off.tokens)):
        if ours != theirs:
            raise Failed(
                f"{name}, round {number}, request {at}: with jump-forward {ours}, "
                f"without {theirs}: {exact.texts[at]!r} and {off.texts[at]!r}"
            )


def _compile(options: argparse.Namespace, engine: Any) -> dict[str, list[Row]]:
    """A pattern for the whole batch against one for each request; none is known before."""
    workload, count = WORKLOADS["character"], options.num_requests
    prompts, sampling = _prompts(workload, count), _sampling(workload, count)
    once: list[Run] = []
    each: list[Run] = []
    ways: list[tuple[Callable[[Any], AbstractContextManager[Any]], list[Run]]] = [
        (nullcontext, once),
        (compiled_per_request, each),
    ]
    for _, (hook, runs) in in_turns(ways, options.rounds):
        forget_grammars(engine)
        with hook(engine):
            runs.append(run(engine, prompts, sampling))
    figures: dict[str, Figure] = {
        "once, s": Ratio([r.seconds for r in once]),
        "each, s": Ratio([r.seconds for r in each]),
        "once / each": Ratio(ratios(once, each), 2.4, above=False),
    }
    return {"one compilation a batch against one a request": [Row("character", figures)]}


def _mask(options: argparse.Namespace, engine: Any) -> dict[str, list[Row]]:
    """The same number of tokens with and without a constraint, one a pass."""
    rows = []
    character = WORKLOADS["character"]
    prompts = _prompts(character, options.num_requests)
    free = {"max_new_tokens": EQUAL_TOKENS, "temperature": 0, "ignore_eos": True}
    batches = {
        "everything allowed": [{**free, "regex": ANYTHING}] * len(prompts),
        "character": _sampling(character, len(prompts)),
    }
    for name, sampling in batches.items():
        known = run(engine, prompts, sampling)
        lengths = [{**free, "max_new_tokens": len(tokens)} for tokens in known.tokens]
        bound: list[Run] = []
        unbound: list[Run] = []
        for _, (work, runs) in in_turns([(sampling, bound), (lengths, unbound)], options.rounds):
            runs.append(run(engine, prompts, work))
        figures = {
            "constrained, tokens/s": Figure([r.rate for r in bound]),
            "free, tokens/s": Figure([r.rate for r in unbound]),
            "constrained / free": Ratio(ratios(bound, unbound), 0.95, above=False),
            "by CPU": Ratio(cpu_ratios(bound, unbound)),
            "passes": Plain([bound[0].passes]),
            "passes, free": Plain([unbound[0].passes]),
        }
        rows.append(Row(name, figures))
    return {"what masks cost, no jumps": rows}


if __name__ == "__main__":
    sys.exit(main())
