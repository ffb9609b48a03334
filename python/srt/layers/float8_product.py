"""Products in float8 (e4m3; Micikevicius et al. 2022) with weights as they were published.

    torch     torch._scaled_mm, for weights with one scale a row
    triton    sgl_kernel.triton.scaled, for these and for groups of inputs (blocks of 128 x 128)

Activations are quantised as they come, one scale for each token, or for each token's group of
inputs. A product is held to ``reference`` before it is used (``check``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TypeAlias

from sglang.srt.layers.quantised import Float8
from sglang.srt.numeric.torch_later import Tensor, torch

MOST = 448.0  # the largest float8 (e4m3)
# The error's norm, as a share of the output's: both quantise alike and sum in float32, so what is
# left is the rounding of the result, and of float8 where a value lies between two of them.
TOLERANCE = 0.01


@dataclass(frozen=True)
class Float8Matrix:
    """A weight [outputs, inputs] on its device, and what multiplies with it."""

    weight: Float8
    multiply: Multiply

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """``x W^T + bias``: [T, inputs] -> [T, outputs], in x's dtype."""
        y = self.multiply(x.contiguous(), self.weight)
        return y if bias is None else y + bias


Multiply: TypeAlias = Callable[[Tensor, Float8], Tensor]


def quantised(x: Tensor, group: int) -> Float8:
    """x [T, inputs] in float8; the largest value of each group becomes 448."""
    tokens, inputs = x.shape
    parts = torch.nn.functional.pad(x.float(), (0, -inputs % group)).view(tokens, -1, group)
    scales = parts.abs().amax(2).clamp(min=1e-12) / MOST
    values = (x.float() / _spread(scales, group, inputs)).clamp(-MOST, MOST)
    return Float8(values.to(torch.float8_e4m3fn), scales, group)


def dense(weight: Float8) -> Tensor:
    """A matrix of tensors in float32."""
    scales = _spread(weight.scales, weight.group, weight.values.shape[1])
    found: Tensor = weight.values.float() * scales
    return found


def _spread(scales: Tensor, group: int, k: int) -> Tensor:
    """``quantised.spread`` of tensors."""
    return scales if scales.shape[1] == 1 else scales.repeat_interleave(group, dim=1)[:, :k]


def reference(x: Tensor, weight: Float8) -> Tensor:
    """The product in float32, of x quantised."""
    return dense(quantised(x, weight.group)) @ dense(weight).t()


def by_torch(x: Tensor, weight: Float8) -> Tensor:
    """``torch._scaled_mm``, whose result on a GPU is bfloat16."""
    transposed = weight.values.t()
    if not x.is_cuda:  # torch 2.11 has scales of rows on a GPU alone
        q, one = quantised(x, weight.group), torch.ones(())
        y = torch._scaled_mm(
            q.values, transposed, scale_a=one, scale_b=one, out_dtype=torch.float32
        )
        found: Tensor = (y * q.scales * weight.scales.t()).to(x.dtype)
        return found
    from sgl_kernel.triton import scaled

    values, scales = scaled.quantise(x, weight.group)
    return torch._scaled_mm(
        values, transposed, scale_a=scales, scale_b=weight.scales.t(), out_dtype=x.dtype
    )


def by_triton(x: Tensor, weight: Float8) -> Tensor:
    from sgl_kernel.triton import scaled

    values, scales = scaled.quantise(x, weight.group)
    out: Tensor = scaled.product(
        values, scales, weight.values, weight.scales, weight.group, x.dtype
    )
    return out


PRODUCTS: Mapping[str, Multiply] = {"torch": by_torch, "triton": by_triton}


def choose_product(
    asked: str, device: torch.device, dtype: torch.dtype, rowwise: bool
) -> tuple[str, str]:
    """A name of ``PRODUCTS``, or "" where weights become ``dtype``; and the reason.

    ``rowwise``: rows have one scale, else groups of their inputs. Raises ValueError where what is
    ``asked`` by name cannot run.
    """
    if asked == "none":
        return "", "asked for"
    if asked != "auto":
        if lacks := _lacks(asked, device, dtype, rowwise):
            raise ValueError(f"--fp8-gemm-backend {asked} cannot run: {lacks}; use auto or none.")
        return asked, "asked for"
    if device.type != "cuda":
        return "", f"the device is {device.type}"
    passed: list[str] = []
    for name in PRODUCTS:
        lacks = _lacks(name, device, dtype, rowwise)
        if not lacks:
            return name, "; ".join(passed) or "the fastest there is"
        passed.append(f"not {name}: {lacks}")
    return "", "; ".join(passed)


def _lacks(name: str, device: torch.device, dtype: torch.dtype, rowwise: bool) -> str:
    """Cause that keeps a product from running, "" where it can run."""
    if name == "torch" and not rowwise:
        return "scales of groups of inputs need triton"
    missing = [p for p in ("triton", "sgl_kernel") if find_spec(p) is None]
    if device.type == "cpu":
        return "" if name == "torch" else "the device is cpu"
    if missing:
        return f"the package {missing[0]} is not installed"
    if name == "torch" and dtype != torch.bfloat16:
        return f"its results are bfloat16, the model's dtype is {dtype}"
    needed = (9, 0) if name == "torch" else (8, 9)
    capability = torch.cuda.get_device_capability(device)
    if capability < needed:
        shown = [".".join(map(str, pair)) for pair in (capability, needed)]
        return f"the GPU's compute capability is {shown[0]}, {shown[1]} is needed"
    return ""


def check(multiply: Multiply, rowwise: bool, device: torch.device, dtype: torch.dtype) -> None:
    """Raise ValueError where a product differs from ``reference`` on one, a few or many tokens."""
    generator = torch.Generator().manual_seed(0)
    inputs, outputs = 256, 48
    group = inputs if rowwise else 128
    spreading = torch.rand(outputs, 1, generator=generator) + 0.1
    weight = quantised(torch.randn(outputs, inputs, generator=generator) * spreading, group)
    there = replace(weight, values=weight.values.to(device), scales=weight.scales.to(device))
    for tokens in (1, 17, 130):
        x = torch.randn(tokens, inputs, generator=generator).to(dtype)
        got, want = multiply(x.to(device), there).float().cpu(), reference(x, weight)
        error = float((got - want).norm() / want.norm())
        if not error <= TOLERANCE:  # NaN fails too
            raise ValueError(
                f"its products of {tokens} tokens differ from the reference by {error:.1%} of "
                f"their norm; {TOLERANCE:.0%} is allowed"
            )
