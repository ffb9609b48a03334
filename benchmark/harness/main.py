"""``python -m benchmark.CLAIM``: one claim on one side, a line of JSON a run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmark.harness.claim import Claim, Item, Scale
from benchmark.harness.measure import MODES, Outcome, accuracy
from benchmark.harness.side import BACKENDS, Ours, Plain, Side
from benchmark.models import EMBEDDED
from benchmark.serving.report import environment


def main(claim: Claim, argv: Sequence[str] | None = None) -> int:
    """The exit code: 2 where the side cannot be had."""
    options = _parser(claim).parse_args(argv)
    items = claim.items(Scale(options.items, options.long), options.seed)
    try:
        side = _opened(options)
    except (ImportError, OSError, ValueError) as error:
        print(f"{claim.name}: {options.backend} cannot be had: {error}", file=sys.stderr)
        return 2
    try:
        for mode in options.modes:
            for number in range(options.rounds):
                side.flush()
                outcome = side.run(claim, items, mode)
                line = record(claim, side, items, mode, number, outcome)
                print(told(claim, line))
                if options.output_file:
                    line = {**line, "options": vars(options), "environment": environment()}
                    with open(options.output_file, "a", encoding="utf-8") as file:
                        file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
    finally:
        side.close()
    return 0


def record(
    claim: Claim, side: Side, items: Sequence[Item], mode: str, number: int, outcome: Outcome
) -> dict[str, Any]:
    """What is kept of a run."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "claim": claim.name, "side": side.name, "backend": side.backend, "mode": mode,
        "round": number, "items": len(items), "rate": outcome.rate(),
        "accuracy": accuracy(claim, items, outcome.answers), **outcome.plain(),
    }  # fmt: skip


def told(claim: Claim, line: dict[str, Any]) -> str:
    """A run in one line."""
    seconds = line["seconds"]
    parts = [f"{claim.name}, {line['side']}, {line['mode']}: {line['items']} in {seconds:.2f} s"]
    parts.append(f"{line['rate']:.2f} a second")
    if line["prompt_tokens"]:
        hits = 100 * line["cached_tokens"] / line["prompt_tokens"]
        parts.append(f"{line['prompt_tokens']} prompt tokens, {hits:.1f} % cached")
    if line["accuracy"] is not None:
        parts.append(f"{100 * line['accuracy']:.0f} % right")
    return ", ".join(parts)


def _opened(options: argparse.Namespace) -> Side:
    """Raises ImportError, OSError or ValueError with a word where the side cannot be had."""
    model = Path(options.model_path) if options.model_path else EMBEDDED
    random = model != EMBEDDED
    if options.backend == "openai-url":
        if not options.base_url:
            raise ValueError("--backend openai-url needs --base-url http://HOST:PORT")
        return Plain(options.base_url, options.base_url, options.served_model, ignore_eos=random)
    if options.backend == "sglang":
        if options.base_url:
            from sglang import RuntimeEndpoint

            return Ours("sglang", RuntimeEndpoint(options.base_url), ignore_eos=random)
        from sglang import Engine

        engine = Engine(model_path=str(model) if random else "", log_level="warning")
        return Ours("sglang", engine, ignore_eos=random)
    raise ValueError(f"there is no side for {options.backend} yet")


def _parser(claim: Claim) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmark.{claim.name}", description=f"{claim.title}. {claim.paper}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--backend", choices=BACKENDS, default="sglang", help="who is asked")
    add("--base-url", default="", help="a server that runs; else one is started, where possible")
    add("--served-model", default="default", help="the model's name there")
    add("--model-path", default="", help="a checkpoint; default: the embedded model")
    add("--items", type=int, default=16, help="program instances")
    add("--long", action="store_true", help="lengths as in the paper")
    add("--seed", type=int, default=0, help="of the items")
    add("--rounds", type=int, default=1, help="runs of each mode")
    add("--modes", nargs="+", choices=MODES, default=list(MODES), help="what is measured")
    add("--output-file", default="", help="append a line of JSON a run")
    return parser
