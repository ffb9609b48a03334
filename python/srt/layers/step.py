"""ForwardStep: the arguments of every layer in a forward pass beside the hidden states."""

from __future__ import annotations

from sglang.srt.attention.attention_protocol import Attention
from sglang.srt.layers.lora import Use
from sglang.srt.layers.rotary import Angles, Rotary
from torch import Tensor


class ForwardStep:
    """One pass through a model's layers.

    Attributes:
        positions: of the tokens [T], or [3, T] (time, height, width) where a model has rotary
            sections.
        attention: planned already.
        use: the pass's adapters, None where no token has one.
    """

    def __init__(self, positions: Tensor, attention: Attention, use: Use | None = None) -> None:
        self.positions, self.attention, self.use = positions, attention, use
        self._angles: dict[int, Angles] = {}

    def angles(self, rotary: Rotary) -> Angles:
        """The angles of the pass's tokens, looked up once for all layers that share ``rotary``."""
        found = self._angles.get(id(rotary))
        if found is None:
            found = self._angles[id(rotary)] = rotary.at(self.positions)
        return found
