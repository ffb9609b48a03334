"""PassWriter: the vocabulary in which layers and models say what a forward pass computes.

A layer says it once (``write``). Two writers read that:

    torch_writer.TorchWriter    computes each word at once with torch; its values are tensors
    tape_writer.TapeWriter      records it on a native tape; its values are buffers

A pass has one residual stream [T, width], which the writer holds. Layers read it (``read``) and add
to it (``add``, ``experts``). ``embed``, ``add`` and ``experts`` sum over the tensor-parallel ranks.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from sglang.srt.attention.attention_protocol import Heads
from sglang.srt.layers.embedding import TokenEmbedding
from sglang.srt.layers.experts import ExpertWriter
from sglang.srt.layers.latent_expansion import Expansion
from sglang.srt.layers.linear import ColumnLinear, RowLinear
from sglang.srt.layers.norm import HeadNorms, LayerNorm, RMSNorm
from sglang.srt.layers.rotary import Rotary
from sglang.srt.layers.weight import Place
from sglang.srt.numeric.host_arrays import Weight

# A tensor [T, n], or a buffer of a tape.
Value: TypeAlias = Any


class ValueWriter(Protocol):
    """Words that do not touch the stream. Vision towers use them too."""

    def norm(self, x: Value, norm: RMSNorm | LayerNorm) -> Value:
        """x, normed."""

    def product(self, x: Value, layer: ColumnLinear) -> Value:
        """The layer's outputs, this rank's share of them."""

    def gate(self, x: Value, layer: ColumnLinear, act: str) -> Value:
        """``act(gate) * up`` of a paired layer's outputs."""

    def activate(self, x: Value, act: str) -> Value:
        """``act(x)``. x is not to be used again."""


class PassWriter(ValueWriter, ExpertWriter, Protocol):
    """All words. ``ExpertWriter`` has the one of a mixture of experts."""

    def embed(self, table: TokenEmbedding, scale: float) -> None:
        """Begin the stream: the tokens' rows times ``scale``, summed over the ranks, or what the
        pass gives in their place."""

    def input(self, width: int) -> None:
        """Begin the stream with the states that the stage before computed."""

    def add_positions(self, table: Weight) -> None:
        """Add the row of each token's position, of ``table`` [positions, width]."""

    def read(self, norm: RMSNorm | LayerNorm | None = None) -> Value:
        """The stream, normed. A value of it may not be used after an addition to the stream."""

    def attend(
        self, qkv: Value, heads: Heads, rotary: Rotary | None, norms: HeadNorms | None
    ) -> Value:
        """Attention of q, k and v side by side [T, (heads + 2 kv_heads) * head_dim]: norm q and k,
        rotate them, store k and v, attend: [T, heads * head_dim]."""

    def attend_latent(
        self, q: Value, latent: Value, heads: Heads, rotary: Rotary, norm: RMSNorm,
        expansion: Expansion,
    ) -> Value:  # fmt: skip
        """Multi-head latent attention (``layers.latent``) of q [T, heads * (still + turned)] and
        latents [T, rank + turned]: [T, heads * value]."""

    def choose(self, *values: Value) -> list[Value]:
        """The stream and ``values`` of those tokens alone whose outputs are wanted. To be said
        after the last attention: tokens no longer need each other."""

    def add(self, layer: RowLinear, x: Value, norm: RMSNorm | None = None) -> None:
        """Add the layer's outputs to the stream, summed over the ranks, then normed."""

    def end(self, norm: RMSNorm | LayerNorm | None) -> Value:
        """The result of the pass: the stream, normed."""


class PassDescription(Protocol):
    """A model that says a whole pass."""

    @property
    def place(self) -> Place: ...

    def write(self, w: PassWriter) -> Value:
        """Say the pass, and return its result."""
