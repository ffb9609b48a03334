"""GGUF files (llama.cpp's format), versions 2 and 3: typed metadata and where the tensors lie.

    "GGUF", version u32, number of tensors u64, number of metadata entries u64
    entries:  key, type u32, value                 a string is a length u64 and UTF-8; an array is
    tensors:  name, n u32, n sizes u64 (the        the type of its items u32, their number u64 and
              fastest first), type u32, offset u64     the items
    padding to a multiple of ``general.alignment``, then the data that the offsets count from

Only headers are read here, through a mapping. Files may come from anywhere: every count and length
is checked against the rest of the file before it is used, and arrays are unpacked at their first
use. Everything is little endian; big-endian files are refused.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

VERSIONS = (2, 3)
MAX_HEADER_BYTES = 1 << 28
MAX_ENTRIES = 1 << 16
MAX_TENSORS = 1 << 17
MAX_ITEMS = 1 << 22  # items of an array
MAX_KEY = 1 << 12  # bytes of a key or a tensor's name
MAX_STRING = 1 << 24
MAX_SHARDS = 1 << 10
ALIGNMENT = 32  # where the file does not say


class GgufKind(NamedTuple):
    """Storage of a tensor's values: ``block`` of them in ``size`` bytes."""

    name: str
    block: int
    size: int


KINDS = {
    number: GgufKind(*fields)
    for number, fields in {
        0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40),
        10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
        16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
        19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
        22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
        26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56),
        30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
        39: ("MXFP4", 32, 17),
    }.items()
}  # fmt: skip

_STRING, _ARRAY = 8, 9
_SCALARS = {
    number: struct.Struct("<" + code) for number, code in
    {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
     12: "d"}.items()
}  # fmt: skip
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True)
class GgufArray:
    """``count`` items at byte ``at`` of the file, all of one type."""

    type: int
    count: int
    at: int


Value: TypeAlias = "int | float | bool | str | GgufArray"


@dataclass(frozen=True)
class Tensor:
    """Bytes ``[begin, end)`` of ``file``; ``shape`` as torch writes it, the fastest size last."""

    file: Path
    kind: GgufKind
    shape: tuple[int, ...]
    begin: int
    end: int


