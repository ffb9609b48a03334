"""GPTQ (Frantar et al. 2022), as AutoGPTQ and GPTQModel write it.

    qweight  int32 [k * bits / 32, n]: inputs packed into words
    qzeros   int32 [groups, n * bits / 32]: outputs packed into words
    scales   float [groups, n]
    g_idx    int32 [k]: the group of each input; absent, input i is in group i // group_size

    W[i, j] = scales[g, i] * (q[j, i] - zero[g, i])

``checkpoint_format`` "gptq" stores every zero less one; "gptq_v2" stores it as it is. With
``desc_act`` the inputs of a group lie anywhere, and are brought together here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sglang.srt.layers.quantised import Quantised
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.formats.quantised_files import (
    FLOATS,
    QuantisedCheckpoint,
    QuantisedFiles,
    centred,
    unpack,
)
from sglang.srt.numeric.host_arrays import Array

BITS = (2, 3, 4, 8)
LAYOUTS = ("gptq", "gptq_v2")
PARTS = ("qweight", "qzeros", "scales", "g_idx")
# One in every field of a word.
ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}


@dataclass(frozen=True)
class GptqModule:
    name: str
    parts: tuple[str, ...]
    shape: tuple[int, int]  # n, k
    width: int  # bits a value
    group: int
    less_one: bool

    @property
    def bits(self) -> int:
        return 8 if self.width == 8 else 4

    def _zeros(self, files: QuantisedFiles) -> Array:
        """float32 [n, groups], in the units of centred values."""
        words = files.read(f"{self.name}.qzeros")
        if self.less_one and self.width in ONES:
            # Added to whole words, as it was taken off: a zero of 0 borrowed from its neighbour.
            words = (words.astype(np.int64) + ONES[self.width]).astype(np.int32)
        fields = unpack(words, self.width)
        if self.less_one and self.width not in ONES:
            fields = (fields + 1) & ((1 << self.width) - 1)
        found: Array = centred(fields, self.width).T.astype(np.float32)
        return found

    def quantised(self, files: QuantisedFiles) -> Quantised | None:
        k = self.shape[1]
        groups = self._groups(files)
        order = None
        if groups is not None:
            order = groups.argsort(kind="stable")
            if not np.array_equal(groups[order], np.arange(k) // self.group):
                return None  # groups of other sizes than the configuration says
        fields = unpack(files.read(f"{self.name}.qweight").T, self.width)
        values = centred(fields, self.width)
        if order is not None:
            values = values[:, order]
        return Quantised(
            self.bits, values, self._scales(files), self.group, self._zeros(files), order=order
        )

    def dense(self, files: QuantisedFiles) -> Array:
        q = self.quantised(files)
        if q is not None:
            return q.dense()
        groups = self._groups(files)
        values = centred(unpack(files.read(f"{self.name}.qweight").T, self.width), self.width)
        return (values.astype(np.float32) - self._zeros(files)[:, groups]) * self._scales(files)[
            :, groups
        ]

    def _scales(self, files: QuantisedFiles) -> Array:
        found: Array = files.read(f"{self.name}.scales").T.astype(np.float32)
        return found

    def _groups(self, files: QuantisedFiles) -> Array | None:
        """The group of each input where that is not input // group. Raises ValueError."""
        name = f"{self.name}.g_idx"
        if name not in self.parts:
            return None
        groups = files.groups(name, files.entries[f"{self.name}.scales"].shape[0])
        usual = np.arange(len(groups)) // self.group
        return None if np.array_equal(groups, usual) else groups


def _module(
    files: QuantisedFiles, name: str, bits: int, group_size: int, less_one: bool
) -> GptqModule:
    rows, n = files.need(f"{name}.qweight", ("I32",), -1, -1).shape
    indexed = f"{name}.g_idx" in files.entries
    if indexed:
        # The number of inputs, and so the bits: modules may differ in them ("dynamic").
        k = files.need(f"{name}.g_idx", ("I32", "I64"), -1).shape[0]
        bits = rows * 32 // k if rows * 32 % k == 0 else 0
    if bits not in BITS or rows * 32 % bits or n * bits % 32:
        raise ValueError(
            f"{files.entries[f'{name}.qweight'].file}: tensor {name}.qweight [{rows}, {n}] does "
            f"not hold values of {', '.join(map(str, BITS))} bits."
        )
    k = rows * 32 // bits
    group = k if group_size < 0 else min(group_size, k)
    count = -(-k // group)
    files.need(f"{name}.scales", FLOATS, count, n)
    files.need(f"{name}.qzeros", ("I32",), count, n * bits // 32)
    parts = tuple(f"{name}.{part}" for part in (PARTS if indexed else PARTS[:3]))
    return GptqModule(name, parts, (n, k), bits, group, less_one)


def open_gptq(files: QuantisedFiles, config: Fields) -> QuantisedCheckpoint:
    bits = config.int("bits")
    if bits not in BITS:
        raise config.error("bits", f"supported are {', '.join(map(str, BITS))}.")
    group_size = config.int("group_size", 128, low=-1)
    if group_size == 0:
        raise config.error("group_size", "it must be -1 (one group) or at least 1.")
    config.flag("desc_act")
    layout = config.text("checkpoint_format", "gptq") or "gptq"
    if layout not in LAYOUTS:
        raise config.error("checkpoint_format", f"supported are {', '.join(LAYOUTS)}.")
    if config.text("pack_dtype", "int32") != "int32":
        raise config.error("pack_dtype", "supported is int32.")
    modules = {
        f"{name}.weight": _module(files, name, bits, group_size, layout == "gptq")
        for name in files.ending(".qweight")
    }
    # Older tools write a bias of zeros beside every matrix.
    idle = [f"{m.name}.bias" for m in modules.values() if f"{m.name}.bias" in files.entries]
    groups = "one group" if group_size < 0 else f"groups of {group_size}"
    return QuantisedCheckpoint(
        "gptq", files, modules, idle=idle, title=f"GPTQ, {bits} bits, {groups}"
    )
