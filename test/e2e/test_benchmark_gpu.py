"""benchmark.gpu at toy sizes on the CPU: every stage's code runs, and says what it left out."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.paths import ROOT, TESTS

from benchmark.gpu.__main__ import main


def run(*arguments: str, module: str = "benchmark.gpu") -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    paths = filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT, env={**environment, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True,
    )  # fmt: skip


HAS_TRITON = all(importlib.util.find_spec(name) for name in ("triton", "sgl_kernel"))


@pytest.mark.timeout(1800)  # Triton's interpreter on a busy machine
def test_every_stage_runs(tmp_path: Path) -> None:
    options = ("--tiny", "--minutes", "60", "--out", str(tmp_path))
    done = run(*options, module="helpers.gpu_stages")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    data = json.loads((tmp_path / "report.json").read_text())
    for stage, found in data.items():
        assert [a["status"] for a in found["attempts"]] == ["good"], (stage, found["remarks"])
    tables = {stage: found["tables"] for stage, found in data.items()}
    assert list(tables) == ["environment", "ceilings", "checks", "attention", "products", "layers",
                            "sampling", "experts", "passes", "profile", "load"]  # fmt: skip
    names = [row["ceiling"] for row in tables["ceilings"]["ceilings"]]
    assert names[:3] == ["copy", "read", "product"]
    (checked,) = tables["checks"]["checks"]
    assert (checked["passed"] > 0, checked["failed"]) == (True, 0)
    check_kernels(tables, data["attention"]["remarks"])
    check_passes(tables["passes"])
    ways = tables["load"]["texts in float32"]
    assert [row["texts as the first way's"] for row in ways] == ["6 of 6"] * 3
    page = (tmp_path / "report.md").read_text()
    assert page in done.stdout
    assert "(products.svg)" in page
    assert "| passes | graph | good |" in page


def check_kernels(tables: dict[str, Any], remarks: list[str]) -> None:
    attention = tables["attention"]["attention"]
    assert len(attention) == 6
    for row in attention:
        errors = {name: value for name, value in row.items() if name.endswith(" error")}
        assert "native error" in errors
        assert all(value < 1e-5 for value in errors.values())
    assert sum("dense us" in row for row in attention) == 3
    assert any("flashinfer cannot run" in remark for remark in remarks)
    products = tables["products"]["products"]
    assert {row["product"] for row in products} == {"qkv", "out", "gate_up", "down", "head"}
    assert all(row["us"] > 0 and row["bound us"] > 0 for row in products)
    if HAS_TRITON:
        assert len(tables["layers"]["layers"]) == 3
        assert len(tables["sampling"]["sampling"]) == 4
        route, fused = (row["kernel"] for row in tables["experts"]["experts"])
        assert (route, fused[1:]) == ("route", " experts")


def check_passes(tables: dict[str, Any]) -> None:
    rows = [row for row in tables["passes"] if row["model"] == "toy"]
    names = ["decode 1", "decode 3", "decode 2 x 20", "decode 1 x 30 + 2", "prefill",
             "prefill of 4", "mixed 2 + 4"]  # fmt: skip
    assert [row["pass"] for row in rows] == names
    assert [row["pass"] for row in tables["passes"] if row["model"] == "toy MoE"] == names
    assert (rows[0]["goal"], rows[0]["reached"][-1]) == ("75%", "%")
    for row in rows[:4]:
        assert min(row["eager ms"], row["overlap ms"], row["sampled ms"], row["launch ms"]) > 0
        assert ("graph ms" in row) == HAS_TRITON
    outcomes = {row["outcome"] for row in tables["waits"]}
    assert outcomes == {"not checked without a GPU"}
    assert {row["model"] for row in tables["compiled after start"]} == {"toy", "toy MoE"}


def test_stages_can_be_chosen_and_unknown_ones_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each chosen stage in a process of its own."""
    done = run("--tiny", "--stages", "products", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr[-2000:]
    assert list(json.loads((tmp_path / "report.json").read_text())) == ["ceilings", "products"]
    for arguments, complaint in (
        (["--stages", "warp"], "there are environment, ceilings"),
        (["--minutes", "0"], "--minutes is 0; it must be above 0"),
    ):
        with pytest.raises(SystemExit, match=r"^2$"):
            main(["--tiny", *arguments])
        assert complaint in capsys.readouterr().err
    assert main(["--tiny", "--attention-backend", "warp"]) == 2
    assert "one of auto, native" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr().err
    assert "no CUDA device" in said
    assert "--tiny" in said
