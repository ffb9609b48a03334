"""FlashInfer in the GPU benchmark, over its stand-in, which checks how it is called."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import fake_flashinfer
from sglang.srt.attention import flashinfer_attention

from benchmark.gpu import attention, checks, prebuild
from benchmark.gpu.bench import Bench
from benchmark.gpu.records import Log, read, rows

CPU = torch.device("cpu")


def make(folder: Path, tiny: bool = True) -> Bench:
    return Bench(CPU, torch.float32, tiny, Log(folder, "stage"), time.monotonic() + 100)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    for name in ("WORKSPACE", "SCHEDULE"):
        monkeypatch.setattr(flashinfer_attention, name, 1 << 10, raising=False)
    for module in (attention, prebuild):
        monkeypatch.setattr(module, "choose", lambda *arguments: None)


@pytest.mark.usefixtures("stand_in")
def test_every_case_is_computed_as_by_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "BACKENDS", ("flashinfer", "native"))
    bench = make(tmp_path)
    attention.attention(bench)
    found = rows(read(tmp_path, "stage"), "attention")
    assert [row["case"] for row in found] == [case.name for case in attention.TINY]
    for row, case in zip(found, attention.TINY):
        # A real one is refused for float8 before it is made.
        assert ("flashinfer error" in row) != case.float8
        errors = [value for name, value in row.items() if name.endswith(" error")]
        assert all(isinstance(value, float) and value < 1e-5 for value in errors)


@pytest.mark.usefixtures("stand_in")
def test_a_first_use_takes_every_kind_of_kernel() -> None:
    fake_flashinfer.calls.clear()
    prebuild.prebuild(16, CPU, torch.float32)
    assert set(fake_flashinfer.calls) >= {"decode", "prefill", "level", "merge"}


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_cannot_be_compiled_is_reported(tmp_path: Path) -> None:
    bench = make(tmp_path, tiny=False)
    with checks.prebuilding(bench) as built:
        built(100.0)
    (row,) = rows(read(tmp_path, "stage"), "prebuild")
    assert row["outcome"] == "exit status 0"
    assert "--attention-backend flashinfer cannot run" in str(row["last"])
