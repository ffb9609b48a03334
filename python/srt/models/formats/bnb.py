"""bitsandbytes: int8 (Dettmers et al. 2022, "LLM.int8()") and 4 bits (Dettmers et al. 2023,
"QLoRA").

8 bits:
    weight  int8 [n, k]       SCB  float32 [n]: the largest magnitude of each row
    W[i, j] = weight[i, j] * SCB[i] / 127
    The threshold for outliers is about activations, which stay as they are here: all inputs are
    treated as outliers are there.
4 bits, ``nf4`` and ``fp4``:
    weight                 uint8: two codes a byte, the first in the upper half, row after row
    weight.quant_map       float32 [16]: what the codes stand for
    weight.absmax          float32: the scale of every block of ``blocksize`` weights; or uint8 and
    weight.nested_absmax,
    weight.nested_quant_map  the same once more for these scales, shifted by ``nested_offset``
    weight.quant_state.*   uint8: JSON with the sizes
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
from sglang.srt.layers.quantised import Quantised
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.formats.quantised_files import Module, QuantisedCheckpoint, QuantisedFiles
from sglang.srt.numeric.host_arrays import Array

STATE = ".quant_state.bitsandbytes__"
MAX_STATE_BYTES = 1 << 16


@dataclass(frozen=True)
class Int8Module:
    name: str
    parts: tuple[str, ...]
    shape: tuple[int, int]
    bits: int = 8

    def quantised(self, files: QuantisedFiles) -> Quantised:
        n, k = self.shape
        scales = files.read(f"{self.name}.SCB").astype(np.float32).reshape(n, 1) / np.float32(127)
        # A copy: the file's pages may go before it does.
        return Quantised(8, files.read(f"{self.name}.weight").copy(), scales, k)

    def dense(self, files: QuantisedFiles) -> Array:
        return self.quantised(files).dense()


def _int8(files: QuantisedFiles, name: str) -> Int8Module:
    n, k = files.need(f"{name}.weight", ("I8",), -1, -1).shape
    files.need(f"{name}.SCB", ("F32",), n)
    parts = [f"{name}.weight", f"{name}.SCB"]
    layout = f"{name}.weight_format"
    if layout in files.entries:
        files.need(layout, ("U8",))
        if int(files.read(layout)):
            raise ValueError(f"{files.plain.source}: {layout} is not 0 (rows), which is supported.")
        parts.append(layout)
    return Int8Module(name, tuple(parts), (n, k))


@dataclass(frozen=True)
class CodeModule:
    """4 bits. ``nested``: block size and offset of the scales' own quantisation."""

    name: str
    parts: tuple[str, ...]
    shape: tuple[int, ...]
    block: int
    nested: tuple[int, float] | None
    bits: int = 0

    def quantised(self, files: QuantisedFiles) -> None:
        return None

    def dense(self, files: QuantisedFiles) -> Array:
        weight = f"{self.name}.weight"
        scales = files.read(f"{weight}.absmax").reshape(-1)
        if self.nested is not None:
            block, offset = self.nested
            coarse = np.repeat(files.read(f"{weight}.nested_absmax"), block)[: len(scales)]
            scales = files.read(f"{weight}.nested_quant_map")[scales] * coarse
            scales += np.float32(offset)
        codes = files.read(weight).reshape(-1)
        table = files.read(f"{weight}.quant_map")
        values = table[np.stack([codes >> 4, codes & 15], 1).reshape(-1)]
        count = math.prod(self.shape)
        found: Array = (values[:count] * np.repeat(scales, self.block)[:count]).reshape(self.shape)
        return found


def _state(files: QuantisedFiles, name: str) -> tuple[Fields, str]:
    """The JSON beside a weight, and its tensor's name."""
    found = [n for n in files.entries if n.startswith(f"{name}.weight{STATE}")]
    if len(found) != 1:
        raise ValueError(f"{files.plain.source} lacks tensor {name}.weight{STATE}nf4.")
    entry = files.need(found[0], ("U8",), -1)
    if entry.shape[0] > MAX_STATE_BYTES:
        raise ValueError(f"{entry.file}: {found[0]} has {entry.shape[0]} bytes.")
    try:
        values = json.loads(bytes(files.read(found[0]).tolist()))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{entry.file}: {found[0]} is not valid JSON: {error}.") from error
    if not isinstance(values, dict):
        raise ValueError(f"{entry.file}: {found[0]} does not hold a JSON object.")
    return Fields(values, f"{entry.file}: {found[0]}"), found[0]


def _code(files: QuantisedFiles, name: str) -> CodeModule:
    weight = f"{name}.weight"
    state, state_name = _state(files, name)
    shape = state.values.get("shape")
    sizes = isinstance(shape, list) and all(type(n) is int and 0 < n < 1 << 31 for n in shape)
    if not isinstance(shape, list) or not sizes or not 1 <= len(shape) <= 3:
        raise state.error("shape", "it must list positive integers.")
    count = math.prod(shape)
    found = files.entries[weight]
    files.need(weight, ("U8",), *(-1 for _ in found.shape))
    if math.prod(found.shape) != -(-count // 2):
        raise state.error("shape", f"{weight} has {math.prod(found.shape)} bytes.")
    block = state.int("blocksize")
    blocks = -(-count // block)
    parts = [weight, state_name, f"{weight}.quant_map", f"{weight}.absmax"]
    files.need(parts[2], ("F32",), 16)
    nested = None
    if state.has("nested_blocksize"):
        nested = state.int("nested_blocksize"), state.float("nested_offset", 0.0, low=-1e30)
        files.need(parts[3], ("U8",), blocks)
        parts += [f"{weight}.nested_absmax", f"{weight}.nested_quant_map"]
        files.need(parts[4], ("F32",), -(-blocks // nested[0]))
        files.need(parts[5], ("F32",), 256)
    else:
        files.need(parts[3], ("F32",), blocks)
    return CodeModule(name, tuple(parts), tuple(shape), block, nested)


def open_bitsandbytes(files: QuantisedFiles, config: Fields) -> QuantisedCheckpoint:
    four = config.flag("load_in_4bit") or config.flag("_load_in_4bit")
    if not four and not (config.flag("load_in_8bit") or config.flag("_load_in_8bit")):
        raise config.error("load_in_8bit", "one of load_in_8bit and load_in_4bit must be true.")
    modules: dict[str, Module] = {}
    if four:
        for name in files.ending(".weight.absmax"):
            files.need(f"{name}.weight", ("U8",), *(-1 for _ in _shape_of(files, name)))
            modules[f"{name}.weight"] = _code(files, name)
        kind = config.text("bnb_4bit_quant_type", "nf4")
        return QuantisedCheckpoint("bitsandbytes", files, modules, title=f"bitsandbytes, {kind}")
    for name in files.ending(".SCB"):
        modules[f"{name}.weight"] = _int8(files, name)
    return QuantisedCheckpoint("bitsandbytes", files, modules, title="bitsandbytes, int8")


def _shape_of(files: QuantisedFiles, name: str) -> tuple[int, ...]:
    entry = files.entries.get(f"{name}.weight")
    return () if entry is None else entry.shape
