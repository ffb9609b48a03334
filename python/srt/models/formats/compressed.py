"""compressed-tensors, as llm-compressor writes it.

pack-quantized (integers of 4 or 8 bits):
    weight_packed      int32 [n, ceil(k * bits / 32)]: inputs packed into words, each value plus
                       2^(bits - 1)
    weight_scale       float [n, groups]
    weight_zero_point  int32 [ceil(n * bits / 32), groups], outputs packed likewise, or int8 [n,
                       groups]; absent where the scheme is symmetric
    weight_shape       int64 [2]: n, k
    weight_g_idx       int32 [k]: the group of each input, where they lie anywhere ("actorder")
int-quantized (8 bits):
    weight int8 [n, k], weight_scale float [n, 1] or [n, groups] or [1], weight_zero_point int8
float-quantized: ``float8``.

    W[i, j] = scale[i, g] * (q[i, j] - zero[i, g])

The tensors show which modules are quantised, and how; the configuration's targets and ``ignore``
list say the same in patterns. Activations: of int8 weights for which the scheme has int8
activations they may be quantised too, always as they come; a checkpoint's own scales for them (and
for keys and values) are not needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sglang.srt.layers.quantised import Quantised
from sglang.srt.models.config_fields import Fields
from sglang.srt.models.formats.float8 import float8_module, read_block
from sglang.srt.models.formats.quantised_files import (
    FLOATS,
    Module,
    QuantisedCheckpoint,
    QuantisedFiles,
    centred,
    unpack,
)
from sglang.srt.numeric.host_arrays import Array

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
MIXED = "mixed-precision"  # a format for each group
HIDDEN = (
    "input_scale", "input_zero_point", "output_scale", "output_zero_point", "k_scale", "v_scale",
    "q_scale", "k_zero_point", "v_zero_point",
)  # fmt: skip


@dataclass(frozen=True)
class Scheme:
    """Quantisation of the weights of one config group.

    Attributes:
        group: inputs that share a scale; 0: all of a row or of the tensor.
        block: rows and columns that share one, None where they come otherwise.
    """

    kind: str  # "int" or "float"
    bits: int
    group: int
    block: tuple[int, int] | None
    int8_activations: bool
    float8_activations: bool = False


@dataclass(frozen=True)
class IntegerModule:
    name: str
    parts: tuple[str, ...]
    shape: tuple[int, int]
    bits: int
    group: int
    int8_activations: bool = False

    def quantised(self, files: QuantisedFiles) -> Quantised | None:
        groups = self._groups(files)
        values, order = self._values(files), None
        if groups is not None:
            order = groups.argsort(kind="stable")
            if not np.array_equal(groups[order], np.arange(self.shape[1]) // self.group):
                return None
            values = values[:, order]
        return Quantised(
            self.bits, values, self._scales(files), self.group, self._zeros(files), order=order,
            int8_activations=self.int8_activations,
        )  # fmt: skip

    def dense(self, files: QuantisedFiles) -> Array:
        q = self.quantised(files)
        if q is not None:
            return q.dense()
        groups, zeros = self._groups(files), self._zeros(files)
        values = self._values(files).astype(np.float32)
        if zeros is not None:
            values -= zeros[:, groups]
        return values * self._scales(files)[:, groups]

    def _values(self, files: QuantisedFiles) -> Array:
        k = self.shape[1]
        if self.parts[0].endswith(".weight"):
            # A copy: the file's pages may go before it does.
            found: Array = files.read(self.parts[0]).copy()
            return found
        return centred(unpack(files.read(self.parts[0]), self.bits)[:, :k], self.bits)

    def _scales(self, files: QuantisedFiles) -> Array:
        n = self.shape[0]
        scale = files.read(f"{self.name}.weight_scale").astype(np.float32)
        return _by_row(scale, n)

    def _zeros(self, files: QuantisedFiles) -> Array | None:
        name, n = f"{self.name}.weight_zero_point", self.shape[0]
        if name not in self.parts:
            return None
        zeros = files.read(name)
        if zeros.dtype == np.int32:
            zeros = centred(unpack(zeros.T, self.bits)[:, :n], self.bits).T
        zeros = zeros.astype(np.float32)
        return _by_row(zeros, n)

    def _groups(self, files: QuantisedFiles) -> Array | None:
        name = f"{self.name}.weight_g_idx"
        if name not in self.parts:
            return None
        return files.groups(name, self._scales(files).shape[1])


def _by_row(x: Array, rows: int) -> Array:
    """[rows, groups] of one number, or of one for each row and group."""
    return np.full((rows, 1), x.item(), np.float32) if x.size == 1 else x.reshape(rows, -1)


def _integers(files: QuantisedFiles, name: str, scheme: Scheme, packed: bool) -> IntegerModule:
    if packed:
        n, k = _shape(files, name, scheme.bits)
        parts = [f"{name}.weight_packed", f"{name}.weight_shape"]
    else:
        n, k = files.need(f"{name}.weight", ("I8",), -1, -1).shape
        parts = [f"{name}.weight"]
    group = min(scheme.group or k, k)
    count = -(-k // group)
    scale, zero, index = (f"{name}.weight_{x}" for x in ("scale", "zero_point", "g_idx"))
    single = files.entries[scale].shape if scale in files.entries else ()
    one = count == 1 and single in ((), (1,), (1, 1), (n,))
    shape = single if one else (n, count)
    files.need(scale, FLOATS, *shape)
    parts.append(scale)
    if zero in files.entries:
        if files.entries[zero].dtype == "I32":
            files.need(zero, ("I32",), -(-n * scheme.bits // 32), count)
        else:
            files.need(zero, ("I8",), *shape)
        parts.append(zero)
    if index in files.entries:
        files.need(index, ("I32", "I64"), k)
        parts.append(index)
    return IntegerModule(name, tuple(parts), (n, k), scheme.bits, group, scheme.int8_activations)


def _shape(files: QuantisedFiles, name: str, bits: int) -> tuple[int, int]:
    """The shape in ``weight_shape``, which the packed tensor must be able to hold."""
    entry = files.need(f"{name}.weight_packed", ("I32",), -1, -1)
    files.need(f"{name}.weight_shape", ("I64",), 2)
    n, k = files.read(f"{name}.weight_shape").tolist()
    if n != entry.shape[0] or k < 1 or -(-k * bits // 32) != entry.shape[1]:
        raise ValueError(
            f"{entry.file}: {name}.weight_shape is [{n}, {k}], which {name}.weight_packed "
            f"{list(entry.shape)} does not hold in {bits} bits."
        )
    return n, k


def _scheme(group: Fields) -> Scheme:
    weights = group.fields("weights")
    kind, bits = weights.text("type", "int"), weights.int("num_bits", 8)
    if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8)):
        raise weights.error("num_bits", f"({kind}) supported are int 4, int 8 and float 8.")
    strategy = weights.text("strategy")
    size = weights.values.get("group_size")
    if not strategy:
        strategy = "tensor" if size is None else "channel" if size == -1 else "group"
    if strategy not in ("tensor", "channel", "group", "block"):
        raise weights.error("strategy", "supported are tensor, channel, group and block.")
    if strategy == "block" and kind != "float":
        raise weights.error("strategy", "blocks are supported of floats.")
    block = read_block(weights, "block_structure") if strategy == "block" else None
    if strategy == "block" and block is None:
        raise weights.error("block_structure", "a strategy of blocks needs it.")
    if strategy == "group" and kind == "float":
        raise weights.error("strategy", "groups are supported of integers.")
    width = weights.int("group_size") if strategy == "group" else 0
    inputs = group.fields("input_activations")
    int8 = bool(inputs.values) and inputs.text("type", "int") == "int"
    if int8 and inputs.int("num_bits", 8) != 8:
        raise inputs.error("num_bits", "activations of 8 bits are supported.")
    float8 = bool(inputs.values) and inputs.text("type", "int") == "float"
    return Scheme(kind, bits, width, block, int8 and bits == 8, float8)


def _schemes(config: Fields) -> list[Scheme]:
    groups = config.fields("config_groups")
    if not groups.values:
        raise config.error("config_groups", "at least one is needed.")
    schemes = []
    for name in groups.values:
        group = groups.fields(name)
        if group.has("format") and group.text("format") not in FORMATS:
            raise group.error("format", f"supported are {', '.join(FORMATS)}.")
        schemes.append(_scheme(group))
    return schemes


def _pick(files: QuantisedFiles, name: str, tensor: str, schemes: list[Scheme]) -> Module:
    """The module by the first scheme that its tensors fit. Raises the first one's ValueError."""
    problem: ValueError | None = None
    for scheme in schemes:
        try:
            if scheme.kind == "float":
                float8 = scheme.float8_activations
                return float8_module(files, name, "weight_scale", scheme.block, float8)
            return _integers(files, name, scheme, tensor == "weight_packed")
        except ValueError as error:
            problem = problem or error
    what = f"{name}.{tensor} ({files.entries[f'{name}.{tensor}'].dtype})"
    raise problem or ValueError(
        f"{files.plain.source}: no config group of quantization_config is for tensor {what}."
    )


