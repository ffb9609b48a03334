"""ForwardStep: the arguments of every layer in a forward pass beside the hidden states."""

from __future__ import annotations

from functools import cached_property

from sglang.srt.attention.attention_protocol import Attention, Writable
from sglang.srt.layers.lora import Use
from sglang.srt.layers.rotary import AngleRows, Angles, Rotary
from sglang.srt.numeric.torch_later import Tensor


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
        self._rows: dict[int, AngleRows] = {}

    @cached_property
    def writable(self) -> Writable | None:
        """The attention, where a kernel before it may write its pools."""
        return self.attention if isinstance(self.attention, Writable) else None

    def angles(self, rotary: Rotary) -> Angles:
        """The angles of the pass's tokens, looked up once for all layers that share ``rotary``."""
        found = self._angles.get(id(rotary))
        if found is None:
            found = self._angles[id(rotary)] = rotary.at(self.positions)
        return found

    def rows(self, rotary: Rotary) -> AngleRows:
        """The same for a kernel that looks the angles up itself."""
        found = self._rows.get(id(rotary))
        if found is None:
            found = self._rows[id(rotary)] = rotary.rows(self.positions)
        return found
