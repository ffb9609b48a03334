"""MXFP4 (OCP Microscaling Formats 1.0, section 5): numbers of e2m1 with a power of two for 32.

Experts of GPT-OSS are stored so:
    gate_up_proj_blocks  uint8 [experts, n, k / 32, 16]: two numbers a byte, the first in the lower
                         half
    gate_up_proj_scales  uint8 [experts, n, k / 32]: exponents, 127 more than they are

They are shown as ``gate_up_proj`` [experts, k, n], as its checkpoints in bfloat16 have them, where
every number is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.formats.quantised_files import QuantisedCheckpoint, QuantisedFiles
from sglang.srt.numeric.host_arrays import BFLOAT16, Array

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def dequantise(blocks: Array, scales: Array) -> Array:
    """uint8 [..., groups, 16] and [..., groups] -> bfloat16 [..., groups * 32]. A scale of 255 is
    NaN."""
    table = np.array([*VALUES, *(-v for v in VALUES)], dtype=np.float64)
    powers = np.ldexp(1.0, np.arange(256) - 127)
    powers[255] = np.nan
    with np.errstate(over="ignore"):  # 6 times the largest power is infinite in bfloat16
        products = np.outer(powers, table).astype(BFLOAT16)
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*scales.shape, 32)
    found = products.reshape(-1)[scales[..., None].astype(np.int32) * 16 + codes]
    return found.reshape(*scales.shape[:-1], -1)


@dataclass(frozen=True)
class Mxfp4Module:
    parts: tuple[str, str]
    shape: tuple[int, ...]
    bits: int = 0

    def quantised(self, files: QuantisedFiles) -> None:
        return None

    def dense(self, files: QuantisedFiles) -> Array:
        blocks, scales = (files.read(part) for part in self.parts)
        return dequantise(blocks, scales).swapaxes(-1, -2)


def open_mxfp4(files: QuantisedFiles, config: Fields) -> QuantisedCheckpoint:
    modules = {}
    for name in files.ending("_blocks"):
        parts = (f"{name}_blocks", f"{name}_scales")
        experts, n, groups, _ = files.need(parts[0], ("U8",), -1, -1, -1, 16).shape
        files.need(parts[1], ("U8",), experts, n, groups)
        modules[name] = Mxfp4Module(parts, (experts, groups * 32, n))
    return QuantisedCheckpoint("mxfp4", files, modules, title="MXFP4")
