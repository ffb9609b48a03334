"""The trial of the fused kernels of layers. Their definitions in torch stand for the kernels, whose
arithmetic on a CPU takes Triton's interpreter (test/gpu)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny_model import write_config

if find_spec("triton") is None:
    pytest.skip("needs triton, which has no build for this system", allow_module_level=True)

from sgl_kernel.triton import append, moe, norm, reference
from sglang.srt.config import Config
from sglang.srt.config.sections import LAYER_KERNELS
from sglang.srt.core.device_errors import DeviceLost
from sglang.srt.layers.kernel_trial import KernelTrial, TrialSizes
from sglang.srt.worker import model_loading
from sglang.srt.worker.fallbacks import Fallbacks
from torch import Tensor

SIZES = TrialSizes(64, 96, 4, 2, 16, partial=0.5, expert=32, act="silu")
TRIED = (*LAYER_KERNELS, "moe")
KERNELS = {
    "rotate_append": (append, "rotate_append"), "add_rms_norm": (norm, "add_rms_norm"),
    "gate": (norm, "gate"), "moe": (moe, "fused_moe"),
}  # fmt: skip


def add_rms_norm(
    x: Tensor, more: Tensor, weight: Tensor, eps: float, inner: Tensor | None = None
) -> Tensor:
    more.copy_(x + (more if inner is None else reference.rms_norm(more, inner, eps)))
    return reference.rms_norm(more, weight, eps)


@pytest.fixture(autouse=True)
def defined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "rotate_append", reference.rotate_append)
    monkeypatch.setattr(norm, "rms_norm", reference.rms_norm)
    monkeypatch.setattr(norm, "add_rms_norm", add_rms_norm)
    monkeypatch.setattr(norm, "gate", reference.gate)
    monkeypatch.setattr(moe, "fused_moe", reference.fused_moe)
    monkeypatch.setattr(model_loading, "triton_lacks", lambda device: "")


def failures(dtype: torch.dtype) -> dict[str, str]:
    trial = KernelTrial(SIZES, torch.device("cpu"), dtype)
    return {name: str(error) for name, error in trial.failures(TRIED)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_right_kernels_pass(dtype: torch.dtype) -> None:
    assert failures(dtype) == {}


@pytest.mark.parametrize("name", TRIED)
def test_a_wrong_kernel_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, function = KERNELS[name]
    right = getattr(module, function)
    monkeypatch.setattr(module, function, lambda *a, **k: right(*a, **k) * 1.05)
    found = failures(torch.float32)
    assert list(found) == [name]
    assert "differ from torch's by 5.0% of their norm; 2% are allowed" in found[name]


def test_keys_that_are_not_written_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(*arguments: Any, **options: Any) -> Tensor:
        copied = [x.clone() if isinstance(x, Tensor) else x for x in arguments]
        return reference.rotate_append(*copied, **options)

    monkeypatch.setattr(append, "rotate_append", forgetful)
    assert list(failures(torch.float32)) == ["rotate_append"]


def tried(path: Path, failed: Fallbacks, disabled: tuple[str, ...] = ()) -> tuple[str, ...]:
    config = Config.of(
        model_path=write_config(path), load_format="dummy", device="cpu", cpu_kernels="torch"
    )
    return model_loading.tried_kernels(model_loading.plan_of(config), disabled, failed)


def test_a_kernel_that_does_not_compile_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> None:
        raise TypeError("out of shared memory\nmore")

    monkeypatch.setattr(norm, "gate", broken)
    failed = Fallbacks()
    assert tried(tmp_path, failed, ("sampling",)) == ("sampling", "gate")
    assert failed.lines == [
        "the fused kernel gate failed (TypeError: out of shared memory); torch's operations are "
        "used"
    ]
    assert tried(tmp_path, failed, ("gate",)) == ("gate",)
    assert len(failed.lines) == 1


def test_a_device_lost_in_a_trial_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*arguments: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(norm, "gate", lost)
    with pytest.raises(DeviceLost, match="the fused kernel gate failed, and the GPU with it"):
        tried(tmp_path, Fallbacks())
