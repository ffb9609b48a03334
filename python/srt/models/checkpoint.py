"""Checkpoint: tensors by the names that models ask for, in any file format.

Safetensors files are one checkpoint (``models/safetensors``). A quantised format wraps it: it shows
``layer.weight`` where the files hold ``layer.qweight``, ``layer.scales`` and so on, and reads the
weight dequantised or as integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from sglang.srt.layers.quantised import Float8, Quantised
from sglang.srt.numeric.host_arrays import Array


class Checkpoint(Protocol):
    """A model's tensors by name. Nothing is read before ``read``; the headers are checked already.

    Attributes:
        source: the directory or file, for messages.
        shapes: shape of every tensor, by name.
        method: name of the quantisation method, "" for float weights.
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

    def read(self, name: str) -> Array:
        """The whole tensor in a float dtype; it may be a view of a mapped file. Raises
        ValueError for a dtype or layout that no weight has."""
        ...

    def forget(self, name: str) -> None:
        """Free the memory of a tensor that was read."""
        ...

    def bits(self, name: str) -> int:
        """Bits of a weight for which ``quantised`` gives integers, else 0."""
        ...

    def float8_group(self, name: str) -> int:
        """Inputs that share a scale of a weight for which ``quantised`` gives float8, else 0."""
        ...

    def quantised(self, name: str) -> Quantised | Float8 | None:
        """The weight as it is stored; None where only ``read`` will do. Raises ValueError."""
        ...

    def needless(self, name: str) -> bool:
        """Whether a tensor may go unread if no model asks for it."""
        ...

    def describe(self) -> str:
        """The storage of weights in words, for logs; "" for floats."""
        ...


class FloatCheckpoint:
    """The methods about quantisation of a checkpoint whose weights are floats."""

    method = ""

    def bits(self, name: str) -> int:
        return 0

    def float8_group(self, name: str) -> int:
        return 0

    def quantised(self, name: str) -> Quantised | Float8 | None:
        return None

    def needless(self, name: str) -> bool:
        return False

    def describe(self) -> str:
        return ""
