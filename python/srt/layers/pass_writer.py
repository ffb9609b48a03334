"""PassWriter: the interface by which layers and models describe a forward pass.

The ``write`` method of a layer calls the methods of a writer. There are two writers:

    torch_writer.TorchWriter    computes each call at once with torch; its values are tensors
    tape_writer.TapeWriter      records each call in a native op list; its values are buffers

The writer holds the pass's residual stream [T, width]. Layers read the stream (``read``) and add to
it (``add``, ``experts``). ``embed``, ``add``, ``experts`` sum over the tensor-parallel ranks."""

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

# A tensor [T, n], or a buffer of an op list.
Value: TypeAlias = Any


class ValueWriter(Protocol):
    """Methods that do not use the residual stream. Vision towers use them too."""

    def norm(self, x: Value, norm: RMSNorm | LayerNorm) -> Value:
        """Return x [T, width], normed."""

    def product(self, x: Value, layer: ColumnLinear) -> Value:
        """Return this rank's share of the layer's outputs for x [T, inputs]."""

    def gate(self, x: Value, layer: ColumnLinear, act: str) -> Value:
        """Return ``act(gate) * up`` of a paired layer's outputs for x [T, inputs]."""

    def activate(self, x: Value, act: str) -> Value:
        """Return ``act(x)``. The caller must not use x again."""


class PassWriter(ValueWriter, ExpertWriter, Protocol):
    """All methods. ``ExpertWriter`` has the method for a mixture of experts."""

    def embed(self, table: TokenEmbedding, scale: float) -> None:
        """Start the stream with the tokens' embeddings times ``scale``, summed over the ranks. For
        placeholder tokens, the states that the pass's inputs give replace the embeddings."""

    def input(self, width: int) -> None:
        """Start the stream with the hidden states that the previous stage computed."""

    def add_positions(self, table: Weight) -> None:
        """Add each token's position embedding, a row of ``table`` [positions, width]."""

    def read(self, norm: RMSNorm | LayerNorm | None = None) -> Value:
        """Return the stream, normed. The value is invalid after an addition to the stream."""

    def attend(
        self, qkv: Value, heads: Heads, rotary: Rotary | None, norms: HeadNorms | None
    ) -> Value:
        """Norm and rotate q and k, store k and v, and attend. ``qkv``: q, k and v side by side
        [T, (heads + 2 kv_heads) * head_dim]. Return [T, heads * head_dim]."""

    def attend_latent(
        self, q: Value, latent: Value, heads: Heads, rotary: Rotary, norm: RMSNorm,
        expansion: Expansion,
    ) -> Value:  # fmt: skip
        """Compute multi-head latent attention (``layers.latent``) of q [T, heads * (still +
        turned)] and latents [T, rank + turned]. Return [T, heads * value]."""

    def choose(self, *values: Value) -> list[Value]:
        """Keep in the stream and in ``values`` only the tokens whose outputs are requested. Called
        after the last attention, when no token needs another's states."""

    def add(self, layer: RowLinear, x: Value, norm: RMSNorm | None = None) -> None:
        """Add the layer's outputs to the stream, summed over the ranks, then normed."""

    def end(self, norm: RMSNorm | LayerNorm | None) -> Value:
        """Return the result of the pass: the stream, normed."""


class PassDescription(Protocol):
    """A model, whose ``write`` describes a whole pass."""

    @property
    def place(self) -> Place: ...

    def write(self, w: PassWriter) -> Value:
        """Write the pass to ``w`` and return its result."""
