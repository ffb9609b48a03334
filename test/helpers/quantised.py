"""Small quantised checkpoints, made by the definitions of their formats, one number at a time where
that shows them best; and the weights that they stand for.

A maker takes a matrix [n, k] in float64 and a generator, and returns the tensors of a module by
their endings and the matrix that they stand for, in float64.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
Maker = Callable[[Tensor, torch.Generator], tuple[Tensors, Tensor]]


class Format(NamedTuple):
    """``config``: the quantization_config. ``bound``: of the largest difference of logits on native
    kernels in bfloat16, relative to the largest logit."""

    make: Maker
    config: dict[str, Any]
    bits: int = 0  # kept by native kernels
    bound: float = 0.02


def words(fields: Tensor, bits: int) -> Tensor:
    """Unsigned [..., m] -> int32 [..., ceil(m * bits / 32)], a stream of bits, lowest first."""
    flat = fields.reshape(-1, fields.shape[-1]).numpy().astype(np.uint64)
    count = -(-flat.shape[1] * bits // 32)
    out = np.zeros((len(flat), count + 1), dtype=np.uint64)
    for i in range(flat.shape[1]):
        word, shift = divmod(i * bits, 32)
        value = flat[:, i] << np.uint64(shift)
        out[:, word] |= value & np.uint64(0xFFFFFFFF)
        out[:, word + 1] |= value >> np.uint64(32)
    signed = out[:, :count].astype(np.uint32).view(np.int32)
    return torch.from_numpy(signed.copy()).view(*fields.shape[:-1], count)


def affine(
    weight: Tensor, groups: Tensor, count: int, bits: int, symmetric: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Unsigned values [n, k], scales and zeros [n, count]; ``groups`` [k] of the inputs."""
    top = (1 << bits) - 1
    values = torch.zeros(weight.shape, dtype=torch.int64)
    scales = torch.zeros(len(weight), count, dtype=torch.float64)
    zeros = torch.zeros(len(weight), count, dtype=torch.int64)
    for g in range(count):
        part = weight[:, groups == g]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if symmetric:
            high = part.abs().amax(1)
            low = -high
        scale = ((high - low) / top).to(dtype).double().clamp(min=1e-4).to(dtype).double()
        zero = (-low / scale).round().clamp(0, top)
        if symmetric:
            zero = torch.full_like(zero, (top + 1) // 2)
        scales[:, g], zeros[:, g] = scale, zero.long()
        q = (part / scale[:, None]).round() + zero[:, None]
        values[:, groups == g] = q.clamp(0, top).long()
    return values, scales, zeros


def gptq(bits: int, group: int, act_order: bool, symmetric: bool, v2: bool = False) -> Format:
    def make(weight: Tensor, generator: torch.Generator) -> tuple[Tensors, Tensor]:
        k = weight.shape[1]
        size = k if group < 0 else group
        groups = torch.arange(k) // size
        if act_order:  # a function of the width alone, as it is of a layer's inputs
            groups = groups[torch.randperm(k, generator=torch.Generator().manual_seed(k))]
        count = -(-k // size)
        q, scales, zeros = affine(weight, groups, count, bits, symmetric, torch.float16)
        stored = zeros.clamp(min=1)  # a zero of 0 is not what older releases can write
        dense = scales[:, groups] * (q - stored[:, groups])
        tensors = {
            "qweight": words(q, bits).t().contiguous(),
            "qzeros": words((stored if v2 else stored - 1).t(), bits),
            "scales": scales.t().half().contiguous(),
            "g_idx": groups.int(),
        }
        if not act_order and symmetric:
            del tensors["g_idx"]
        return tensors, dense

    config = {
        "quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order,
        "sym": symmetric, "checkpoint_format": "gptq_v2" if v2 else "gptq",
    }  # fmt: skip
    return Format(make, config, 8 if bits == 8 else 4)


def awq(group: int) -> Format:
    def make(weight: Tensor, generator: torch.Generator) -> tuple[Tensors, Tensor]:
        n, k = weight.shape
        groups = torch.arange(k) // group
        q, scales, zeros = affine(weight, groups, k // group, 4, False, torch.float16)
        dense = scales[:, groups] * (q - zeros[:, groups])

        def packed(x: Tensor) -> Tensor:
            out = np.zeros((len(x), n // 8), dtype=np.int64)
            for column in range(n // 8):
                for i, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
                    out[:, column] |= x[:, column * 8 + output].numpy() << (4 * i)
            return torch.from_numpy(out.astype(np.uint32).view(np.int32).copy())

        tensors = {
            "qweight": packed(q.t()), "qzeros": packed(zeros.t()),
            "scales": scales.t().half().contiguous(),
        }  # fmt: skip
        return tensors, dense

    config = {
        "quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True,
        "version": "gemm",
    }  # fmt: skip
    return Format(make, config, 4)


def compressed(layout: str, activations: dict[str, Any] | None, **weights: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"], "weights": weights, "input_activations": activations,
            }
        },
    }  # fmt: skip


def packed_integers(bits: int, group: int, symmetric: bool, act_order: bool = False) -> Format:
    def make(weight: Tensor, generator: torch.Generator) -> tuple[Tensors, Tensor]:
        n, k = weight.shape
        size = group or k
        groups = torch.arange(k) // size
        if act_order:
            groups = groups[torch.randperm(k, generator=torch.Generator().manual_seed(k))]
        q, scales, zeros = affine(weight, groups, -(-k // size), bits, symmetric, torch.bfloat16)
        tensors = {
            "weight_packed": words(q, bits),  # values + 2^(bits - 1) are the unsigned ones
            "weight_scale": scales.bfloat16(),
            "weight_shape": torch.tensor([n, k]),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words(zeros.t().contiguous(), bits).t().contiguous()
        if act_order:
            tensors["weight_g_idx"] = groups.int()
        return tensors, scales[:, groups] * (q - zeros[:, groups])

    strategy = "group" if group else "channel"
    config = compressed(
        "pack-quantized", None, num_bits=bits, type="int", symmetric=symmetric, strategy=strategy,
        group_size=group or None, actorder="group" if act_order else None,
    )  # fmt: skip
    return Format(make, config, bits)


def int8(dynamic: bool) -> Format:
    def make(weight: Tensor, generator: torch.Generator) -> tuple[Tensors, Tensor]:
        scale = (weight.abs().amax(1, keepdim=True) / 127.5).bfloat16().double()
        q = (weight / scale).round().clamp(-128, 127)
        tensors = {"weight": q.to(torch.int8), "weight_scale": scale.bfloat16()}
        if not dynamic:
            tensors["input_scale"] = torch.tensor([0.02])
        return tensors, q * scale

    activations = {
        "num_bits": 8, "type": "int", "dynamic": dynamic, "strategy": "token", "symmetric": True,
    }  # fmt: skip
    config = compressed(
        "int-quantized", activations, num_bits=8, type="int", symmetric=True, strategy="channel"
    )
    return Format(make, config, 8, bound=0.05)


def float8(strategy: str, block: int = 0, deepseek: bool = False) -> Format:
    def make(weight: Tensor, generator: torch.Generator) -> tuple[Tensors, Tensor]:
        n, k = weight.shape
        rows = {"tensor": n, "channel": 1, "block": block}[strategy]
        columns = block or k
        scales = torch.zeros(-(-n // rows), -(-k // columns), dtype=torch.float32)
        q = torch.zeros(n, k, dtype=torch.float8_e4m3fn)
        dense = torch.zeros(n, k, dtype=torch.float64)
        for i in range(len(scales)):
            for j in range(scales.shape[1]):
                at = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
                scales[i, j] = weight[at].abs().max() / 448
                part = (weight[at] / scales[i, j].double()).to(torch.float8_e4m3fn)
                q.view(torch.uint8)[at] = part.view(torch.uint8)
                dense[at] = part.double() * scales[i, j].double()
        name = "weight_scale_inv" if deepseek else "weight_scale"
        return {"weight": q, name: scales.view(-1) if strategy == "tensor" else scales}, dense

    dynamic = {"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token"}
    config = compressed(
        "float-quantized", dynamic, num_bits=8, type="float", symmetric=True, strategy=strategy,
        block_structure=[block, block] if block else None,
    )  # fmt: skip
    if deepseek:
        config = {
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [block, block],
        }  # fmt: skip
    return Format(make, config)


def bitsandbytes_8() -> Format:
    def make(weight: Tensor, generator: torch.Generator) -> tuple[Tensors, Tensor]:
        top = weight.abs().amax(1).float()
        q = (weight / top.double()[:, None] * 127).round().to(torch.int8)
        tensors = {"weight": q, "SCB": top, "weight_format": torch.tensor(0, dtype=torch.uint8)}
        return tensors, q.double() * top.double()[:, None] / 127

    config = {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 6.0}
    return Format(make, config, 8)


# The codes of nf4: quantiles of the normal distribution (QLoRA, appendix E).
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip


def bitsandbytes_4(double: bool) -> Format:
    def make(weight: Tensor, generator: torch.Generator) -> tuple[Tensors, Tensor]:
        n, k = weight.shape
        table = torch.tensor(NF4)
        blocks = weight.reshape(-1, 64)
        scales = blocks.abs().amax(1).float()
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32"}
        state["shape"] = [n, k]
        tensors: Tensors = {"weight.absmax": scales}
        if double:
            offset = float(scales.mean())
            coarse_map = torch.linspace(-1, 1, 256)
            rest = torch.zeros(-(-len(scales) // 256) * 256)
            rest[: len(scales)] = scales - offset
            coarse = rest.view(-1, 256).abs().amax(1)
            index = (rest.view(-1, 256) / coarse[:, None]).unsqueeze(-1) - coarse_map
            codes = index.abs().argmin(-1)
            scales = (coarse_map[codes] * coarse[:, None]).view(-1)[: len(scales)] + offset
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
            tensors = {
                "weight.absmax": codes.view(-1)[: len(scales)].to(torch.uint8),
                "weight.nested_absmax": coarse, "weight.nested_quant_map": coarse_map,
            }  # fmt: skip
        codes = ((blocks / scales.double()[:, None]).unsqueeze(-1) - table).abs().argmin(-1)
        flat = codes.view(-1)
        tensors |= {
            "weight": (flat[::2] << 4 | flat[1::2]).to(torch.uint8).unsqueeze(1),
            "weight.quant_map": table,
            "weight.quant_state.bitsandbytes__nf4": torch.tensor(
                list(json.dumps(state).encode()), dtype=torch.uint8
            ),
        }
        dense = table.double()[codes] * scales.double()[:, None]
        return tensors, dense.view(n, k)

    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    return Format(make, config)


FORMATS: dict[str, Format] = {
    "gptq-4": gptq(4, 32, act_order=False, symmetric=True),
    "gptq-4-order": gptq(4, 32, act_order=True, symmetric=False),
    "gptq-8-v2": gptq(8, 64, act_order=False, symmetric=False, v2=True),
    "gptq-3": gptq(3, 32, act_order=False, symmetric=False),
    "gptq-2-row": gptq(2, -1, act_order=False, symmetric=True),
    "awq": awq(32),
    "int4": packed_integers(4, 32, symmetric=True),
    "int4-order": packed_integers(4, 32, symmetric=False, act_order=True),
    "int4-channel": packed_integers(4, 0, symmetric=True),
    "int8-packed": packed_integers(8, 0, symmetric=False),
    "w8a8-dynamic": int8(dynamic=True),
    "w8a8-static": int8(dynamic=False),
    "fp8-tensor": float8("tensor"),
    "fp8-channel": float8("channel"),
    "fp8-block": float8("block", 32),
    "fp8-deepseek": float8("block", 128, deepseek=True),
    "bnb-8": bitsandbytes_8(),
    "bnb-4": bitsandbytes_4(double=False),
    "bnb-4-double": bitsandbytes_4(double=True),
}


@torch.no_grad()
def convert(directory: Path, model: Any, format: Format, seed: int = 0) -> dict[str, Tensor]:
    """Quantise the projections of a saved checkpoint in place; ``model`` gets the weights that they
    stand for. By name, these, in float64."""
    generator = torch.Generator().manual_seed(seed)
    tensors, dense = {}, {}
    for name, weight in load_file(directory / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = weight
            continue
        made, dense[name] = format.make(weight.double(), generator)
        prefix = name.removesuffix("weight")
        tensors |= {prefix + ending: tensor.contiguous() for ending, tensor in made.items()}
    save_file(tensors, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = format.config
    (directory / "config.json").write_text(json.dumps(config))
    weights = dict(model.named_parameters())
    for name, weight in dense.items():
        weights[name].copy_(weight)
    return dense
