"""``sglang chaos``: work under faults, and what was lost."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang.errors import SglangError
from sglang.srt.commands.named_values import named_values
from sglang.terminal.chaos.chaos_run import ChaosRun, Tally
from sglang.terminal.chaos.chaos_stage import OF_PROCESSES, ChaosStage
from sglang.terminal.chaos.chaos_work import ChaosWork, ProgramWork, own_work, read_requests
from sglang.terminal.chaos.crash_bundle import CrashBundle
from sglang.terminal.chaos.fault_plan import FAULTS, fault_plan
from sglang.terminal.program_file import load_program, program_arguments

MOST_CLIENTS = 256
SETTINGS = {"log_level": "error", "max_engine_restarts": 100_000, "max_resumes": 1_000}
"""Settings of a server that is started here, where none are given: it survives any number of
kills."""
EPILOG = """
Where something was lost (an error, another answer, no end), a bundle is written that 'sglang
replay' runs again, and the exit code is 1.

  sglang chaos                                            # short requests, a server of its own
  sglang chaos qa.py:answer question="Where?" --model ./my-model --seconds 300 --seed 7
  sglang chaos --requests load.jsonl --faults kill cut --every 3
  sglang chaos qa.py:answer question="Where?" --url http://127.0.0.1:30000 --faults cut squeeze
"""


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``sglang chaos``."""
    parser.add_argument(
        "program", metavar="FILE.py:NAME", nargs="?", default="",
        help="a function under @sglang.function, as 'sglang run' takes it; without it --requests, "
        "or short requests of the command's own",
    )  # fmt: skip
    parser.add_argument("values", metavar="NAME=VALUE", nargs="*", help="arguments of the program")
    parser.add_argument(
        "--requests", default="", metavar="FILE", help="JSON lines, each a body of /generate"
    )
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE",
        help="a default of every gen (temperature is 0, so that answers can be compared)",
    )  # fmt: skip
    parser.add_argument("--model", default="", help="model of the server that is started")
    parser.add_argument(
        "--setting", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of that server, such as max_total_tokens=4096; may be given again",
    )  # fmt: skip
    parser.add_argument("--url", default="", help="a running server; its engines are not killed")
    parser.add_argument("--api-key", help="the server's key (default: SGLANG_API_KEY)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="duration (default: %(default)s)"
    )
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS",
                        help="mean time between two faults (default: %(default)s)")  # fmt: skip
    parser.add_argument(
        "--clients", type=int, default=4, help="parallel clients (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the faults (default: %(default)s)"
    )
    about = "; ".join(f"{name}: {text}" for name, text in FAULTS.items())
    parser.add_argument(
        "--faults", nargs="+", metavar="FAULT", help=f"faults to make; default: all. {about}"
    )
    parser.add_argument(
        "--bundle",
        default="",
        metavar="FILE",
        help="where to write losses; default: chaos-SEED.json",
    )
    parser.epilog = EPILOG


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """The exit code: 1 where a piece of work was lost, 2 where the run could not begin."""
    try:
        kinds = _kinds(arguments)
        bundle = CrashBundle(work={}, settings=_settings(arguments), clients=arguments.clients,
                             seconds=arguments.seconds)  # fmt: skip
        bundle.faults = fault_plan(arguments.seed, arguments.seconds, arguments.every, kinds)
        if not bundle.faults:
            raise ValueError(
                f"no fault comes within --seconds {arguments.seconds:g} at --every "
                f"{arguments.every:g}; give more seconds, or another --seed"
            )
        verify_clients(arguments.clients)
        work = _work(arguments)
        key = arguments.api_key or os.environ.get("SGLANG_API_KEY")
        tally = perform(work, bundle, arguments.url, key)
        if not tally.lost:
            return 0
        bundle.work, bundle.failures = work.data(), tally.failures
        path = arguments.bundle or f"chaos-{arguments.seed}.json"
        bundle.save(path)
    except (OSError, ValueError, TypeError, SglangError) as error:
        print(f"sglang chaos: {error}", file=sys.stderr)
        return 2
    print(f"{path} holds what was lost; again: sglang replay {path}")
    return 1


def verify_clients(clients: int) -> None:
    """Raise ValueError where so many cannot be."""
    if not 1 <= clients <= MOST_CLIENTS:
        raise ValueError(f"--clients is {clients}; give 1 to {MOST_CLIENTS}")


def _kinds(arguments: argparse.Namespace) -> list[str]:
    """The faults of a run. Raises ValueError for one that cannot be made at --url."""
    if not arguments.url:
        return list(arguments.faults or FAULTS)
    if arguments.model or arguments.setting:
        raise ValueError("--model and --setting are of a server that is started here, and --url "
                         "names one; leave them out")  # fmt: skip
    if refused := [kind for kind in arguments.faults or () if kind in OF_PROCESSES]:
        raise ValueError(f"--faults {refused[0]} is for a server that is started here: its engines "
                         "are not another's; leave --url out")  # fmt: skip
    return list(arguments.faults or [kind for kind in FAULTS if kind not in OF_PROCESSES])


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    settings = {**SETTINGS, **named_values("--setting", arguments.setting)}
    return settings | ({"model_path": arguments.model} if arguments.model else {})


def _work(arguments: argparse.Namespace) -> ChaosWork:
    if arguments.program and arguments.requests:
        raise ValueError("FILE.py:NAME and --requests are two kinds of work; give one")
    if arguments.requests:
        return read_requests(arguments.requests)
    if not arguments.program:
        return own_work()
    values = program_arguments(load_program(arguments.program), arguments.values)
    return ProgramWork(arguments.program, values, named_values("--param", arguments.param))


def perform(work: ChaosWork, bundle: CrashBundle, url: str, key: str | None) -> Tally:
    """Do the work under the bundle's faults, and print what became of it. Raises SglangError."""
    with _stage(bundle.settings, url, key) as stage:
        bundle.server = stage.settings()
        run = ChaosRun(work, stage, bundle.clients, lambda line: print(line, flush=True))
        if bundle.faults:
            tally = run.run(bundle.faults, bundle.seconds)
        else:
            known = {one["piece"] % work.pieces: one["expected"] for one in bundle.failures}
            tally = run.once({piece: text for piece, text in known.items() if text})
        print("\n".join(report(tally, stage.made)))
    return tally


@contextmanager
def _stage(settings: dict[str, Any], url: str, key: str | None) -> Iterator[ChaosStage]:
    if url:
        stage = ChaosStage(url, None, key)
        try:
            yield stage
        finally:
            stage.close()
        return
    from sglang.backend.engine.launched_runtime import Runtime

    with Runtime(**settings) as runtime:
        stage = ChaosStage(runtime.url, runtime.pid, settings.get("api_key") or key)
        try:
            yield stage
        finally:
            stage.close()


def report(tally: Tally, made: dict[str, int]) -> list[str]:
    """Lines: the faults, the ends of the work, and the number of lost pieces."""
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(made.items())) or "none"
    ends = ", ".join(f"{count} {way}" for way, count in sorted(tally.ends.items())) or "none"
    lines = [f"faults: {faults}", f"work:   {ends}"]
    if tally.again:
        lines.append(f"again:  {tally.again} refusals for the moment (429, 503), sent again")
    if not tally.compared:
        lines.append("answers were not compared: two quiet runs gave different ones")
    for one in tally.failures[:5]:
        lines.append(f"  {one['way']}: {one['error'] or repr(one['found'])[:100]}")
    return [*lines, f"lost:   {tally.lost or 'nothing'}"]
