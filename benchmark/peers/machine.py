"""Machine: what a figure belongs to."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from typing import Any

from benchmark.peers.child import ROOT
from benchmark.serving.report import environment

_WANTED = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8")


def machine() -> dict[str, Any]:
    """Processor, its instructions that matter here, memory, load, releases, commit."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        **environment(),
        "instructions": _instructions(),
        "memory_gib": round(pages * size / 2**30, 1),
        "system": platform.platform(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "commit": _commit(),
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _instructions() -> list[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            flags = next((line.split() for line in file if line.startswith("flags")), [])
    except OSError:
        return []
    return [name for name in _WANTED if name in flags]


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
