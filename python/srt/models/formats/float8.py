"""Weights in float8 (e4m3; Micikevicius et al. 2022) with scales of tensors, of rows or of blocks.

    weight            float8 [n, k]
    weight_scale      float [], [1], [n, 1] or [rows of blocks, columns of blocks]
    weight_scale_inv  the same, as DeepSeek-V3 calls it

    W[i, j] = weight[i, j] * scale[i // rows of a block, j // columns of a block]

The products are read in float32, where they are exact for scales of float16 and bfloat16. In
bfloat16, in which models are computed, a scale that is no power of two rounds them. Products in
float8 quantise activations as they come, so a checkpoint's own scales for them are not needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sglang.srt.layers.quantised import Float8
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.formats.quantised_files import FLOATS, QuantisedCheckpoint, QuantisedFiles
from sglang.srt.numeric.host_arrays import Array

SCALES = ("weight_scale_inv", "weight_scale")
SCHEMES = ("dynamic", "static")  # activations are float8
ACTIVATIONS = ("input_scale", "activation_scale", "k_scale", "v_scale", "kv_scale", "output_scale")


@dataclass(frozen=True)
class Float8Module:
    name: str
    parts: tuple[str, str]  # weight and scale
    shape: tuple[int, int]
    block: tuple[int, int]
    activations: bool = False  # may be float8 too
    bits: int = 0

    @property
    def float8_group(self) -> int:
        """See ``models.checkpoint.Checkpoint``."""
        whole = self.block[1] >= self.shape[1]
        return self.block[1] if self.activations and (whole or self.block[1] % 32 == 0) else 0

    def quantised(self, files: QuantisedFiles) -> Float8 | None:
        return self._stored(files) if self.float8_group else None

    def dense(self, files: QuantisedFiles) -> Array:
        return self._stored(files).dense()

    def _stored(self, files: QuantisedFiles) -> Float8:
        n = self.shape[0]
        weight, scale = (files.read(part) for part in self.parts)
        scale = scale.astype(np.float32).reshape(-(-n // self.block[0]), -1)
        scale = np.repeat(scale, self.block[0], axis=0)[:n]
        return Float8(weight.copy(), scale, self.block[1])  # the file's pages may go before it


def float8_module(
    files: QuantisedFiles, name: str, scale: str, block: tuple[int, int] | None, activations: bool
) -> Float8Module:
    """``block``: rows and columns that share a scale; None: as the scale's shape says, for a tensor
    or for rows. ``activations``: the checkpoint was made for those in float8."""
    n, k = files.need(f"{name}.weight", ("F8_E4M3",), -1, -1).shape
    parts = (f"{name}.weight", f"{name}.{scale}")
    if block is not None:
        files.need(parts[1], FLOATS, -(-n // block[0]), -(-k // block[1]))
        return Float8Module(name, parts, (n, k), block, activations)
    found = files.entries.get(parts[1])
    shape = () if found is None else found.shape
    if shape not in ((), (1,), (1, 1)):
        files.need(parts[1], FLOATS, n, *((1,) if len(shape) == 2 else ()))
        return Float8Module(name, parts, (n, k), (1, k), activations)
    files.need(parts[1], FLOATS, *shape)
    return Float8Module(name, parts, (n, k), (n, k), activations)


def read_block(config: Fields, key: str) -> tuple[int, int] | None:
    block = config.values.get(key)
    if block is None:
        return None
    whole = isinstance(block, list) and len(block) == 2 and all(type(n) is int for n in block)
    if not whole or not all(1 <= n < 1 << 20 for n in block):
        raise config.error(key, "it must be two positive integers.")
    return block[0], block[1]


def open_fp8(files: QuantisedFiles, config: Fields) -> QuantisedCheckpoint:
    """``quant_method`` "fp8": DeepSeek's and Qwen's blocks, or scales of whole tensors."""
    if config.text("fmt", "e4m3") != "e4m3":
        raise config.error("fmt", "supported is e4m3.")
    if config.text("scale_fmt", "float") not in ("float", "ue8m0"):
        raise config.error("scale_fmt", "supported are float and ue8m0.")
    block = read_block(config, "weight_block_size")
    modules, activations = {}, config.text("activation_scheme", "dynamic") in SCHEMES
    for name in files.ending(".weight"):
        if files.entries[f"{name}.weight"].dtype == "F8_E4M3":
            scale = next((s for s in SCALES if f"{name}.{s}" in files.entries), SCALES[0])
            modules[f"{name}.weight"] = float8_module(files, name, scale, block, activations)
    hidden = [n for n in files.entries if n.rpartition(".")[2] in ACTIVATIONS]
    scales = f"blocks of {block[0]}x{block[1]}" if block else "a scale a tensor or row"
    return QuantisedCheckpoint("fp8", files, modules, hidden, title=f"float8, {scales}")