def open_compressed(files: QuantisedFiles, config: Fields) -> QuantisedCheckpoint:
    layout = config.text("format", "")
    if layout not in (*FORMATS, MIXED):
        raise config.error("format", f"supported are {', '.join((*FORMATS, MIXED))}.")
    for key in ("sparsity_config", "transform_config"):
        inner = config.fields(key)
        if inner.values and inner.text("format", "") != "dense":
            raise config.error(key, "sparse and transformed weights are not supported.")
    schemes = _schemes(config)
    modules: dict[str, Module] = {}
    for name in files.ending(".weight_packed"):
        mine = [s for s in schemes if s.kind == "int"]
        modules[f"{name}.weight"] = _pick(files, name, "weight_packed", mine)
    for name in files.ending(".weight"):
        kind = {"I8": "int", "F8_E4M3": "float"}.get(files.entries[f"{name}.weight"].dtype)
        if kind is not None:
            mine = [s for s in schemes if s.kind == kind and s.bits == 8]
            modules[f"{name}.weight"] = _pick(files, name, "weight", mine)
    hidden = [n for n in files.entries if n.rpartition(".")[2] in HIDDEN]
    return QuantisedCheckpoint(
        "compressed-tensors", files, modules, hidden, title=_title(layout, schemes)
    )


def _title(layout: str, schemes: list[Scheme]) -> str:
    told = {
        f"{s.kind}{s.bits}"
        + (f" in groups of {s.group}" if s.group else "")
        + (f" in blocks of {s.block[0]}x{s.block[1]}" if s.block else "")
        + (" with int8 activations" if s.int8_activations else "")
        for s in schemes
    }
    return f"compressed-tensors, {layout}, {', '.join(sorted(told))}"
