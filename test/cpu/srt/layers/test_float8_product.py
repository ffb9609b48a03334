"""Products in float8: by torch against the definition, the choice, and the check before use."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sglang.srt.layers import float8_product as module
from sglang.srt.layers.float8_product import (
    Float8Matrix,
    by_torch,
    check,
    choose_product,
    dense,
    quantised,
    reference,
)
from sglang.srt.layers.quantised import Float8
from torch import Tensor

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
BF16 = torch.bfloat16


def definition(x: Tensor, weight: Float8) -> Tensor:
    """The product in float64, element by element from the groups' scales."""
    q, group = quantised(x, weight.group), weight.group

    def dense(m: Float8) -> Tensor:
        out = m.values.float().double()
        for j in range(out.shape[1]):
            out[:, j] *= m.scales[:, j // group].double()
        return out

    return dense(q) @ dense(weight).t()


@pytest.mark.parametrize("group", [32, 48, 96, 128])
def test_the_reference_is_the_definition(group: int) -> None:
    torch.manual_seed(group)
    x, weight = torch.randn(7, 96) * 30, quantised(torch.randn(16, 96), group)
    torch.testing.assert_close(
        reference(x, weight).double(), definition(x, weight), rtol=1e-5, atol=1e-4
    )
    exact = x.double() @ dense(weight).double().t()
    error = (reference(x, weight).double() - exact).norm() / exact.norm()
    assert error < 0.04, "what quantising the activations costs"


def test_quantised_values_fill_the_range() -> None:
    x = torch.tensor([[0.0] * 4, [1e-30, 0, 0, 0], [3.0, -6.0, 1.0, 0.5]])
    q = quantised(x, 4)
    assert q.values.float()[2].tolist() == [224.0, -448.0, 72.0, 36.0]
    assert torch.equal(dense(q)[0], x[0])
    assert dense(q).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("bias", [False, True])
def test_torchs_product_is_the_reference(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(1)
    weight = quantised(torch.randn(48, 64) * torch.rand(48, 1), 64)
    x, b = torch.randn(9, 64).to(dtype), torch.randn(48).to(dtype) if bias else None
    got = Float8Matrix(weight, by_torch).product(x, b)
    want = reference(x, weight) + (0 if b is None else b.float())
    assert got.dtype == dtype
    torch.testing.assert_close(got.float(), want, rtol=1e-2, atol=1e-2 if dtype == BF16 else 1e-4)


def test_the_check_passes_what_is_right_and_refuses_what_is_not() -> None:
    for dtype in (torch.float32, BF16):
        check(by_torch, True, CPU, dtype)
        check(lambda x, w: reference(x, w).to(x.dtype), False, CPU, dtype)
    wrong = {
        "scales": lambda x, w: reference(x, replace(w, scales=w.scales.flip(0))),
        "size": lambda x, w: reference(x, w) * 1.02,
        "nan": lambda x, w: reference(x, w) * float("nan"),
        "many": lambda x, w: reference(x, w) * (1.0 if len(x) < 100 else 1.1),
        "activations": lambda x, w: x.float() @ dense(w).t(),
    }
    for multiply in wrong.values():
        for rowwise in (True, False):
            with pytest.raises(ValueError, match=r"differ from the reference by .*; 1% is allowed"):
                check(multiply, rowwise, CPU, torch.float32)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    has: dict[str, object] = {"capability": (9, 0), "packages": {"triton", "sgl_kernel"}}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: has["capability"])
    monkeypatch.setattr(module, "find_spec", lambda name: name if name in has["packages"] else None)  # type: ignore[operator]
    return has


def test_the_choice_goes_by_the_device_and_the_scales(machine: dict[str, object]) -> None:
    def auto(dtype: torch.dtype = BF16) -> list[str]:
        return [choose_product("auto", GPU, dtype, rowwise)[0] for rowwise in (True, False)]

    assert auto() == ["torch", "triton"]
    assert auto(torch.float16) == ["triton", "triton"]
    machine["capability"] = (8, 9)
    assert auto() == ["triton", "triton"]
    machine["capability"] = (8, 0)
    assert auto() == ["", ""]
    assert "8.0, 9.0 is needed" in choose_product("auto", GPU, BF16, True)[1]
    machine["capability"], machine["packages"] = (9, 0), set()
    assert auto() == ["", ""]
    assert choose_product("auto", CPU, BF16, True) == ("", "the device is cpu")
    assert choose_product("none", GPU, BF16, True)[0] == ""
    assert choose_product("torch", CPU, BF16, True)[0] == "torch"


@pytest.mark.parametrize(
    ("name", "device", "rowwise", "message"),
    [("torch", CPU, False, "scales of groups of inputs need triton"),
     ("triton", CPU, True, "the device is cpu"),
     ("torch", GPU, True, r"compute capability is 8\.9, 9\.0 is needed")],
)  # fmt: skip
def test_what_cannot_run_is_refused_by_name(
    name: str, device: torch.device, rowwise: bool, message: str, machine: dict[str, object]
) -> None:
    machine["capability"] = (8, 9)
    with pytest.raises(ValueError, match=f"--fp8-gemm-backend {name} cannot run: .*{message}"):
        choose_product(name, device, BF16, rowwise)
