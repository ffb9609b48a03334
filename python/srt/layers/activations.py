"""Activations by their names in checkpoints."""

from __future__ import annotations

from collections.abc import Callable

from sglang.srt.numeric.torch_later import F, Tensor


def _tanh_gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: Tensor) -> Tensor:
    return x * (1.702 * x).sigmoid()


def _silu(x: Tensor) -> Tensor:
    return F.silu(x)


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def _relu(x: Tensor) -> Tensor:
    return F.relu(x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": _silu,
    "swish": _silu,
    "gelu": _gelu,
    "gelu_new": _tanh_gelu,
    "gelu_pytorch_tanh": _tanh_gelu,
    "gelu_fast": _tanh_gelu,  # GPT-NeoX's
    "quick_gelu": _quick_gelu,  # CLIP's
    "relu": _relu,
}
# Activations of text models, which native kernels compute too.
TEXT = tuple(name for name in ACTIVATIONS if name != "quick_gelu")

# Name of GPT-OSS's gated activation, and its two constants.
CLAMPED_SWIGLU = "clamped_swiglu"
SWIGLU_ALPHA, SWIGLU_LIMIT = 1.702, 7.0


def gated(x: Tensor, act: str) -> Tensor:
    """Return ``act(gate) * up`` [T, F] of x [T, 2 F], gate and up side by side. For CLAMPED_SWIGLU:
    ``gate * sigmoid(alpha * gate) * (up + 1)`` of clamped inputs."""
    gate, up = x.chunk(2, dim=-1)
    if act != CLAMPED_SWIGLU:
        return ACTIVATIONS[act](gate).mul_(up)
    gate = gate.clamp(max=SWIGLU_LIMIT)
    up = up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
    return gate * (gate * SWIGLU_ALPHA).sigmoid() * (up + 1)
