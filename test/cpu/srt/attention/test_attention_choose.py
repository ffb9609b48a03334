"""Choice of the attention implementation, and messages about one that cannot run."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.paged import Paged
from helpers.tiny_model import write_config
from sglang.srt.attention import backend_choice as module
from sglang.srt.attention import flashinfer_attention
from sglang.srt.attention.attention_protocol import KVShape
from sglang.srt.attention.backend_choice import candidates, choose
from sglang.srt.commands.doctor.machine_checks import device as examine
from sglang.srt.config import Config
from sglang.srt.config.sections import ATTENTION_BACKENDS
from sglang.srt.worker.model_worker import ModelWorker

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A machine with a GPU and everything installed; tests take away from it."""
    has: dict[str, object] = {
        "packages": {"flashinfer", "triton", "sgl_kernel"}, "nvcc": True, "capability": (9, 0),
        "fa3": False,
    }  # fmt: skip
    monkeypatch.setattr(flashinfer_attention, "fa3_compiled", lambda *_: has["fa3"])
    monkeypatch.setattr(module, "found", lambda package: package in has["packages"])  # type: ignore[operator]
    monkeypatch.setattr(module, "_compiler", lambda: has["nvcc"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: has["capability"])
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return has


def shape(
    dim: int, value_dim: int = 0, shared: bool = False, sinks: bool = False
) -> SimpleNamespace:
    kv = KVShape(1, dim, value_dim or dim, shared)
    return SimpleNamespace(num_heads=1, windows=(0,), kv=kv, sinks=sinks)


def test_a_gpu_gets_the_fastest_that_runs(machine: dict[str, object]) -> None:
    bf16, usual = torch.bfloat16, shape(128)
    assert choose("auto", GPU, usual, bf16).name == "flashinfer"
    assert choose("auto", GPU, usual, torch.float32).name == "triton"
    assert (
        "not flashinfer: the KV cache is torch.float32"
        in choose("auto", GPU, usual, torch.float32).reason
    )
    assert choose("auto", GPU, shape(80), bf16).name == "triton"
    assert choose("auto", GPU, shape(8), bf16).name == "native"
    machine["capability"] = (7, 5)
    assert choose("auto", GPU, usual, bf16).name == "triton"
    machine["capability"], machine["nvcc"] = (9, 0), False
    chosen = choose("auto", GPU, usual, bf16)
    assert (chosen.name, "no nvcc" in chosen.reason) == ("triton", True)
    machine["packages"] = {"flashinfer"}
    chosen = choose("auto", GPU, usual, bf16)
    assert chosen.name == "native"
    assert "not flashinfer" in chosen.reason
    assert "not triton: the package triton is not installed" in chosen.reason


def test_flash_attention_3_where_it_is_compiled_on_hopper(machine: dict[str, object]) -> None:
    bf16, usual = torch.bfloat16, shape(128)
    chosen = choose("auto", GPU, usual, bf16)
    assert chosen.name == "flashinfer"
    assert "not flashinfer-fa3: its kernels are not compiled yet" in chosen.reason
    assert choose("flashinfer-fa3", GPU, usual, bf16).reason == "asked for"
    machine["fa3"] = True
    assert choose("auto", GPU, usual, bf16).name == "flashinfer-fa3"
    names = [choice.name for choice in candidates("auto", GPU, usual, bf16)]
    assert names == ["flashinfer-fa3", "flashinfer", "triton", "native"]
    assert [c.name for c in candidates("triton", GPU, usual, bf16)] == ["triton"]
    assert choose("auto", GPU).name == "flashinfer", "no model is known"
    machine["capability"] = (10, 0)
    assert choose("auto", GPU, usual, bf16).name == "flashinfer"
    with pytest.raises(ValueError, match=r"flashinfer-fa3 cannot run: .* 10\.0, it must be 9\.0"):
        choose("flashinfer-fa3", GPU, usual, bf16)


@pytest.mark.parametrize(
    ("asked", "capability", "capped", "want"),
    [
        ("auto", (9, 0), False, True), ("auto", (9, 0), True, False),
        ("flashinfer-fa3", (9, 0), True, True), ("flashinfer", (9, 0), False, False),
        ("auto", (8, 0), False, False), ("auto", (10, 0), False, False),
    ],
)  # fmt: skip
def test_flash_attention_3_is_prebuilt_if_a_server_would_use_it(
    asked: str, capability: tuple[int, int], capped: bool, want: bool, machine: dict[str, object]
) -> None:
    machine["capability"] = capability
    assert module.takes_fa3(asked, GPU, shape(128), torch.bfloat16, capped) == want


@pytest.mark.parametrize(
    ("name", "packages", "device", "message"),
    [
        ("triton", {"triton"}, GPU, r"sgl-kernel is not installed; pip install ./sgl-kernel"),
        ("triton", {"triton", "sgl_kernel"}, CPU, r"the device is cpu; use native, or --device"),
        ("triton", {"sgl_kernel"}, GPU, r"triton is not installed; pip install -e '.\[gpu\]'"),
        (
            "flashinfer",
            set(),
            GPU,
            r"flashinfer is not installed; pip install -e '.\[flashinfer\]'",
        ),
        ("flashinfer", {"flashinfer"}, CPU, r"the device is cpu; use native"),
    ],
)
def test_what_cannot_run_is_refused_with_the_way_out(
    name: str, packages: set[str], device: torch.device, message: str, machine: dict[str, object]
) -> None:
    machine["packages"] = packages
    with pytest.raises(ValueError, match=f"--attention-backend {name} cannot run: .*{message}"):
        choose(name, device)


def test_latents_and_sinks_go_where_kernels_know_them(machine: dict[str, object]) -> None:
    bf16 = torch.bfloat16
    chosen = choose("auto", GPU, shape(64, sinks=True), bf16)
    assert (chosen.name, "know no attention sinks" in chosen.reason) == ("triton", True)
    latent = shape(576, 512, shared=True)
    assert choose("auto", GPU, latent, bf16).name == "native"
    for name in ("flashinfer", "triton"):
        with pytest.raises(ValueError, match="one size, not of 576 and 512 dimensions; use native"):
            choose(name, GPU, latent, bf16)
    with pytest.raises(ValueError, match="values of 64 dimensions are no part of keys of 64"):
        shape(64, 64, shared=True)


def test_a_cpu_gets_native(machine: dict[str, object]) -> None:
    assert choose("auto", CPU).name == "native"
    assert choose("native", CPU).reason == "asked for"
    assert set(ATTENTION_BACKENDS) == {"auto", *module.PREFERRED}


def test_the_worker_logs_its_kernels_and_refuses_before_it_loads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_config(tmp_path)
    with caplog.at_level(logging.INFO):
        Paged(path, 1, 0, load_format="dummy", cpu_kernels="torch")
    assert "attention: native (the device is cpu)" in caplog.text
    config = Config.of(model_path=path, device="cpu", attention_backend="flashinfer")
    with pytest.raises(ValueError, match="flashinfer cannot run"):
        ModelWorker(config)


def test_doctor_shows_the_choice() -> None:
    found = {f.check: f for f in examine(Config.of(device="cpu"))}["attention"]
    assert (found.state, found.found) == ("ok", "native (the device is cpu)")
    lacks = {f.check: f for f in examine(Config.of(device="cpu", attention_backend="flashinfer"))}
    assert lacks["attention"].state == "fail"
    assert "cannot run: the device is cpu" in lacks["attention"].found
    assert "--device cuda" in lacks["attention"].fix
