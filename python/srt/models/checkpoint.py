"""Checkpoint: tensors by the names that models ask for, wherever and however they are stored.

Plain safetensors files are one (``models/weights``). A quantised format is another, around it: it
shows ``layer.weight`` where the files hold ``layer.qweight``, ``layer.scales`` and so on, and reads
it dequantised, or as the integers that it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from sglang.srt.layers.quantised import Quantised
from torch import Tensor


class Checkpoint(Protocol):
    """Nothing is read before ``read``; headers were checked when it was made.

    Attributes:
        source: the directory or file, for messages.
        shapes: shape of every tensor, by name.
        method: name of the way in which weights are quantised, "" for weights that are not.
    """

    @property
    def source(self) -> Path: ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    @property
    def method(self) -> str: ...

    def order(self, names: list[str]) -> list[str]:
        """The names in the order in which reading them is cheapest."""
        ...

    def size(self, name: str) -> int:
        """Bytes that reading the tensor reads, for progress."""
        ...

    def read(self, name: str) -> Tensor:
        """The whole tensor in a float dtype, on the CPU; it may be a view of a mapped file. Raises
        ValueError where it is stored in a way that is none of a weight."""
        ...

    def forget(self, name: str) -> None:
        """What was read is needed no longer: its memory may go."""
        ...

    def bits(self, name: str) -> int:
        """Of a weight for which ``quantised`` gives integers; 0: it does not."""
        ...

    def quantised(self, name: str) -> Quantised | None:
        """The weight as it is stored; None where only ``read`` will do. Raises ValueError."""
        ...

    def needless(self, name: str) -> bool:
        """Whether a tensor that no model asks for says nothing."""
        ...

    def describe(self) -> str:
        """How weights are stored, for people; "" where they are floats."""
        ...


class Plain:
    """What a checkpoint of floats says of quantisation."""

    method = ""

    def bits(self, name: str) -> int:
        return 0

    def quantised(self, name: str) -> Quantised | None:
        return None

    def needless(self, name: str) -> bool:
        return False

    def describe(self) -> str:
        return ""
