"""TorchWriter: computes the calls of ``layers.pass_writer`` at once with torch, eagerly or while a
CUDA graph is captured. Products of packed weights are native."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from sglang.srt.attention.attention_protocol import Attention, Heads, Writable
from sglang.srt.layers.activations import ACTIVATIONS
from sglang.srt.layers.embedding import TokenEmbedding
from sglang.srt.layers.experts import Experts
from sglang.srt.layers.latent_expansion import Expansion
from sglang.srt.layers.linear import RowLinear
from sglang.srt.layers.lora import Use
from sglang.srt.layers.norm import HeadNorm, HeadNorms, HeadsNorm, LayerNorm, RMSNorm, WholeRMSNorm
from sglang.srt.layers.operations import Operations
from sglang.srt.layers.pass_writer import PassDescription, PassWriter
from sglang.srt.layers.rotary import Rotary
from sglang.srt.layers.torch_experts import mixture
from sglang.srt.layers.weight import Stored
from sglang.srt.numeric.host_arrays import Weight
from sglang.srt.numeric.torch_later import F, Tensor, torch

Found = TypeVar("Found")


class ForwardStep:
    """The arguments of a pass that all its layers share, besides the hidden states.

    Attributes:
        positions: positions of the tokens [T], or [3, T] (time, height, width) of a model with
            rotary sections.
        attention: attention whose ``plan`` has been called.
        use: the pass's adapters, None if no token has one.
        given: int64 indices of tokens, and states [N, width] that replace their embeddings.
    """

    def __init__(
        self, positions: Tensor, attention: Attention, use: Use | None = None,
        given: tuple[Tensor, Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.positions, self.attention, self.use, self.given = positions, attention, use, given
        self._found: dict[Callable[[Tensor], Any], Any] = {}

    @cached_property
    def writable(self) -> Writable | None:
        """``attention`` if a fused kernel may write its pools before it runs, else None."""
        return self.attention if isinstance(self.attention, Writable) else None

    def at_positions(self, look_up: Callable[[Tensor], Found]) -> Found:
        """Return ``look_up(positions)``, computed once for all layers. It is a Rotary's method."""
        if look_up not in self._found:
            self._found[look_up] = look_up(self.positions)
        found: Found = self._found[look_up]
        return found


class TorchOperations:
    """Methods that use neither the residual stream nor the KV cache; vision towers use them too.

    ``operations``: torch's own or fused kernels. ``use``: the pass's adapters.
    """

    def __init__(self, operations: Operations, use: Use | None = None) -> None:
        self.operations, self.use = operations, use

    def norm(self, x: Tensor, norm: RMSNorm | LayerNorm) -> Tensor:
        if isinstance(norm, RMSNorm):
            return self.operations.norm(x, norm.weight, norm.eps)
        bias = None if norm.bias is None else norm.bias.to(x.dtype)
        return F.layer_norm(x, norm.shape, norm.weight.to(x.dtype), bias, norm.eps)

    def product(self, x: Tensor, layer: Stored) -> Tensor:
        return layer.product(x, layer.bias, self.use)

    def gate(self, x: Tensor, layer: Stored, act: str) -> Tensor:
        y = layer.product(x, layer.bias, self.use, act)
        return y if layer.packed is not None else self.operations.gate(y, act)

    def activate(self, x: Tensor, act: str) -> Tensor:
        return ACTIVATIONS[act](x)


