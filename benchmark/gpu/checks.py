"""Checks: the tests of test/gpu, kernels and backends in bfloat16 against float64."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from benchmark.gpu.bench import Bench

ROOT = Path(__file__).resolve().parents[2]


def checks(bench: Bench) -> bool:
    """Whether nothing failed in the time there was."""
    table = bench.table("checks")
    command = [sys.executable, "-m", "pytest", "-rf", "-p", "no:cacheprovider", "test/gpu"]
    environment = dict(os.environ)
    if bench.tiny:
        environment["SGLANG_TEST_DEVICE"] = "cpu"
        command += ["-k", "native and test_long_rows"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=bench.left
        )
    except subprocess.TimeoutExpired as error:
        raw = error.stdout or b""
        shown = raw.decode() if isinstance(raw, bytes) else raw
        table.rows.append({"passed": shown.count("."), "failed": shown.count("F")})
        table.remarks.append("not ended: the stage's time was up")
        return "F" not in shown
    counts = {
        name: int(n) for n, name in re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout)
    }
    table.rows.append({name: counts.get(name, 0) for name in ("passed", "failed", "skipped")})
    table.remarks += [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    if done.returncode and not counts.get("failed"):
        table.remarks.append((done.stdout + done.stderr)[-600:])
    return done.returncode == 0
