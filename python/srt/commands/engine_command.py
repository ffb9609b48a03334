"""``sglang engine``: an engine that servers on this or other machines use."""

from __future__ import annotations

import argparse
import math
import os
import sys
from functools import partial

from sglang.srt.config import Config, add_arguments, add_model_argument, from_arguments
from sglang.srt.system import logs
from sglang.srt.system.processes import when_orphaned

SECTIONS = (
    "model", "parallel", "memory", "schedule", "grammar", "speculation", "lora", "media",
)  # fmt: skip
ADDRESS = "tcp://127.0.0.1:30100"


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_argument(parser)
    group = parser.add_argument_group("fronts", "Servers that use this engine.")
    group.add_argument(
        "--listen", default=ADDRESS, metavar="ADDRESS",
        help=f"tcp://HOST:PORT; 0.0.0.0 is every address of this machine (default: {ADDRESS})",
    )  # fmt: skip
    group.add_argument(
        "--curve-keys", default="", metavar="FILE",
        help="engine.key of 'sglang engine-keys'; required where other machines reach the address",
    )  # fmt: skip
    group.add_argument(
        "--heartbeat-timeout", type=float, default=5.0, metavar="SECONDS",
        help="time without a message of a server after which its contexts are closed (default: 5)",
    )  # fmt: skip
    group.add_argument(
        "--max-fronts", type=int, default=16, metavar="FRONTS",
        help="servers that use the engine at once (default: 16)",
    )  # fmt: skip
    group.add_argument(
        "--max-contexts-per-front", type=int, default=65536, metavar="CONTEXTS",
        help="contexts of one server at once (default: 65536)",
    )  # fmt: skip
    group.add_argument(
        "--exit-with-parent", type=int, default=0, metavar="PID",
        help="end when the process of this id is no longer the parent; 0: never",
    )  # fmt: skip
    placing = parser.add_argument_group("launcher", "Engines on the machines of a cluster.")
    placing.add_argument("--launcher", default="here", choices=("here", "ray"),
                         help="ray: start engines on a Ray cluster (default: here)")  # fmt: skip
    placing.add_argument(
        "--address", default="auto",
        help="address of the Ray cluster; auto: the one of this machine (default: auto)",
    )  # fmt: skip
    placing.add_argument("--count", type=int, default=1, help="engines on the cluster (default: 1)")
    placing.add_argument(
        "--cpus-per-rank", type=float, default=0.0, metavar="CPUS",
        help="CPUs that Ray reserves for each rank of an engine; 0: --threads, or 1 (default: 0)",
    )  # fmt: skip
    group.add_argument("--log-level", default="info", help="least severe messages logged",
                       choices=("debug", "info", "warning", "error", "critical"))  # fmt: skip
    group.add_argument("--log-format", default="text", help="json: one object a line",
                       choices=("text", "json"))  # fmt: skip
    add_arguments(parser, SECTIONS)


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Serve fronts until a signal; the exit code."""
    logs.configure(arguments.log_level, arguments.log_format)
    try:
        verify(arguments)
        config = from_arguments(arguments)
        if config.parallel.node_rank:
            raise ValueError(
                f"--node-rank is {config.parallel.node_rank}; 'sglang engine' is node 0: start the "
                "other machines with 'sglang serve --node-rank'"
            )
        from sglang.srt.remote.curve_keys import read_engine_keys, verify_address

        keys = read_engine_keys(arguments.curve_keys) if arguments.curve_keys else None
        if arguments.launcher == "here":
            verify_address(arguments.listen, "--listen", keys)
        elif keys is None:
            raise ValueError(
                "--launcher ray starts engines that other machines reach; make keys with "
                "'sglang engine-keys DIR' and give --curve-keys FILE"
            )
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if arguments.launcher == "ray":
        return _run_on_ray(config, arguments)
    if arguments.exit_with_parent:
        when_orphaned(arguments.exit_with_parent, partial(os._exit, 1))
    from sglang.srt.remote.engine_server import Listening, serve_engine
    from sglang.srt.remote.fronts import FrontLimits

    limits = FrontLimits(arguments.max_fronts, arguments.max_contexts_per_front)
    listening = Listening(arguments.listen, keys, arguments.heartbeat_timeout, limits)
    try:
        return serve_engine(config, listening)
    except (OSError, ValueError, ArithmeticError, MemoryError, RuntimeError) as error:
        print(f"sglang: {error}", file=sys.stderr)
        return 1


def _run_on_ray(config: Config, arguments: argparse.Namespace) -> int:
    from sglang.srt.launchers.engines_on_ray import ClusterPlan, run_on_ray

    names = "heartbeat_timeout", "max_fronts", "max_contexts_per_front", "log_level", "log_format"
    more = [f"--{name.replace('_', '-')}={getattr(arguments, name)}" for name in names]
    cpus = arguments.cpus_per_rank or max(config.model.threads, 1)
    plan = ClusterPlan(arguments.address, arguments.count, arguments.curve_keys, cpus, more)
    return run_on_ray(config, plan)


def verify(arguments: argparse.Namespace) -> None:
    """Raise ValueError, naming the flag, its value and its limit."""
    seconds = arguments.heartbeat_timeout
    if not 0.1 <= seconds <= 3600 or math.isnan(seconds):
        raise ValueError(f"--heartbeat-timeout is {seconds:g}; it must be from 0.1 to 3600")
    if not 0 <= arguments.cpus_per_rank <= 4096:
        raise ValueError(
            f"--cpus-per-rank is {arguments.cpus_per_rank:g}; it must be from 0 to 4096"
        )
    bounds = (("max_fronts", 1024), ("max_contexts_per_front", 1 << 24), ("count", 1024))
    for name, most in bounds:
        value = getattr(arguments, name)
        if not 1 <= value <= most:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} is {value}; it must be from 1 to {most}")
