"""RenamedCheckpoint: a checkpoint's tensors under other names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sglang.srt.layers.quantised import Float8, Quantised
from sglang.srt.models.checkpoint import Checkpoint
from sglang.srt.models.decoder_model import DecoderModel
from sglang.srt.numeric.host_arrays import Array


def named(checkpoint: Checkpoint, family: type[DecoderModel]) -> Checkpoint:
    """The checkpoint's tensors by the names that the family knows."""
    names = family.names(checkpoint.shapes)
    if all(new == old for new, old in names.items()):
        return checkpoint
    return RenamedCheckpoint(checkpoint, names)


class RenamedCheckpoint:
    """``names``: by the new name, what ``inner`` calls a tensor. It has no others.

    Implements ``models.checkpoint.Checkpoint``.
    """

    def __init__(self, inner: Checkpoint, names: Mapping[str, str]) -> None:
        self.inner, self.names = inner, dict(names)

    @property
    def source(self) -> Path:
        return self.inner.source

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes = self.inner.shapes
        return {new: shapes[old] for new, old in self.names.items()}

    def order(self, names: list[str]) -> list[str]:
        new = {self.names[name]: name for name in names}
        return [new[old] for old in self.inner.order(list(new))]

    def size(self, name: str) -> int:
        return self.inner.size(self.names[name])

    def read(self, name: str) -> Array:
        return self.inner.read(self.names[name])

    def forget(self, name: str) -> None:
        self.inner.forget(self.names[name])

    @property
    def method(self) -> str:
        return self.inner.method

    def bits(self, name: str) -> int:
        return self.inner.bits(self.names[name])

    def float8_group(self, name: str) -> int:
        return self.inner.float8_group(self.names[name])

    def quantised(self, name: str) -> Quantised | Float8 | None:
        return self.inner.quantised(self.names[name])

    def needless(self, name: str) -> bool:
        return self.inner.needless(self.names[name])

    def describe(self) -> str:
        return self.inner.describe()
