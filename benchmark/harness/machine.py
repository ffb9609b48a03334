"""Machine: what a figure belongs to."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmark.peers.child import ROOT

_WANTED = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")


def environment() -> dict[str, str | int]:
    """Processor, cores that this process may use, and releases."""
    out: dict[str, str | int] = {
        "machine": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "python": platform.python_version(),
    }
    for package in ("sglang", "torch", "transformers"):
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            continue
    return out


def machine() -> dict[str, Any]:
    """``environment``, the instructions that matter here, memory, load, commit, time."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    flags = _cpuinfo("flags").split()
    return {
        **environment(),
        "instructions": [name for name in _WANTED if name in flags],
        "memory_gib": round(pages * size / 2**30, 1),
        "system": platform.platform(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "commit": _commit(),
        "time": now(),
    }


def heading() -> str:
    """``environment`` in one line, above a table."""
    return " ".join(f"{name}={value}" for name, value in environment().items())


def about(options: argparse.Namespace) -> dict[str, Any]:
    """Fields of a record besides its figures: time, options, environment."""
    return {"time": now(), "options": vars(options), "environment": environment()}


def now() -> str:
    """Time in UTC, as ISO 8601 in whole seconds."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _cpuinfo(field: str) -> str:
    """A field of the first processor; "" where the system has no ``/proc/cpuinfo``."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.partition(":")[2].strip() for line in file
                         if line.startswith(field)), "")  # fmt: skip
    except OSError:
        return ""


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
