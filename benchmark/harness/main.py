"""``python -m benchmark.CLAIM``: one claim on one side, a line of JSON a run."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from benchmark.harness.apis.dialects import DIALECTS
from benchmark.harness.claim import Claim, Item, Scale
from benchmark.harness.contenders import Contender, contenders
from benchmark.harness.measure import MODES
from benchmark.harness.side import BACKENDS, Ours, Plain, Side
from benchmark.harness.text_model import checkpoint
from benchmark.harness.turns import ratios, record, take_turns
from benchmark.models import EMBEDDED, SHAPES
from benchmark.peers.child import ROOT
from benchmark.peers.machine import machine

SEEDS = 1000  # between the items of two rounds
SIZE = "S"  # of a claim's own model, where nobody says
Known: TypeAlias = Callable[[Path, Path], list[Contender]]


def main(
    claim: Claim, argv: Sequence[str] | None = None,
    known: Known = contenders,
) -> int:  # fmt: skip
    """The exit code: 2 where the side cannot be had. ``known``: who can run this claim."""
    options = _parser(claim).parse_args(argv)
    # So that what was started is ended.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if options.peers:
        return _beside_peers(claim, options, known)
    items = claim.items(Scale(options.items, options.long), options.seed)
    try:
        side = _opened(claim, options, known)
    except (ImportError, OSError, ValueError) as error:
        print(f"{claim.name}: {options.backend} cannot be had: {error}", file=sys.stderr)
        return 2
    try:
        for mode in options.modes:
            for number in range(options.rounds):
                side.flush()
                outcome = side.run(claim, items, mode)
                _tell(claim, options, record(claim, side, items, mode, number, outcome))
    finally:
        side.close()
    return 0


def _beside_peers(claim: Claim, options: argparse.Namespace, known: Known) -> int:
    """Everybody who can be had, in turns; then how many times as many items a second ours does."""
    lines: list[dict[str, Any]] = []

    def tell(line: dict[str, Any]) -> None:
        lines.append(line)
        _tell(claim, options, line)

    def items(number: int, at: int) -> list[Item]:
        seed = options.seed + SEEDS * (number + 1 + at * (options.rounds + 1))
        return claim.items(Scale(options.items, options.long), seed)

    sides: list[Side] = []
    with ExitStack() as started:
        for contender in known(_model(claim, options), options.environments):
            if options.contenders and contender.name not in options.contenders.split(","):
                continue
            try:
                if contender.missing:
                    raise OSError(contender.missing)
                print(f"{contender.name} starts", flush=True)
                side = contender.start(options.logs)
                started.callback(side.close)
                side.pause()
                sides.append(side)
            except (ImportError, OSError, ValueError) as error:
                tell({"kind": "left out", "side": contender.name, "why": str(error)})
        for at, mode in enumerate(options.modes if sides else ()):
            # Nobody answers in one mode from what another left in a cache.
            take_turns(sides, claim, partial(items, at=at), mode, options.rounds, tell)
    for (_, mode, name), ratio in ratios(lines).items():
        spread = f"{ratio.least:.2f} to {ratio.most:.2f}"
        print(f"{claim.name}, {mode}: ours {ratio.value:.2f} times {name} ({spread})")
    return 0 if sides else 2


def _tell(claim: Claim, options: argparse.Namespace, line: dict[str, Any]) -> None:
    if line["kind"] == "run":
        print(told(claim, line), flush=True)
    else:
        print(f"{claim.name}: without {line['side']}: {line['why']}", flush=True)
    if options.output_file:
        line = {**line, "options": vars(options), "machine": machine()}
        with open(options.output_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")


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


def _model(claim: Claim, options: argparse.Namespace) -> Path:
    """Raises ValueError where two are asked for."""
    if options.size and options.model_path:
        raise ValueError("--size and --model-path each name a model; give one of them")
    if claim.model and not options.model_path:
        return claim.model(options.size or SIZE)
    if options.size:
        return checkpoint(options.size)
    return Path(options.model_path) if options.model_path else EMBEDDED


def _opened(claim: Claim, options: argparse.Namespace, known: Known) -> Side:
    """Raises ImportError, OSError or ValueError with a word where the side cannot be had."""
    model = _model(claim, options)
    random = model != EMBEDDED
    if options.backend == "openai-url":
        if not options.base_url:
            raise ValueError("--backend openai-url needs --base-url http://HOST:PORT")
        return Plain(
            options.base_url, options.base_url, options.served_model, ignore_eos=random,
            dialect=options.dialect,
        )  # fmt: skip
    if options.backend == "sglang":
        if options.base_url:
            from sglang import RuntimeEndpoint

            return Ours("sglang", RuntimeEndpoint(options.base_url), ignore_eos=random)
        from sglang import Engine

        engine = Engine(model_path=str(model) if random else "", log_level="warning")
        return Ours("sglang", engine, ignore_eos=random)
    found = known(model, options.environments)
    (chosen,) = (contender for contender in found if contender.backend == options.backend)
    if chosen.missing:
        raise OSError(chosen.missing)
    return chosen.start(options.logs)


def _parser(claim: Claim) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmark.{claim.name}", description=f"{claim.title}. {claim.paper}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--backend", choices=BACKENDS, default="sglang", help="who is asked")
    add("--base-url", default="", help="a server that runs; else one is started, where possible")
    add("--served-model", default="default", help="the model's name there")
    add("--dialect", choices=list(DIALECTS), default="sglang", help="how that server is told of "
        "constraints")  # fmt: skip
    add("--model-path", default="", help="a checkpoint; default: the embedded model")
    add("--size", choices=list(SHAPES), default="", help="random weights of this size instead")
    add("--peers", action="store_true", help="all who can be had take turns")
    add("--contenders", default="", help="with --peers: names of these alone, with commas")
    add("--environments", type=Path, default=ROOT / ".peers", help="folder of the peers'")
    add("--logs", type=Path, default=ROOT / "benchmark" / "results" / "logs", help="of servers")
    add("--items", type=int, default=16, help="program instances")
    add("--long", action="store_true", help="lengths as in the paper")
    add("--seed", type=int, default=0, help="of the items")
    add("--rounds", type=int, default=1, help="runs of each mode")
    add("--modes", nargs="+", choices=MODES, default=list(MODES), help="what is measured")
    add("--output-file", default="", help="append a line of JSON a run")
    return parser
