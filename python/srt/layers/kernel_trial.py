"""Kernel trial: runs each fused kernel of a layer once, on the device and at the model's widths,
and compares its results with torch's before a model is built with the kernel."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from sglang.srt.attention.attention_protocol import KVTarget
from sglang.srt.layers import operations as by_torch
from sglang.srt.layers.activations import gated
from sglang.srt.layers.rotary import AngleRows, Rope, Rotary
from sglang.srt.numeric.torch_later import F, Tensor, torch

TOKENS = 3
# Largest width of the experts in the trial, because their random weights are made on the host.
WIDEST = 1024
# Allowed norm of the error, relative to the output's. Two bfloat16 roundings are 0.4 % each.
TOLERANCE = 0.02


@dataclass(frozen=True)
class TrialSizes:
    """Sizes of a model's layers, for the trial of its kernels.

    Attributes:
        width: width of the hidden states.
        inner: inner width of a feed-forward layer.
        heads, kv_heads, head_dim: sizes of attention; 0 heads if ``rotate_append`` is not used.
        partial: fraction of a head's dimensions that rotary embedding rotates.
        expert: inner width of an expert; 0 for a model without experts.
        act: activation of the experts.
    """

    width: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    partial: float = 1.0
    expert: int = 0
    act: str = "silu"


class KernelTrial:
    """Trials of the kernels, by the names of ``--disable-fused-kernels``."""

    def __init__(self, sizes: TrialSizes, device: torch.device, dtype: torch.dtype) -> None:
        self.sizes, self.device, self.dtype = sizes, device, dtype
        self.generator = torch.Generator().manual_seed(0)

    @property
    def trials(self) -> Mapping[str, Callable[[], None]]:
        """Functions that raise if a kernel does not compile, fails or has wrong results."""
        sizes = self.sizes
        found = {"add_rms_norm": self.add_rms_norm, "gate": self.gate}
        if sizes.heads:
            found["rotate_append"] = self.rotate_append
        if sizes.expert:
            found["moe"] = self.moe
        return found

    def failures(self, names: Collection[str]) -> Iterator[tuple[str, Exception]]:
        """Run the trials of ``names``. Yield the names of kernels that fail, with their errors."""
        for name, trial in self.trials.items():
            if name not in names:
                continue
            try:
                trial()
            except Exception as error:
                yield name, error

    def add_rms_norm(self) -> None:
        from sglang.srt.layers import fused_kernels as fused

        x, more = self._random(TOKENS, self.sizes.width), self._random(TOKENS, self.sizes.width)
        gain, inner = self._random(self.sizes.width), self._random(self.sizes.width)
        _compare(fused.norm(x, gain, 1e-6), by_torch.rms_norm(x, gain, 1e-6))
        for norm in (None, inner):
            want = by_torch.add_norm(x, more, gain, 1e-6, norm)
            for one, other in zip(fused.add_norm(x, more.clone(), gain, 1e-6, norm), want):
                _compare(one, other)

    def gate(self) -> None:
        from sglang.srt.layers import fused_kernels as fused

        x = self._random(TOKENS, 2 * self.sizes.inner)
        _compare(fused.gate(x, "silu"), gated(x, "silu"))

    def rotate_append(self) -> None:
        """Try the kernel without norms of heads. Its variant with them is not tried."""
        from sglang.srt.layers import fused_kernels as fused

        sizes, d = self.sizes, self.sizes.head_dim
        qkv = self._random(TOKENS, (sizes.heads + 2 * sizes.kv_heads) * d)
        rotary = Rotary(Rope(partial=sizes.partial), d, 8, self.dtype, self.device)
        positions = torch.arange(2, 2 + TOKENS, dtype=torch.int32, device=self.device)
        q, k, v = qkv.view(TOKENS, -1, d).split((sizes.heads, sizes.kv_heads, sizes.kv_heads), 1)
        keys, values = (self._random(TOKENS + 1, sizes.kv_heads, d) for _ in range(2))
        slots = torch.arange(TOKENS, 0, -1, dtype=torch.int32, device=self.device)
        angles = AngleRows(rotary.table, positions)
        got = fused.rotate_append(qkv, sizes.heads, None, angles, KVTarget(keys, values, slots))
        there = slots.long()
        _compare(got, rotary.rotate(q, rotary.at(positions)))
        _compare(keys[there], rotary.rotate(k, rotary.at(positions)))
        _compare(values[there], v)

    def moe(self) -> None:
        from sgl_kernel.triton import moe

        width, inner = min(self.sizes.width, WIDEST), min(self.sizes.expert, WIDEST)
        x, act = self._random(TOKENS, width), self.sizes.act
        gate_up = self._random(2, 2 * inner, width) * width**-0.5
        down = self._random(2, width, inner) * inner**-0.5
        weights = torch.tensor([[0.75, 0.25]] * TOKENS, device=self.device)
        chosen = torch.tensor([[0, 1], [1, 0], [1, 0]], dtype=torch.int32, device=self.device)
        got = moe.fused_moe(x, gate_up, down, weights, chosen, act)
        parts = [F.linear(gated(F.linear(x, a), act), b) for a, b in zip(gate_up, down)]
        share = torch.zeros_like(weights).scatter_(1, chosen.long(), weights)
        _compare(got, parts[0] * share[:, :1] + parts[1] * share[:, 1:])

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device, self.dtype)


def _compare(got: Tensor, want: Tensor) -> None:
    """Raise ValueError if the two differ. Waits for the device, so that its errors are raised."""
    error = float((got.float() - want.float()).norm() / want.float().norm())
    if not error <= TOLERANCE:  # NaN fails too
        raise ValueError(
            f"its outputs differ from torch's by {error:.1%} of their norm; {TOLERANCE:.0%} are "
            "allowed"
        )
