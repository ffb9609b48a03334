"""Runs engines on a Ray cluster until a signal: the main function of ``sglang engine --launcher
ray``."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sglang.srt.config import Config
from sglang.srt.launchers.placement import EngineResources
from sglang.srt.launchers.ray_launcher import PlacementError, RayLauncher

log = logging.getLogger("sglang.srt.launchers")
LOOK_SECONDS = 0.5


class ClusterPlan(NamedTuple):
    """Engines to start on a cluster.

    Attributes:
        address: address of the cluster.
        engines: number of engines.
        keys: path of the engines' key file.
        cpus: CPUs of each rank.
        more: further flags of each engine.
    """

    address: str
    engines: int
    keys: str
    cpus: float
    more: Sequence[str]


def flags_of(config: Config) -> list[str]:
    """Return the flags of ``sglang engine`` that give these settings."""
    defaults, found = Config().settings(), list[str]()
    for name, value in config.settings().items():
        flag = "--" + name.replace("_", "-")
        if value == defaults[name]:
            continue
        if isinstance(value, bool):
            found.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, tuple):
            found += [flag, *value]
        else:
            found.append(f"{flag}={value}")
    return found


def run_on_ray(config: Config, plan: ClusterPlan) -> int:
    """Start the engines, print their addresses to standard output, one a line, and report lost
    engines until a signal. Return the exit code: 1 if no engine could be started, or none is left.
    """
    gpus = 1.0 if config.model.device.startswith("cuda") else 0.0
    resources = EngineResources(config.parallel.ranks, plan.cpus, gpus)
    keys = Path(plan.keys).expanduser().read_bytes()
    launcher, ending = None, threading.Event()
    try:
        flags = [*flags_of(config), *plan.more]
        launcher = RayLauncher(plan.address, flags, keys, resources)
        for number in (signal.SIGTERM, signal.SIGINT):  # in place of Ray's own handlers
            signal.signal(number, lambda *_: ending.set())
        for engine in launcher.start(plan.engines):
            print(f"sglang engine {engine.number} at {engine.address}", flush=True)
        while launcher.engines and not ending.is_set():
            for engine, reason in launcher.lost(LOOK_SECONDS):
                log.error("engine %d at %s is lost: %s", engine.number, engine.address, reason)
    except PlacementError as error:
        print(f"sglang: {error}", file=sys.stderr)
        return 1
    finally:
        if launcher is not None:
            launcher.stop()
    if not ending.is_set():
        print("sglang: no engine is left on the cluster", file=sys.stderr)
    return 0 if ending.is_set() else 1
