"""AWQ (Lin et al. 2023) in AutoAWQ's "gemm" layout.

    qweight  int32 [k, n / 8]: eight outputs in a word
    qzeros   int32 [groups, n / 8]
    scales   float [groups, n]

    W[i, j] = scales[g, i] * (q[j, i] - zero[g, i]),  g = j // group_size

The eight fields of a word, lowest first, are outputs 0, 2, 4, 6, 1, 3, 5, 7.
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

FIELDS = (0, 2, 4, 6, 1, 3, 5, 7)  # the output of each field
PARTS = ("qweight", "qzeros", "scales")


@dataclass(frozen=True)
class AwqModule:
    name: str
    parts: tuple[str, ...]
    shape: tuple[int, int]
    group: int
    bits: int = 4

    def quantised(self, files: QuantisedFiles) -> Quantised:
        values, zeros = (
            centred(_ordered(unpack(files.read(f"{self.name}.{part}"), 4)), 4).T
            for part in ("qweight", "qzeros")
        )
        scales = files.read(f"{self.name}.scales").T.astype(np.float32)
        values = np.ascontiguousarray(values)
        return Quantised(4, values, scales, self.group, zeros.astype(np.float32))

    def dense(self, files: QuantisedFiles) -> Array:
        return self.quantised(files).dense()


def _ordered(fields: Array) -> Array:
    """[m, n] as they are packed -> by output."""
    eights = fields.reshape(*fields.shape[:-1], -1, 8)
    found: Array = eights[..., [FIELDS.index(i) for i in range(8)]].reshape(fields.shape)
    return found


def _module(files: QuantisedFiles, name: str, group_size: int) -> AwqModule:
    k, words = files.need(f"{name}.qweight", ("I32",), -1, -1).shape
    group = k if group_size < 0 else min(group_size, k)
    if k % group:
        raise ValueError(
            f"{files.plain.source}: the {k} inputs of {name} are no multiple of the group_size "
            f"{group_size}."
        )
    files.need(f"{name}.qzeros", ("I32",), k // group, words)
    files.need(f"{name}.scales", FLOATS, k // group, words * 8)
    return AwqModule(name, tuple(f"{name}.{part}" for part in PARTS), (words * 8, k), group)


def open_awq(files: QuantisedFiles, config: Fields) -> QuantisedCheckpoint:
    # quant_config.json, which older releases write, has w_bit and q_group_size.
    if config.int("bits", config.int("w_bit", 4)) != 4:
        raise config.error("bits", "supported is 4.")
    group_size = config.int("group_size", config.int("q_group_size", 128, low=-1), low=-1)
    if group_size == 0:
        raise config.error("group_size", "it must be -1 (one group) or at least 1.")
    if not config.flag("zero_point", True):
        raise config.error("zero_point", "supported is true.")
    if config.text("version", "gemm").lower() != "gemm":
        raise config.error("version", "supported is gemm.")
    modules = {
        f"{name}.weight": _module(files, name, group_size) for name in files.ending(".qweight")
    }
    groups = "one group" if group_size < 0 else f"groups of {group_size}"
    return QuantisedCheckpoint("awq", files, modules, title=f"AWQ, 4 bits, {groups}")
