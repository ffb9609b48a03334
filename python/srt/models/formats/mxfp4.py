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

import torch
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.formats.quantised_files import QuantisedCheckpoint, QuantisedFiles
from torch import Tensor

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def dequantise(blocks: Tensor, scales: Tensor) -> Tensor:
    """uint8 [..., groups, 16] and [..., groups] -> bfloat16 [..., groups * 32]. A scale of 255 is
    NaN."""
    table = torch.tensor([*VALUES, *(-v for v in VALUES)], dtype=torch.bfloat16)
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2)
    exponent = scales.to(torch.int16)
    # The number of this exponent, by its bits; 2^-127 is none of the normal ones.
    power = torch.where(exponent == 0, 1 << 6, exponent << 7).view(torch.bfloat16)
    power = torch.where(scales == 255, torch.nan, power)
    return (table[codes.int()] * power.unsqueeze(-1)).flatten(-2)


@dataclass(frozen=True)
class Mxfp4Module:
    parts: tuple[str, str]
    shape: tuple[int, ...]
    bits: int = 0

    def quantised(self, files: QuantisedFiles) -> None:
        return None

    def dense(self, files: QuantisedFiles) -> Tensor:
        blocks, scales = (files.read(part) for part in self.parts)
        return dequantise(blocks, scales).transpose(-1, -2)


def open_mxfp4(files: QuantisedFiles, config: Fields) -> QuantisedCheckpoint:
    modules = {}
    for name in files.ending("_blocks"):
        parts = (f"{name}_blocks", f"{name}_scales")
        experts, n, groups, _ = files.need(parts[0], ("U8",), -1, -1, -1, 16).shape
        files.need(parts[1], ("U8",), experts, n, groups)
        modules[name] = Mxfp4Module(parts, (experts, groups * 32, n))
    return QuantisedCheckpoint("mxfp4", files, modules, title="MXFP4")
