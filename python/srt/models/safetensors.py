"""Safetensors files, every declared size checked before a byte of tensor data is used.

A file is an 8-byte little-endian length, a JSON header of that length and the data that the header
describes. Files may come from anywhere: nothing a header claims is believed, and no path that an
index names leaves its directory.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sglang.srt.files.location import inside
from sglang.srt.models.checkpoint import FloatCheckpoint
from sglang.srt.models.config_fields import read_json
from sglang.srt.models.mapped_file import MappedFile
from sglang.srt.numeric.host_arrays import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Array, DType

MAX_HEADER_BYTES = 100_000_000
INDEX = "model.safetensors.index.json"
DTYPES = {
    "F64": FLOAT64,
    "F32": FLOAT32,
    "F16": FLOAT16,
    "BF16": BFLOAT16,
}
# Known to the format, so that their sizes can be checked; of no use as weights here.
OTHER_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "I32": 4,
    "U32": 4, "I64": 8, "U64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class SafetensorsEntry:
    """One tensor of a file: bytes ``[begin, end)`` of the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, SafetensorsEntry]:
    """The tensors of one file. Raises ValueError, naming the file, where the header lies."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 8:
                raise ValueError(f"{path} has {size} bytes; a safetensors file has at least 8.")
            length = int.from_bytes(file.read(8), "little")
            if length > min(size - 8, MAX_HEADER_BYTES):
                raise ValueError(
                    f"{path} declares a header of {length} bytes; the file has {size - 8} after "
                    f"the length and headers are limited to {MAX_HEADER_BYTES}."
                )
            text = file.read(length)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:
        header = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} has a header that is not valid JSON: {error}.") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} has a header that is not a JSON object.")
    header.pop("__metadata__", None)
    base = 8 + length
    entries = {name: _entry(path, name, item, base, size) for name, item in header.items()}
    end = base
    for name, entry in sorted(entries.items(), key=lambda pair: (pair[1].begin, pair[1].end)):
        if entry.begin != end:
            raise ValueError(
                f"{path}: tensor {name} begins at byte {entry.begin}, not where the one before "
                f"it ends ({end}); tensors may neither overlap nor leave gaps."
            )
        end = entry.end
    if end != size:
        raise ValueError(f"{path} has {size} bytes; its header describes {end}.")
    return entries


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name occurs twice")
    return out


def _entry(path: Path, name: str, item: Any, base: int, size: int) -> SafetensorsEntry:
    def natural(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0

    if not isinstance(item, dict):
        raise ValueError(f"{path}: tensor {name} is not described by an object.")
    dtype, shape, offsets = (item.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or (dtype not in DTYPES and dtype not in OTHER_SIZES):
        raise ValueError(f"{path}: tensor {name} has unknown dtype {dtype!r}.")
    if not isinstance(shape, list) or len(shape) > 8 or not all(natural(n) for n in shape):
        raise ValueError(f"{path}: tensor {name} has invalid shape {shape!r}.")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(natural(n) for n in offsets):
        raise ValueError(f"{path}: tensor {name} has invalid data_offsets {offsets!r}.")
    begin, end = offsets
    if not begin <= end <= size - base:
        raise ValueError(
            f"{path}: tensor {name} has data_offsets {offsets}; the file has {size - base} bytes "
            f"of data."
        )
    item_size = DTYPES[dtype].itemsize if dtype in DTYPES else OTHER_SIZES[dtype]
    wanted = math.prod(shape) * item_size
    if end - begin != wanted:
        raise ValueError(
            f"{path}: tensor {name} of shape {shape} and dtype {dtype} needs {wanted} bytes; its "
            f"data_offsets give {end - begin}."
        )
    return SafetensorsEntry(path, dtype, tuple(shape), base + begin, base + end)


def read_checkpoint(directory: Path) -> dict[str, SafetensorsEntry]:
    """Every tensor of a model directory, sharded or not. Only headers are read.

    Raises ValueError where a shard is missing, leaves the directory or disagrees with the index.
    """
    index = directory / INDEX
    if not index.exists():
        return read_header(inside(directory, _only_file(directory)))
    places = read_json(index).fields("weight_map").values
    if not places:
        raise ValueError(f"{index}: weight_map is missing or empty.")
    entries: dict[str, SafetensorsEntry] = {}
    for name, file in places.items():
        if not isinstance(file, str):
            raise ValueError(f"{index}: the file of tensor {name} is {file!r}, not a string.")
    for file in dict.fromkeys(places.values()):
        for name, entry in read_header(inside(directory, file)).items():
            if places.get(name) != file:
                raise ValueError(
                    f"{index} says that tensor {name} is in {places.get(name)}; {file} has it."
                )
            entries[name] = entry
    for name, file in places.items():
        if name not in entries:
            raise ValueError(f"{index} says that tensor {name} is in {file}; it is not.")
    return entries


def _only_file(directory: Path) -> str:
    if (directory / "model.safetensors").exists():
        return "model.safetensors"
    found = sorted(p.name for p in directory.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{directory} has {len(found)} safetensors files and no {INDEX}.")
    others = sorted(p.name for p in directory.glob("*.bin"))
    hint = f"; {others[0]} must be converted to safetensors first" if others else ""
    raise ValueError(f"{directory} has no safetensors file{hint}.")


class SafetensorsCheckpoint(FloatCheckpoint):
    """A model directory's tensors; implements ``models.checkpoint.Checkpoint``."""

    def __init__(self, directory: Path, file: str = "") -> None:
        """Reads the headers, of ``file`` alone where one is named. Raises ValueError as
        ``read_checkpoint`` does."""
        self.source = directory
        self.entries = read_header(inside(directory, file)) if file else read_checkpoint(directory)
        self._file = MappedFile()

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: entry.shape for name, entry in self.entries.items()}

    def order(self, names: list[str]) -> list[str]:
        """File by file, each from its beginning."""
        return sorted(names, key=lambda n: (str(self.entries[n].file), self.entries[n].begin))

    def size(self, name: str) -> int:
        return self.entries[name].end - self.entries[name].begin

    def read(self, name: str) -> Array:
        entry = self.entries[name]
        if entry.dtype not in DTYPES:
            raise ValueError(
                f"{entry.file}: tensor {name} has dtype {entry.dtype}; weights must be one of "
                f"{', '.join(DTYPES)}."
            )
        return self.raw(name, DTYPES[entry.dtype])

    def raw(self, name: str, dtype: DType) -> Array:
        """The tensor as it is stored, its bytes read as ``dtype``."""
        return _view(self._file.of(self.entries[name].file), self.entries[name], dtype)

    def forget(self, name: str) -> None:
        """Give back the pages that have been read."""
        entry = self.entries[name]
        self._file.forget(entry.file, entry.begin, entry.end)


def _view(data: mmap.mmap, entry: SafetensorsEntry, dtype: DType) -> Array:
    count = math.prod(entry.shape)
    if count == 0:
        return np.empty(entry.shape, dtype=dtype)
    if entry.begin % dtype.itemsize:  # the format aligns data to 8 bytes, but does not insist
        raw = bytearray(data[entry.begin : entry.end])
        return np.frombuffer(raw, dtype=dtype).reshape(entry.shape)
    found = np.frombuffer(data, dtype=dtype, count=count, offset=entry.begin)
    return found.reshape(entry.shape)
