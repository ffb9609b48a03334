"""Quantised checkpoints: modules of several tensors, shown as one weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from sglang.srt.layers.quantised import Float8, Quantised
from sglang.srt.models.safetensors import DTYPES, SafetensorsCheckpoint, SafetensorsEntry
from sglang.srt.numeric.host_arrays import FLOAT8, INT8, Array

STORED = {
    **DTYPES, "U8": np.dtype(np.uint8), "I8": INT8, "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64), "F8_E4M3": FLOAT8,
}  # fmt: skip
FLOATS = ("F16", "BF16", "F32")


class Module(Protocol):
    """A quantised matrix.

    Attributes:
        parts: the names of its tensors in the files.
        shape: of the weight that is shown.
        bits: of the values that ``quantised`` gives, 0 where it gives None.
    """

    @property
    def parts(self) -> tuple[str, ...]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def bits(self) -> int: ...

    def quantised(self, files: QuantisedFiles) -> Quantised | Float8 | None: ...

    def dense(self, files: QuantisedFiles) -> Array:
        """The weight in a float dtype, exact where that can hold it."""
        ...


@runtime_checkable
class HasFloat8(Protocol):
    """A module whose weight may be float8 (``models.checkpoint.Checkpoint.float8_group``)."""

    @property
    def float8_group(self) -> int: ...


class QuantisedFiles:
    """The tensors of a directory by name, for formats that look at their dtypes and shapes."""

    def __init__(self, plain: SafetensorsCheckpoint) -> None:
        self.plain, self.entries = plain, plain.entries

    def ending(self, suffix: str) -> list[str]:
        """Names that have the suffix, without it, sorted."""
        return sorted(n.removesuffix(suffix) for n in self.entries if n.endswith(suffix))

    def groups(self, name: str, count: int) -> Array:
        """int64 [k]: the group of each input, below ``count``. Raises ValueError."""
        groups = self.read(name).astype(np.int64)
        low, high = int(groups.min()), int(groups.max())
        if not 0 <= low <= high < count:
            raise ValueError(
                f"{self.plain.source}: tensor {name} names groups {low} to {high}; there are "
                f"{count}."
            )
        return groups

    def need(self, name: str, dtypes: Iterable[str], *shape: int) -> SafetensorsEntry:
        """The entry of a tensor; a size of -1 may be anything but 0. Raises ValueError."""
        entry = self.entries.get(name)
        source = self.plain.source
        if entry is None:
            raise ValueError(
                f"{source} lacks tensor {name}, without which a weight cannot be read."
            )
        if entry.dtype not in dtypes:
            raise ValueError(
                f"{entry.file}: tensor {name} has dtype {entry.dtype}; the format says "
                f"{' or '.join(dtypes)}."
            )
        fits = len(entry.shape) == len(shape)
        fits = fits and all(n == want or (want < 0 < n) for n, want in zip(entry.shape, shape))
        if not fits:
            wanted = [n if n >= 0 else "any" for n in shape]
            raise ValueError(
                f"{entry.file}: tensor {name} has shape {list(entry.shape)}; {wanted} is needed."
            )
        return entry

    def read(self, name: str) -> Array:
        """The tensor as it is stored."""
        return self.plain.raw(name, STORED[self.entries[name].dtype])


class QuantisedCheckpoint:
    """Implements ``models.checkpoint.Checkpoint``: every module as one weight, the tensors that no
    module has as they are.

    ``hidden``: tensors that say nothing here, such as scales of activations; ``idle``: those that
    may go unread if no model asks for them.
    """

    def __init__(
        self,
        method: str,
        files: QuantisedFiles,
        modules: Mapping[str, Module],
        hidden: Iterable[str] = (),
        idle: Iterable[str] = (),
        title: str = "",
    ) -> None:
        self.method, self._files, self._modules = method, files, dict(modules)
        self._title, self._idle = title, frozenset(idle)
        if not modules:
            raise ValueError(
                f"{self.source}: its configuration says that weights are quantised ({method}), but "
                f"no tensor is."
            )
        gone = {part for module in modules.values() for part in module.parts} | set(hidden)
        shapes = {n: s for n, s in files.plain.shapes.items() if n not in gone}
        for name, module in modules.items():
            if name in shapes:
                raise ValueError(f"{self.source} has tensor {name} both quantised and not.")
            shapes[name] = module.shape
        self._shapes = shapes

    @property
    def source(self) -> Path:
        return self._files.plain.source

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def _parts(self, name: str) -> tuple[str, ...]:
        return self._modules[name].parts if name in self._modules else (name,)

    def order(self, names: list[str]) -> list[str]:
        """File by file, each from its beginning, by a module's first part."""
        first = {self._parts(name)[0]: name for name in names}
        return [first[part] for part in self._files.plain.order(list(first))]

    def size(self, name: str) -> int:
        return sum(map(self._files.plain.size, self._parts(name)))

    def read(self, name: str) -> Array:
        if name not in self._modules:
            return self._files.plain.read(name)
        return self._modules[name].dense(self._files)

    def forget(self, name: str) -> None:
        for part in self._parts(name):
            self._files.plain.forget(part)

    def bits(self, name: str) -> int:
        return self._modules[name].bits if name in self._modules else 0

    def float8_group(self, name: str) -> int:
        module = self._modules.get(name)
        return module.float8_group if isinstance(module, HasFloat8) else 0

    def quantised(self, name: str) -> Quantised | Float8 | None:
        return self._modules[name].quantised(self._files) if name in self._modules else None

    def needless(self, name: str) -> bool:
        return name in self._idle and not self._files.read(name).any()

    def describe(self) -> str:
        count = len(self._modules)
        return f"{self._title or self.method} ({count} matrices)"


def unpack(words: Array, bits: int) -> Array:
    """int32 [..., w] -> uint8 [..., w * 32 / bits]: fields of ``bits`` (2, 3, 4 or 8) bits, lowest
    first; those of 3 bits run on from word to word."""
    words = np.ascontiguousarray(words)
    if bits == 8:
        return words.view(np.uint8)
    if bits in (2, 4):
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        fields = (words.view(np.uint8)[..., None] >> shifts) & ((1 << bits) - 1)
        return fields.reshape(*words.shape[:-1], -1)
    at = np.arange(words.shape[-1] * 32 // bits) * bits
    wide = words.astype(np.int64) & 0xFFFFFFFF
    low = wide[..., at // 32] >> (at % 32)
    high = wide[..., np.minimum(at // 32 + 1, words.shape[-1] - 1)] << (32 - at % 32)
    found: Array = ((low | high) & ((1 << bits) - 1)).astype(np.uint8)
    return found


def centred(fields: Array, bits: int) -> Array:
    """Unsigned fields as int8, the middle of their range at 0."""
    found: Array = (fields ^ np.uint8(1 << (bits - 1))).view(np.int8) if bits == 8 else (
        fields.astype(np.int8) - np.int8(1 << (bits - 1))
    )  # fmt: skip
    return found
