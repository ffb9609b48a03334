"""GgufCheckpoint: a GGUF file's tensors under the names and in the layout of a Hugging Face
checkpoint, dequantised when they are read."""

from __future__ import annotations

import mmap
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sglang.srt.files.gguf import GgufKind, Tensor
from sglang.srt.layers.quantised import Quantised
from sglang.srt.models.gguf.families import Change
from sglang.srt.models.gguf.gguf_config import GgufFields
from sglang.srt.models.gguf.integers import INTEGERS, quantised
from sglang.srt.models.gguf.quants import FLOATS, READABLE, dequantise
from sglang.srt.models.mapped_file import MappedFile
from sglang.srt.numeric.host_arrays import Array

MAX_PARTS = 1 << 18  # tensors of a model, each expert's counted
# Read with the config, or of no use here.
_READ = re.compile(r"rope_(freqs|factors_long|factors_short)\.weight")


@dataclass(frozen=True)
class GgufPart:
    """One tensor of the checkpoint: expert ``expert`` of the file's tensor, or (-1) all of it."""

    tensor: Tensor
    shape: tuple[int, ...]
    change: Change
    expert: int = -1


class GgufCheckpoint:
    """Implements ``models.checkpoint.Checkpoint``."""

    def __init__(self, config: GgufFields) -> None:
        self.source = Path(config.source)
        self._heads = {
            "attn_q": config.int("num_attention_heads"),
            "attn_k": config.int("num_key_value_heads"),
        }
        self._parts: dict[str, GgufPart] = {}
        self._rows: dict[str, int] = {}
        self._config = config
        for file in config.files:
            for name, tensor in file.tensors.items():
                for part_name, part in self._named(name, tensor):
                    self._parts[part_name] = part
        self._file = MappedFile()

    def _named(self, name: str, tensor: Tensor) -> Iterator[tuple[str, GgufPart]]:
        """The tensor's names in the checkpoint; its own where the family does not know it. Raises
        ValueError for more experts than a model may have: empty ones take no room in a file."""
        family = self._config.family
        if _READ.fullmatch(name):
            return
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
        layer, stem, ending = match.groups() if match else (None, "", "")
        known = (family.top if layer is None else family.layer).get(stem)
        if known is None:
            yield name, GgufPart(tensor, tensor.shape, "")
            return
        prefix = "" if layer is None else f"{family.layers}{int(layer)}."
        change, shape = family.change(stem), tensor.shape
        if change == "transposed":
            shape = tuple(reversed(shape))
        if "{}" in known:
            if len(self._parts) + (shape[0] if shape else 0) > MAX_PARTS:
                raise ValueError(
                    f"{tensor.file}: {name} has shape {list(shape)}, and with its experts the "
                    f"model has more than {MAX_PARTS} tensors."
                )
            for expert in range(shape[0] if shape else 0):
                part = GgufPart(tensor, shape[1:], change, expert)
                yield f"{prefix}{known.format(expert)}.{ending}", part
            return
        if stem == "ffn_gate_inp_shexp" and len(shape) == 1:
            shape = (1, *shape)
        full = f"{prefix}{known}.{ending}"
        if change == "pairs":
            self._rows[full] = self._heads_of(tensor, name, stem)
        yield full, GgufPart(tensor, shape, change)

    def _heads_of(self, tensor: Tensor, name: str, stem: str) -> int:
        """The heads of a tensor whose rows are pairs. Raises ValueError where it has no such
        number of them."""
        heads, rows = self._heads[stem], tensor.shape[0] if tensor.shape else 1
        if rows % (2 * heads):
            key = "attention.head_count" + ("_kv" if stem == "attn_k" else "")
            raise ValueError(
                f"{tensor.file}: {key} is {heads}, and {name} has {rows} rows; every head has as "
                f"many pairs of rows, so the rows must be a multiple of {2 * heads}."
            )
        return heads

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: part.shape for name, part in self._parts.items()}

    def order(self, names: list[str]) -> list[str]:
        def place(name: str) -> tuple[str, int, int]:
            part = self._parts[name]
            return str(part.tensor.file), part.tensor.begin, part.expert

        return sorted(names, key=place)

    def size(self, name: str) -> int:
        begin, end = self._span(self._parts[name])
        return end - begin

    def read(self, name: str) -> Array:
        """float32 where it is stored quantised."""
        part = self._parts[name]
        kind = part.tensor.kind
        if kind.name not in READABLE:
            raise ValueError(
                f"{part.tensor.file}: {name} is stored as {kind.name}; readable are "
                f"{', '.join(READABLE)}."
            )
        begin, end = self._span(part)
        shape = tuple(reversed(part.shape)) if part.change == "transposed" else part.shape
        if begin == end:
            return np.empty(part.shape, np.float32)
        x = _values(self._file.of(part.tensor.file), begin, end, kind).reshape(shape)
        if part.change == "transposed":
            found: Array = x.T
            return found
        if part.change == "above one":
            return x.astype(np.float32) - 1
        return self._unpaired(name, x) if part.change == "pairs" else x

    def _unpaired(self, name: str, x: Array) -> Array:
        """Rows [n, ...] of pairs that turn together -> halves of each head."""
        heads = x.reshape(self._rows[name], -1, 2, *x.shape[1:])
        found: Array = heads.swapaxes(1, 2).reshape(x.shape)
        return found

    def forget(self, name: str) -> None:
        """Give back the pages that have been read."""
        part = self._parts[name]
        self._file.forget(part.tensor.file, *self._span(part))

    @property
    def method(self) -> str:
        plain = all(part.tensor.kind.name in FLOATS for part in self._parts.values())
        return "" if plain else "gguf"

    def bits(self, name: str) -> int:
        part = self._parts[name]
        if len(part.shape) != 2 or part.change not in ("", "pairs"):
            return 0
        return INTEGERS[part.tensor.kind.name][0] if part.tensor.kind.name in INTEGERS else 0

    def float8_group(self, name: str) -> int:
        return 0

    def quantised(self, name: str) -> Quantised | None:
        part = self._parts[name]
        begin, end = self._span(part)
        if not self.bits(name) or begin == end:
            return None
        raw = _bytes(self._file.of(part.tensor.file), begin, end)
        found = quantised(raw, part.shape[0], part.tensor.kind)
        if part.change == "pairs":
            return found.rows(lambda x: self._unpaired(name, x))
        return found

    def needless(self, name: str) -> bool:
        return False

    def describe(self) -> str:
        """Kinds of the quantised weights with their counts; "" where all are floats."""
        kinds = Counter(p.tensor.kind.name for p in self._parts.values() if len(p.shape) > 1)
        told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        return f"GGUF ({told})" if self.method else ""

    def _span(self, part: GgufPart) -> tuple[int, int]:
        tensor = part.tensor
        if part.expert < 0:
            return tensor.begin, tensor.end
        size = (tensor.end - tensor.begin) // tensor.shape[0]
        return tensor.begin + part.expert * size, tensor.begin + (part.expert + 1) * size


def _values(data: mmap.mmap, begin: int, end: int, kind: GgufKind) -> Array:
    """The values stored in bytes [begin, end), in one dimension; of a float a view."""
    if kind.name in FLOATS and end <= len(data):
        dtype = FLOATS[kind.name]
        if begin % dtype.itemsize == 0:
            count = (end - begin) // dtype.itemsize
            return np.frombuffer(data, dtype=dtype, count=count, offset=begin)
        return np.frombuffer(bytearray(data[begin:end]), dtype=dtype)
    return dequantise(_bytes(data, begin, end).reshape(1, -1), kind).reshape(-1)


def _bytes(data: mmap.mmap, begin: int, end: int) -> Array:
    if end > len(data):
        raise ValueError("a GGUF file has become shorter while it was read.")
    return np.frombuffer(data, dtype=np.uint8, count=end - begin, offset=begin)
