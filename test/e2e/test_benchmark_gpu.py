"""benchmark.gpu at toy sizes on the CPU: every stage's code runs, and says what it left out."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.paths import ROOT


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "benchmark.gpu", *arguments],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip


def test_every_stage_runs(tmp_path: Path) -> None:
    done = run("--tiny", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    stages = json.loads((tmp_path / "gpu.json").read_text())
    assert list(stages) == ["environment", "ceilings", "checks", "kernels", "engine"]
    assert [row["ceiling"] for row in stages["ceilings"]["rows"]] == ["copy", "product float32"]
    (checked,) = stages["checks"]["rows"]
    assert (checked["passed"] > 0, checked["failed"]) == (True, 0)
    kernels = stages["kernels"]
    assert len(kernels["rows"]) == 3
    for row in kernels["rows"]:
        errors = {name: value for name, value in row.items() if name.endswith(" error")}
        assert "native error" in errors
        assert all(value < 1e-5 for value in errors.values())
        assert row["dense us"] > 0
    assert any("flashinfer cannot run" in remark for remark in kernels["remarks"])
    rows = stages["engine"]["rows"]
    assert [row["pass"] for row in rows] == ["decode 1", "decode 3", "prefill"]
    assert rows[0]["goal"] == "75%"
    has_triton = all(importlib.util.find_spec(name) for name in ("triton", "sgl_kernel"))
    for row in rows[:2]:
        assert row["eager ms"] > 0
        assert ("graph ms" in row, "overlap ms" in row) == (has_triton, has_triton)
    assert done.stdout.rstrip().splitlines()[-1].startswith(("prefill", "toy", "no graphs"))


def test_stages_and_time_can_be_chosen(tmp_path: Path) -> None:
    done = run("--tiny", "--stages", "kernels", "--minutes", "0", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    stages = json.loads((tmp_path / "gpu.json").read_text())
    assert list(stages) == ["ceilings", "kernels"], "bounds need the ceilings"
    assert stages["kernels"]["rows"] == []
    assert any("left out for time" in remark for remark in stages["kernels"]["remarks"])
    unknown = run("--tiny", "--stages", "warp")
    assert unknown.returncode == 2
    assert "there are environment, ceilings" in unknown.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    done = run()
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert "--tiny" in done.stderr
