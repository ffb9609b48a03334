"""Products in float8 (e4m3; Micikevicius et al. 2022) with float8 weights of checkpoints.

    torch     torch._scaled_mm, for weights with one scale per row
    triton    sgl_kernel.triton.scaled, also for scales of groups of inputs (blocks of 128 x 128)

Activations are quantised at run time, with one scale per token, or per token and group of inputs.
A product is compared with ``reference`` before it is used (``check``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TypeAlias

from sglang.srt.layers.quantised import Float8
from sglang.srt.numeric.torch_later import Tensor, torch

MOST = 448.0  # the largest float8 (e4m3)
# Allowed norm of the error, relative to the output's norm. Product and reference quantise alike and
# sum in float32; they differ in the result's rounding and in ties of the rounding to float8.
TOLERANCE = 0.01


@dataclass(frozen=True)
class Float8Matrix:
    """A weight [outputs, inputs] on its device, and the product that multiplies by it."""

    weight: Float8
    multiply: Multiply

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return ``x W^T + bias`` [T, outputs] of x [T, inputs], in x's dtype."""
        y = self.multiply(x.contiguous(), self.weight)
        return y if bias is None else y + bias


Multiply: TypeAlias = Callable[[Tensor, Float8], Tensor]


def quantised(x: Tensor, group: int) -> Float8:
    """Return x [T, inputs] in float8. Scales map each group's largest magnitude to 448."""
    tokens, inputs = x.shape
    parts = torch.nn.functional.pad(x.float(), (0, -inputs % group)).view(tokens, -1, group)
    scales = parts.abs().amax(2).clamp(min=1e-12) / MOST
    values = (x.float() / _spread(scales, group, inputs)).clamp(-MOST, MOST)
    return Float8(values.to(torch.float8_e4m3fn), scales, group)


def dense(weight: Float8) -> Tensor:
    """Return the float32 tensor of a float8 matrix of tensors."""
    scales = _spread(weight.scales, weight.group, weight.values.shape[1])
    found: Tensor = weight.values.float() * scales
    return found


def _spread(scales: Tensor, group: int, k: int) -> Tensor:
    """Implement ``quantised.spread`` for tensors."""
    return scales if scales.shape[1] == 1 else scales.repeat_interleave(group, dim=1)[:, :k]


def reference(x: Tensor, weight: Float8) -> Tensor:
    """Return the product in float32, with x quantised to float8 first."""
    return dense(quantised(x, weight.group)) @ dense(weight).t()


def by_torch(x: Tensor, weight: Float8) -> Tensor:
    """Compute the product by ``torch._scaled_mm``. The result on a GPU is bfloat16."""
    transposed = weight.values.t()
    if not x.is_cuda:  # torch 2.11 supports row scales on a GPU only
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
    """Return a name of ``PRODUCTS``, or "" if weights become ``dtype``; and the reason in words.

    ``asked``: "auto", "none" or a name. ``rowwise``: one scale per row, else per group of inputs.
    Raises ValueError if the product ``asked`` by name cannot run.
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
    """Return the reason why a product cannot run, "" if it can."""
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
    """Raise ValueError if a product differs from ``reference`` for 1, 17 or 130 tokens."""
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