class Gguf:
    """One file's header.

    Attributes:
        path: the file.
        values: metadata by key.
        tensors: by name, in the file's order.
    """

    def __init__(self, path: Path) -> None:
        """Read the header of a file. Raises ValueError, naming the file, where the header is
        malformed."""
        self.path = path
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < 24:
                    raise ValueError(f"{path} has {size} bytes; a GGUF file has at least 24.")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from error
        self.values: dict[str, Value] = {}
        self.tensors: dict[str, Tensor] = {}
        _Reader(self._map, size, path).header(self)

    def error(self, key: str, problem: str) -> ValueError:
        value = self.values.get(key)
        shown = f"an array of {value.count}" if isinstance(value, GgufArray) else repr(value)[:80]
        return ValueError(f"{self.path}: {key} is {shown}; {problem}")

    def array(self, key: str, strings: bool) -> list[Any] | None:
        """The items of a metadata array, None where there is none. Raises ValueError where they are
        of another type or no UTF-8."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, GgufArray) or (value.type == _STRING) != strings:
            raise self.error(key, f"it must be an array of {'strings' if strings else 'numbers'}.")
        if not strings:
            code = _SCALARS[value.type].format[1:]
            return list(struct.unpack_from(f"<{value.count}{code}", self._map, value.at))
        out, at = [], value.at
        for _ in range(value.count):
            begin = at + 8
            at = begin + _U64.unpack_from(self._map, at)[0]
            try:
                out.append(self._map[begin:at].decode())
            except UnicodeDecodeError as error:
                raise self.error(key, f"item {len(out)} is not UTF-8.") from error
        return out


class _Reader:
    """Reads a header from its beginning to its end."""

    def __init__(self, data: mmap.mmap, size: int, path: Path) -> None:
        self._data, self._size, self._path = data, size, path
        self._limit, self._at = min(size, MAX_HEADER_BYTES), 4

    def header(self, file: Gguf) -> None:
        if self._data[:4] != b"GGUF":
            raise self._error(f"it begins with {self._data[:4]!r}, not with b'GGUF'")
        version = self._scalar(_U32)
        if version not in VERSIONS:
            swapped = int.from_bytes(_U32.pack(version), "big")
            raise self._error(
                "it is big endian; convert it to a little-endian file"
                if swapped in VERSIONS
                else f"its version is {version}; versions {VERSIONS} are read"
            )
        tensors = self._count("tensors", MAX_TENSORS, 24)
        for _ in range(self._count("metadata entries", MAX_ENTRIES, 13)):
            key = self._text(MAX_KEY)
            if key in file.values:
                raise self._error(f"metadata key {key} occurs twice")
            file.values[key] = self._value(self._scalar(_U32), key)
        alignment = file.values.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment % 8:
            raise file.error("general.alignment", "it must be a small multiple of 8.")
        found = [self._tensor() for _ in range(tensors)]
        base = -(-self._at // alignment) * alignment
        for name, kind, shape, offset in found:
            if name in file.tensors:
                raise self._error(f"tensor {name} occurs twice")
            file.tensors[name] = self._placed(name, kind, shape, offset, base, alignment)
        end, before = base, ""
        for name, tensor in sorted(file.tensors.items(), key=lambda pair: pair[1].begin):
            if tensor.begin < end and tensor.begin < tensor.end:
                raise self._error(f"tensors {before} and {name} overlap")
            end, before = max(end, tensor.end), name

    def _error(self, problem: str) -> ValueError:
        return ValueError(f"{self._path} is no GGUF file that can be read: {problem}.")

    def _scalar(self, how: struct.Struct) -> Any:
        at = self._at
        if at + how.size > self._limit:
            raise self._error(f"its header does not end within {self._limit} bytes")
        self._at = at + how.size
        return how.unpack_from(self._data, at)[0]

    def _count(self, what: str, most: int, least_bytes: int) -> int:
        """A number of things, each of at least so many bytes."""
        count: int = self._scalar(_U64)
        if count > min(most, (self._limit - self._at) // least_bytes):
            raise self._error(
                f"it declares {count} {what}; at most {most} are read, and {self._limit - self._at}"
                f" bytes are left"
            )
        return count

    def _text(self, most: int) -> str:
        length: int = self._scalar(_U64)
        if length > min(most, self._limit - self._at):
            raise self._error(
                f"it declares a string of {length} bytes at byte {self._at - 8}; at most {most} are"
                f" read, and {self._limit - self._at} are left"
            )
        begin, self._at = self._at, self._at + length
        try:
            return self._data[begin : self._at].decode()
        except UnicodeDecodeError as error:
            raise self._error(f"the string at byte {begin} is not UTF-8") from error

    def _value(self, type: int, key: str) -> Value:
        if type == _STRING:
            return self._text(MAX_STRING)
        if type == _ARRAY:
            return self._array(key)
        if type not in _SCALARS:
            raise self._error(f"{key} has the unknown type {type}")
        if type == 7:  # a bool is any byte
            return bool(self._scalar(_SCALARS[0]))
        value: int | float = self._scalar(_SCALARS[type])
        return value

    def _array(self, key: str) -> GgufArray:
        type = self._scalar(_U32)
        if type != _STRING and type not in _SCALARS:
            raise self._error(f"{key} is an array of the unknown type {type}")
        size = 8 if type == _STRING else _SCALARS[type].size
        count, begin = self._count(f"items of {key}", MAX_ITEMS, size), self._at
        if type != _STRING:
            self._at += count * size
            return GgufArray(type, count, begin)
        at, limit, data, read = begin, self._limit, self._data, _U64.unpack_from
        for _ in range(count):
            at = at + 8 + read(data, at)[0] if at + 8 <= limit else limit + 1
            if at > limit:
                raise self._error(f"a string of {key} goes beyond the header's {limit} bytes")
        self._at = at
        return GgufArray(type, count, begin)

    def _tensor(self) -> tuple[str, GgufKind, tuple[int, ...], int]:
        name = self._text(MAX_KEY)
        dims = self._scalar(_U32)
        if dims > 4:
            raise self._error(f"tensor {name} has {dims} dimensions; at most 4 are read")
        sizes = [self._scalar(_U64) for _ in range(dims)]
        number, offset = self._scalar(_U32), self._scalar(_U64)
        if number not in KINDS:
            raise self._error(f"tensor {name} has the unknown type {number}")
        return name, KINDS[number], tuple(reversed(sizes)), offset

    def _placed(
        self, name: str, kind: GgufKind, shape: tuple[int, ...], offset: int, base: int, align: int
    ) -> Tensor:
        row = shape[-1] if shape else 1
        if row % kind.block:
            raise self._error(
                f"tensor {name} has rows of {row} values; {kind.name} stores {kind.block} at a time"
            )
        begin, bytes_ = base + offset, math.prod(shape) // kind.block * kind.size
        if offset % align or begin + bytes_ > max(self._size, base):
            raise self._error(
                f"tensor {name} of shape {list(shape)} and type {kind.name} needs {bytes_} bytes at"
                f" offset {offset}; the file has {max(self._size - base, 0)} bytes of data, aligned"
                f" to {align}"
            )
        return Tensor(self._path, kind, shape, begin, begin + bytes_)


def read_shards(path: Path) -> list[Gguf]:
    """The file and those it is continued in (``name-00001-of-00003.gguf``); the first has the
    metadata. Raises ValueError where one is missing, leaves the directory or is another model's."""
    from sglang.srt.files.location import inside

    first = Gguf(path)
    count = first.values.get("split.count", 1)
    if count in (0, 1):
        return [first]
    name = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if not isinstance(count, int) or not 0 < count <= MAX_SHARDS:
        raise first.error("split.count", f"it must be a number of files up to {MAX_SHARDS}.")
    if name is None or int(name[3]) != count or first.values.get("split.no") != 0:
        raise first.error(
            "split.count", f"the first file is called name-00001-of-{count:05}.gguf; give its path."
        )
    files = [first]
    for number in range(1, count):
        shard = f"{name[1]}-{number + 1:05}-of-{count:05}.gguf"
        file = Gguf(inside(path.parent, shard))
        if file.values.get("split.no") != number or file.values.get("split.count") != count:
            raise file.error("split.no", f"by its name it must be {number} of {count}.")
        files.append(file)
    seen: set[str] = set()
    for file in files:
        if twice := seen & file.tensors.keys():
            raise ValueError(f"{file.path}: tensor {min(twice)} is in another file of the model.")
        seen |= file.tensors.keys()
    total = first.values.get("split.tensors.count")
    if total is not None and total != len(seen):
        raise first.error("split.tensors.count", f"the files hold {len(seen)}.")
    return files


# Files name one end token; chat models stop at others too, which are known by their text.
_NAMES = frozenset({
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<EOT>", "_<EOT>", "<|return|>", "<|call|>",
})  # fmt: skip
_CONTROL = 3


def endings(file: Gguf) -> tuple[int, ...]:
    """Ids of the tokens that end a text. Raises ValueError for an id that is none of its tokens."""
    tokens = file.array("tokenizer.ggml.tokens", strings=True) or []
    types = file.array("tokenizer.ggml.token_type", strings=False) or []
    found = []
    for role in ("eos", "eot", "eom"):
        key = f"tokenizer.ggml.{role}_token_id"
        token = file.values.get(key)
        if token is not None:
            if type(token) is not int or not 0 <= token < len(tokens):
                raise file.error(key, f"ids must be integers in [0, {len(tokens)}).")
            found.append(token)
    named = [i for i, (t, k) in enumerate(zip(tokens, types)) if k == _CONTROL and t in _NAMES]
    return tuple(dict.fromkeys(found + named))
