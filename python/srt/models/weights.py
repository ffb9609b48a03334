"""Weights: safetensors files, every declared size checked before a byte of tensor data is used.

A file is an 8-byte little-endian length, a JSON header of that length and the data that the header
describes. Files may come from anywhere: nothing a header claims is believed, and no path that an
index names leaves its directory.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from srt.layers.weight import Slots
from srt.models.config import read_json

MAX_HEADER_BYTES = 100_000_000
INDEX = "model.safetensors.index.json"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
# Known to the format, so that their sizes can be checked; of no use as weights here.
OTHER_SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "I32": 4,
    "U32": 4, "I64": 8, "U64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: bytes ``[begin, end)`` of the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, Entry]:
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


def _entry(path: Path, name: str, item: Any, base: int, size: int) -> Entry:
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
    return Entry(path, dtype, tuple(shape), base + begin, base + end)


def read_checkpoint(directory: Path) -> dict[str, Entry]:
    """Every tensor of a model directory, sharded or not. Only headers are read.

    Raises ValueError where a shard is missing, leaves the directory or disagrees with the index.
    """
    index = directory / INDEX
    if not index.exists():
        return read_header(_inside(directory, _only_file(directory)))
    places = read_json(index).fields("weight_map").values
    if not places:
        raise ValueError(f"{index}: weight_map is missing or empty.")
    entries: dict[str, Entry] = {}
    for name, file in places.items():
        if not isinstance(file, str):
            raise ValueError(f"{index}: the file of tensor {name} is {file!r}, not a string.")
    for file in dict.fromkeys(places.values()):
        for name, entry in read_header(_inside(directory, file)).items():
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


def _inside(directory: Path, name: str) -> Path:
    """The file ``name`` of the directory. Raises ValueError where it lies outside.

    The hub's cache is the one layout whose links may leave: ``snapshots/<commit>/`` links to
    ``blobs/`` beside it.
    """
    path, root = directory / name, directory.resolve()
    real = path.resolve()
    roots = [root]
    if root.parent.name == "snapshots":
        roots.append(root.parent.parent / "blobs")
    lexical = os.path.normpath(path)
    if os.path.commonpath([os.path.normpath(directory), lexical]) != os.path.normpath(
        directory
    ) or (not any(real.is_relative_to(r) for r in roots)):
        raise ValueError(f"{path} leads to {real}, outside the model directory {root}.")
    if not path.is_file():
        raise ValueError(f"{path} is missing.")
    return path


def match(
    slots: Slots, entries: Mapping[str, Entry], ignores: Callable[[str], bool], source: Path
) -> None:
    """Raise ValueError unless the checkpoint holds exactly the tensors that the model needs.

    ``slots`` may be those of a model on the meta device: nothing is allocated or read.
    """
    missing = sorted(slots.keys() - entries.keys())
    if missing:
        raise ValueError(f"{source} lacks {_some(missing)}, which the model needs.")
    unexpected = sorted(n for n in entries.keys() - slots.keys() if not ignores(n))
    if unexpected:
        raise ValueError(
            f"{source} has {_some(unexpected)}, which its architecture does not know; "
            f"loading without would give wrong answers."
        )
    for name, slot in slots.items():
        entry = entries[name]
        if entry.shape != slot.shape:
            raise ValueError(
                f"{entry.file}: tensor {name} has shape {list(entry.shape)}; config.json asks for "
                f"{list(slot.shape)}."
            )
        if entry.dtype not in DTYPES:
            raise ValueError(
                f"{entry.file}: tensor {name} has dtype {entry.dtype}; weights must be one of "
                f"{', '.join(DTYPES)}."
            )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensor{'s' if len(names) > 1 else ''} {', '.join(names[:3])}{more}"


def load(
    slots: Slots,
    entries: Mapping[str, Entry],
    show: bool = True,
    filled: Callable[[Tensor], None] | None = None,
) -> None:
    """Fill every slot, file by file, reading only what is needed. To be called after ``match``.

    Takes the slots out of ``slots`` as it goes, and calls ``filled`` with the last view of each
    weight once all of it is there: who packs it may then free it.
    """
    watch = _Watch(slots, filled)
    files: dict[Path, list[str]] = {}
    for name in slots:
        files.setdefault(entries[name].file, []).append(name)
    total = sum(entries[name].end - entries[name].begin for name in slots)
    with _progress(total, "loading weights", show) as bar:
        for path, names in files.items():
            with path.open("rb") as file:
                # A private mapping: pages come in when read, and stay writable for torch's sake.
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            for name in sorted(names, key=lambda n: entries[n].begin):
                entry = entries[name]
                slots[name].load(_view(data, entry))
                _forget(data, entry)
                watch.done(name)
                bar.update(entry.end - entry.begin)


class _Watch:
    """Tells when all slots of one weight are filled."""

    def __init__(self, slots: Slots, filled: Callable[[Tensor], None] | None) -> None:
        self._slots, self._filled = slots, filled
        self._left = Counter(_storage(slot.target) for slot in slots.values())

    def done(self, name: str) -> None:
        target = self._slots.pop(name).target
        key = _storage(target)
        self._left[key] -= 1
        if self._filled is not None and not self._left[key]:
            self._filled(target)


def _storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _forget(data: mmap.mmap, entry: Entry) -> None:
    """Give back the pages that have been read: they would count as this process's memory."""
    begin = entry.begin // mmap.PAGESIZE * mmap.PAGESIZE
    if hasattr(data, "madvise") and entry.end > begin:
        data.madvise(mmap.MADV_DONTNEED, begin, entry.end - begin)


def _view(data: mmap.mmap, entry: Entry) -> Tensor:
    dtype = DTYPES[entry.dtype]
    count = math.prod(entry.shape)
    if count == 0:
        return torch.empty(entry.shape, dtype=dtype)
    if entry.begin % dtype.itemsize:  # the format aligns data to 8 bytes, but does not insist
        raw = bytearray(data[entry.begin : entry.end])
        return torch.frombuffer(raw, dtype=dtype).view(entry.shape)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=entry.begin).view(entry.shape)


def randomise(
    slots: Slots, seed: int, show: bool = True, filled: Callable[[Tensor], None] | None = None
) -> None:
    """Dummy weights: a function of the seed and each tensor's name, never zeros. Takes the slots
    and calls ``filled`` as ``load`` does."""
    watch = _Watch(slots, filled)
    with _progress(len(slots), "drawing weights", show, unit="tensor") as bar:
        for name in list(slots):
            slot = slots[name]
            generator = torch.Generator(slot.target.device)
            # 32 bits are all that the generator reads of a seed.
            generator.manual_seed(zlib.crc32(f"{seed}:{name}".encode()))
            slot.randomise(generator)
            del slot
            watch.done(name)
            bar.update(1)


def _progress(total: int, title: str, show: bool, unit: str = "B") -> Any:
    return tqdm(
        total=total, desc=title, unit=unit, unit_scale=unit == "B", file=sys.stderr,
        disable=None if show else True, leave=False,  # None: shown on terminals only
    )  # fmt: skip