class TorchWriter(TorchOperations):
    """Implements ``pass_writer.PassWriter``.

    The last addition to the stream ``x`` is deferred as ``norm(pending)``: the norm that reads the
    stream next performs it, on a GPU in the same kernel. The addition may overwrite ``pending``,
    but never ``x``.
    """

    def __init__(self, operations: Operations, x: Tensor, step: ForwardStep) -> None:
        """``x``: token ids [T], or hidden states [T, width] of the previous stage."""
        super().__init__(operations, step.use)
        self.x, self.step = x, step
        self.pending: Tensor | None = None
        self.pending_norm: RMSNorm | None = None

    def embed(self, table: TokenEmbedding, scale: float) -> None:
        """See ``PassWriter``. This rank contributes zeros for ids whose rows other ranks hold."""
        ids, given = self.x, self.step.given
        if table.group.size == 1:
            x = table.rows(ids)
        else:
            local = ids - table.first
            mine = (local >= 0) & (local < table.count)
            x = table.group.all_reduce(table.rows(local.where(mine, 0)) * mine.unsqueeze(-1))
        if scale != 1:
            x = x * scale
        self.x = x if given is None else x.index_copy(0, given[0], given[1].to(x))

    def input(self, width: int) -> None:
        assert self.x.shape[1] == width

    def add_positions(self, table: Weight) -> None:
        self.x = self.x + F.embedding(self.step.positions, table)

    def read(self, norm: RMSNorm | LayerNorm | None = None) -> Tensor:
        if self.pending is None or not isinstance(norm, RMSNorm):
            self._join()
            return self.x if norm is None else self.norm(self.x, norm)
        inner = None
        if self.pending_norm is not None:
            assert self.pending_norm.eps == norm.eps, "the kernel takes one eps"
            inner = self.pending_norm.weight
        self.x, y = self.operations.add_norm(self.x, self.pending, norm.weight, norm.eps, inner)
        self.pending = None
        return y

    def _join(self) -> None:
        """Perform the deferred addition to the stream."""
        if self.pending is not None:
            norm = self.pending_norm
            more = self.pending if norm is None else self.norm(self.pending, norm)
            self.x, self.pending = self.x + more, None

    def add(self, layer: RowLinear, x: Tensor, norm: RMSNorm | None = None) -> None:
        """See ``PassWriter``. The bias is added once, after the sum over the ranks."""
        if layer.group.size == 1:
            y = self.product(x, layer)
        else:
            y = layer.group.all_reduce(layer.product(x, use=self.use))
            y = y if layer.bias is None else y + layer.bias
        self._wait(y, norm)

    def experts(self, layer: Experts, x: Tensor) -> None:
        self._wait(mixture(layer, x, self.gate))

    def _wait(self, y: Tensor, norm: RMSNorm | None = None) -> None:
        self._join()
        self.pending, self.pending_norm = y, norm

    def choose(self, *values: Tensor) -> list[Tensor]:
        """Return all tokens: the worker selects tokens from the pass's result."""
        return list(values)

    def end(self, norm: RMSNorm | LayerNorm | None) -> Tensor:
        return self.read(norm)

    def attend(
        self, qkv: Tensor, heads: Heads, rotary: Rotary | None, norms: HeadNorms | None
    ) -> Tensor:
        step, kernel, writable = self.step, self.operations.rotate_append, self.step.writable
        if kernel is not None and rotary is not None and writable is not None:
            gains = None if norms is None else norms.gains
            if norms is None or gains is not None:
                target, angles = writable.target(heads), step.at_positions(rotary.rows)
                return writable.read(heads, kernel(qkv, heads.num_heads, gains, angles, target))
        queries, kv = heads.num_heads, heads.num_kv_heads
        qkv = qkv.view(qkv.shape[0], queries + 2 * kv, -1)
        if norms is not None:
            q, k, v = qkv.split_with_sizes((queries, kv, kv), 1)
            q = self._rotate(self._head_norm(q, norms.q), rotary)
            k = self._rotate(self._head_norm(k, norms.k), rotary)
        else:
            qk, v = qkv.split_with_sizes((queries + kv, kv), 1)
            q, k = self._rotate(qk, rotary).split_with_sizes((queries, kv), 1)
        return step.attention.attend(heads, q, k, v)

    def _rotate(self, x: Tensor, rotary: Rotary | None) -> Tensor:
        return x if rotary is None else rotary.rotate(x, self.step.at_positions(rotary.at))

    def _head_norm(self, x: Tensor, norm: HeadNorm) -> Tensor:
        """Return x [T, heads, head_dim], normed."""
        if isinstance(norm, RMSNorm):
            return self.norm(x, norm)
        if isinstance(norm, HeadsNorm):
            found: Tensor = F.layer_norm(x, (norm.dim,), eps=norm.eps) * norm.weight.to(x.dtype)
            return found
        return whole_norm(x, norm)

    def attend_latent(
        self, q: Tensor, latent: Tensor, heads: Heads, rotary: Rotary, norm: RMSNorm,
        expansion: Expansion,
    ) -> Tensor:  # fmt: skip
        shape, angles = expansion.shape, self.step.at_positions(rotary.at)
        q = q.unflatten(1, (heads.num_heads, -1))
        still, turning = q.split_with_sizes((shape.still, shape.turned), -1)
        q = torch.cat([expansion.queries(still), rotary.rotate(turning, angles)], -1)
        latent, turning = latent.split_with_sizes((shape.rank, shape.turned), -1)
        turned = rotary.rotate(turning.unsqueeze(1), angles)
        k = torch.cat([self.norm(latent, norm).unsqueeze(1), turned], -1)
        y = self.step.attention.attend(heads, q, k, None)
        found: Tensor = expansion.values(y.unflatten(1, (heads.num_heads, -1))).flatten(1)
        return found


def whole_norm(x: Tensor, norm: WholeRMSNorm) -> Tensor:
    """Return RMSNorm of x [T, heads, head_dim] over all heads of a token, in all ranks."""
    flat = x.flatten(1)
    if norm.group.size == 1:
        weight = norm.weight.to(x.dtype)
        return F.rms_norm(flat, (norm.width,), weight, norm.eps).view_as(x)
    wide = flat.float()
    squares = norm.group.all_reduce(wide.square().sum(-1, keepdim=True))
    wide = wide * torch.rsqrt(squares / norm.width + norm.eps) * norm.weight.float()
    found: Tensor = wide.to(x.dtype).view_as(x)
    return found


def forward(model: PassDescription, x: Tensor, step: ForwardStep) -> Tensor:
    """Return hidden states [T, width], normed if the model has the last layer. ``x``: token ids
    [T], or hidden states [T, width] of the previous stage. Writes the planned KV slots."""
    writer: PassWriter = TorchWriter(model.place.operations, x, step)
    hidden: Tensor = model.write(writer)
    return hidden
