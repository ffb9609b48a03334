"""``python -m benchmark.CLAIM``: one claim on one side, a line of JSON a run."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from httpx import HTTPError
from openai import OpenAIError
from sglang.errors import SglangError

from benchmark.harness.apis.dialects import DIALECTS
from benchmark.harness.claim import Claim, Item, Scale
from benchmark.harness.contenders import Contender, contenders
from benchmark.harness.machine import machine
from benchmark.harness.measure import MODES
from benchmark.harness.records import append
from benchmark.harness.side import BACKENDS, Ours, Plain, Side
from benchmark.harness.text_model import checkpoint
from benchmark.harness.turns import ratios, record, take_turns
from benchmark.models import EMBEDDED, SHAPES
from benchmark.peers.child import ROOT, Failed

SEEDS = 1000  # between the items of two rounds
SIZE = "S"  # default size of a claim's own model
Known: TypeAlias = Callable[[Path, Path], list[Contender]]


def main(
    claim: Claim, argv: Sequence[str] | None = None,
    known: Known = contenders,
) -> int:  # fmt: skip
    """The exit code: 2 where nothing could be measured, with a word on standard error. ``known``:
    the contenders that can run this claim."""
    options = parser(claim).parse_args(argv)
    # So that what was started is ended.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        _checked(options)
        ready = (_chosen if options.peers else _opened)(claim, options, known)
    except ValueError as error:
        return _refused(str(error))
    except (ImportError, OSError, SglangError) as error:
        who = "a model" if options.peers else options.backend
        return _refused(f"{who} cannot be had for {claim.name}: {error}")
    if isinstance(ready, list):
        return _beside_peers(claim, options, ready)
    return _alone(claim, options, ready)


def _checked(options: argparse.Namespace) -> None:
    """Raise ValueError for options that cannot have a result, before time is spent on them."""
    if options.contenders and not options.peers:
        raise ValueError("--contenders chooses who takes turns: give --peers with it")
    if options.output_file:
        try:
            open(options.output_file, "a", encoding="utf-8").close()
        except OSError as error:
            raise ValueError(f"--output-file cannot be written: {error}") from error


def _refused(why: str) -> int:
    print(f"error: {why}", file=sys.stderr)
    return 2


def _alone(claim: Claim, options: argparse.Namespace, side: Side) -> int:
    items = claim.items(Scale(options.items, options.long), options.seed)
    try:
        for mode in options.modes:
            for number in range(options.rounds):
                side.flush()
                outcome = side.run(claim, items, mode)
                _tell(claim, options, record(claim, side, items, mode, number, outcome))
    except (SglangError, OpenAIError, HTTPError, Failed) as error:
        where = f"the server at {options.base_url}" if options.base_url else f"{options.logs}"
        return _refused(
            f"{options.backend} failed on {claim.name}: {type(error).__name__}: {error}; see "
            f"{where}, or choose another --backend"
        )
    finally:
        side.close()
    return 0


def _chosen(claim: Claim, options: argparse.Namespace, known: Known) -> list[Contender]:
    """Contenders that take turns. Raises ValueError for an unknown name."""
    found = known(_model(claim, options), options.environments)
    names = [name.strip() for name in options.contenders.split(",") if name.strip()]
    there = [contender.name for contender in found]
    if unknown := [name for name in names if name not in there]:
        raise ValueError(f"--contenders has {unknown[0]!r}; {claim.name} knows {', '.join(there)}")
    return [contender for contender in found if not names or contender.name in names]


def _beside_peers(claim: Claim, options: argparse.Namespace, chosen: list[Contender]) -> int:
    """Measure all contenders in turns; then print how many times as many items a second ours
    does."""
    lines: list[dict[str, Any]] = []

    def tell(line: dict[str, Any]) -> None:
        lines.append(line)
        _tell(claim, options, line)

    def items(number: int, at: int) -> list[Item]:
        seed = options.seed + SEEDS * (number + 1 + at * (options.rounds + 1))
        return claim.items(Scale(options.items, options.long), seed)

    sides: list[Side] = []
    with ExitStack() as started:
        for contender in chosen:
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
            # The modes use different items: no answer comes from what another mode left in a cache.
            take_turns(sides, claim, partial(items, at=at), mode, options.rounds, tell)
    for (_, mode, name), ratio in ratios(lines).items():
        spread = f"{ratio.least:.2f} to {ratio.most:.2f}"
        print(f"{claim.name}, {mode}: ours {ratio.value:.2f} times {name} ({spread})")
    return 0 if any(line["kind"] == "run" for line in lines) else 2


def _tell(claim: Claim, options: argparse.Namespace, line: dict[str, Any]) -> None:
    if line["kind"] == "run":
        print(told(claim, line), flush=True)
    else:
        print(f"{claim.name}: without {line['side']}: {line['why']}", flush=True)
    if options.output_file:
        append(options.output_file, {**line, "options": vars(options), "machine": machine()})


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
    """The checkpoint to run on. Raises ValueError where two are given."""
    if options.size and options.model_path:
        raise ValueError("--size and --model-path each name a model; give one of them")
    if claim.model and not options.model_path:
        return claim.model(options.size or SIZE)
    if options.size:
        return checkpoint(options.size)
    return Path(options.model_path) if options.model_path else EMBEDDED


def _opened(claim: Claim, options: argparse.Namespace, known: Known) -> Side:
    """Open the side that the options name. Raises ImportError, OSError or ValueError where that
    fails, with the reason."""
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
    found = {one.backend: one for one in known(model, options.environments)}
    chosen = found.get(options.backend)
    if chosen is None:
        able = " or ".join(name for name in BACKENDS if name in found)
        raise ValueError(f"{options.backend} cannot run {claim.name}; use --backend {able}")
    if chosen.missing:
        raise OSError(chosen.missing)
    return chosen.start(options.logs)


def _some(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def parser(claim: Claim) -> argparse.ArgumentParser:
    """Parser of the command line of a claim."""
    made = argparse.ArgumentParser(
        prog=f"python -m benchmark.{claim.name}", description=f"{claim.title}. {claim.paper}.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    add = made.add_argument
    add("--backend", choices=BACKENDS, default="sglang", help="who is asked")
    add("--base-url", default="", help="a server that runs; else one is started, where possible")
    add("--served-model", default="default", help="the model's name there")
    add("--dialect", choices=list(DIALECTS), default="sglang", help="how that server is told of "
        "constraints")  # fmt: skip
    add("--model-path", default="", help="a checkpoint; default: the embedded model")
    add("--size", choices=list(SHAPES), default="", help="random weights of this size instead")
    add("--peers", action="store_true", help="all who can be had take turns")
    add("--contenders", default="", help="with --peers: these names alone, with commas between")
    add("--environments", type=Path, default=ROOT / ".peers", help="folder of the peers'")
    add("--logs", type=Path, default=ROOT / "benchmark" / "results" / "logs", help="of servers")
    add("--items", type=_some, default=16, help="program instances")
    add("--long", action="store_true", help="lengths as in the paper")
    add("--seed", type=int, default=0, help="of the items")
    add("--rounds", type=_some, default=1, help="runs of each mode")
    add("--modes", nargs="+", choices=MODES, default=list(MODES), help="what is measured")
    add("--output-file", default="", help="append a line of JSON a run")
    return made
