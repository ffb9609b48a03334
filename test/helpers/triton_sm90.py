"""Compiles what the wrappers of the Triton kernels launch for sm_90, without a GPU.

    python -m helpers.triton_sm90      one JSON object: case -> list of ``report``

A launch is caught before it reaches a driver; its arguments give the types, what is a multiple of
16 and the constants, just as a launch would derive them. The disassembler is the one that triton
brings.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch
import triton
from sgl_kernel.triton import append, attention, moe, norm, sampling, scaled
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import Sample
from sglang.srt.core.ints import ints as tokens
from sglang.srt.logits import gpu_draw
from sglang.srt.logits.drawing import mask_bytes
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TYPES = {
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32",
    torch.float64: "*fp64", torch.float8_e4m3fn: "*fp8e4nv", torch.int32: "*i32",
    torch.int64: "*i64",
}  # fmt: skip
BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
# nvdisasm gives the instructions without their encoding and data flow: a third of the time of
# cuobjdump -sass.
TOOLS = ((BIN / "cuobjdump", "-res-usage"), (BIN / "nvdisasm", "-c", "-ndf"))


Launch: TypeAlias = tuple[Any, tuple[Any, ...], dict[str, Any], tuple[int, ...]]


def launches(call: Callable[[], object]) -> list[Launch]:
    """(kernel, arguments, keywords, grid) of what ``call`` launches; nothing runs."""
    seen = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        seen.append((self, args, kwargs, grid))

    kept = JITFunction.run
    JITFunction.run = run
    try:
        call()
    finally:
        JITFunction.run = kept
    return seen


def build(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    options = {k: v for k, v in kwargs.items() if k in ("num_warps", "num_stages")}
    kwargs = {k: v for k, v in kwargs.items() if k not in options}
    bound = inspect.signature(kernel.fn).bind(*args, **kwargs).arguments
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        value = bound[parameter.name]
        if parameter.is_constexpr or value is None or (type(value) is int and value == 1):
            kind, constants[parameter.name] = "constexpr", value
        elif isinstance(value, Tensor):
            kind = TYPES[value.dtype]
        else:
            kind = "fp32" if isinstance(value, float) else "i32"
        signature[parameter.name] = kind
        number = value.data_ptr() if isinstance(value, Tensor) else value
        if kind not in ("constexpr", "fp32") and number % 16 == 0:
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def report(kernel: Any) -> dict[str, Any]:
    """Resources by the disassembler, and how often some instructions occur.

    Kept beside what was compiled (TRITON_CACHE_DIR): disassembly takes half a second.
    """
    cubin = kernel.asm["cubin"]
    kept = Path(os.environ["TRITON_CACHE_DIR"]) / f"{hashlib.sha256(cubin).hexdigest()}.json"
    if not kept.exists():
        kept.write_text(json.dumps(disassemble(cubin)))
    found: dict[str, Any] = json.loads(kept.read_text())
    return found | {"kernel": kernel.metadata.name, "shared": kernel.metadata.shared}


def disassemble(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        runs = [
            subprocess.run([*tool, file.name], capture_output=True, text=True, check=True)
            for tool in TOOLS
        ]
    text = "".join(run.stdout + run.stderr for run in runs)
    found = {n.lower(): int(v) for n, v in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    for name, pattern in (
        ("wgmma", "[HQ]GMMA"), ("mma", "HMMA"), ("float8_mma", "QMMA"),
        ("spills", "(?:LDL|STL)"), ("copies", "LDGSTS"),
        ("wide_copies", r"LDGSTS[\w.]*\.128"),
    ):  # fmt: skip
        found[name] = len(re.findall(rf"\b{pattern}\b", text))
    return found


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def ints(*shape: int) -> Tensor:
    return zeros(*shape, dtype=torch.int32)


def floats(*shape: int) -> Tensor:
    return zeros(*shape, dtype=torch.float32)


def pool(
    heads: tuple[int, int, int], dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    q, keys = zeros(64, heads[0], heads[2]), zeros(256, heads[1], heads[2], dtype=dtype)
    return q, keys, torch.zeros_like(keys), ints(256), ints(65)


def work(items: int = 128) -> attention.Work:
    return attention.Work(ints(items, 4), ints(65), items)


def decode(heads: tuple[int, int, int], **options: Any) -> Callable[[], object]:
    return lambda: attention.decode(*pool(heads), ints(64), work(), scale=0.1, **options)


def extend(heads: tuple[int, int, int], block: int, **options: Any) -> Callable[[], object]:
    options = {"block": block, "scale": 0.1} | options
    return lambda: attention.extend(*pool(heads), ints(64), ints(65), ints(8, 2), **options)


def float8() -> None:
    """A layer's keys and values written, a pass of one token a row, and one of many."""
    tensors = pool((32, 8, 128), torch.float8_e4m3fn)
    append.append(zeros(8, 8, 128), zeros(8, 8, 128), tensors[1], tensors[2], ints(8))
    append.rotate_append(
        zeros(8, 48 * 128), zeros(64, 2, 128), ints(8), *tensors[1:3], ints(8), heads=32
    )
    attention.decode(*tensors, ints(64), work(), scale=0.1)
    attention.extend(*tensors, ints(64), ints(65), ints(8, 2), block=64, scale=0.1)


def cascade(block: int) -> Callable[[], object]:
    shared = attention.Shared(ints(2), ints(2), ints(3), ints(64), ints(4, 2), block, 4)
    return decode((32, 8, 128), shared=shared)


def mixture(tokens: int) -> Callable[[], object]:
    return lambda: moe.fused_moe(
        zeros(tokens, 256), zeros(8, 1024, 256), zeros(8, 256, 512), floats(tokens, 2),
        ints(tokens, 2),
    )  # fmt: skip


def sampled(*params: SamplingParams, mask: bool = False) -> Callable[[], object]:
    """The sampling of a step with one row for each of ``params``."""
    bits = b"\xff" * mask_bytes(128256) if mask else None
    rows = [Sample(p, uniform=0.5, history=tokens([5, 5]), mask=bits) for p in params]
    return lambda: gpu_draw.draw(floats(len(rows), 128256), rows)


def products(tokens: int, group: int) -> Callable[[], object]:
    """A product in float8, its activations quantised; parameters of a layer of 4096 inputs."""

    def call() -> None:
        values, groups = torch.float8_e4m3fn, 4096 // group
        scaled.quantise(zeros(tokens, 4096), group)
        scaled.product(
            zeros(tokens, 4096, dtype=values), floats(tokens, groups),
            zeros(6144, 4096, dtype=values), floats(6144, groups), group, torch.bfloat16,
        )  # fmt: skip

    return call


CASES: dict[str, Callable[[], object]] = {
    "scaled blocks few": products(8, 128),
    "scaled blocks many": products(512, 128),
    "scaled rows": products(512, 4096),
    "decode 64": decode((32, 8, 64)),
    "decode 80": decode((32, 32, 80)),
    "decode 128": decode((32, 8, 128)),
    "decode 128 pages": decode((32, 8, 128), page_size=16),
    "decode 256": decode((16, 8, 256)),
    "extend 64": extend((32, 8, 64), 128),
    "extend 96": extend((32, 32, 96), 128),
    "extend 128": extend((32, 8, 128), 128),
    "extend 128 fixed": extend((28, 4, 128), 64),
    "extend 128 options": extend(
        (32, 8, 128), 128, page_size=16, window=512, soft_cap=30.0, sinks=floats(32)
    ),
    "extend 128 tree": extend((32, 8, 128), 64, mask=ints(64, 4)),
    "extend 256": extend((16, 8, 256), 64),
    "cascade": cascade(64),
    "float8": float8,
    "append": lambda: append.append(*[zeros(8, 8, 128) for _ in range(4)] + [ints(8)]),
    "rotate": lambda: append.rotate_append(
        zeros(8, 48 * 128), zeros(64, 2, 128), ints(8), zeros(64, 8, 128), zeros(64, 8, 128),
        ints(8), heads=32, q_norm=zeros(128), k_norm=zeros(128),
    ),
    "rotate part": lambda: append.rotate_append(
        zeros(8, 48 * 128), zeros(64, 2, 96), ints(8), zeros(64, 8, 128), zeros(64, 8, 128),
        ints(8), heads=32,
    ),
    "norm": lambda: norm.add_rms_norm(zeros(8, 4096), zeros(8, 4096), zeros(4096), 1e-5),
    "norms": lambda: norm.add_rms_norm(
        zeros(8, 3584), zeros(8, 3584), floats(3584), 1e-6, floats(3584)
    ),
    "gate": lambda: norm.gate(zeros(8, 28672), "silu"),
    "route": lambda: moe.route(floats(8, 8), 2),
    "mixture few": mixture(32),
    "mixture many": mixture(2048),
    "sample": lambda: sampling.sample(
        floats(4, 128256), floats(4), ints(4), floats(4), floats(4), floats(4).double()
    ),
    "draw greedy": sampled(SamplingParams(temperature=0.0)),
    "draw plain": sampled(SamplingParams(temperature=0.7)),
    "draw cut": sampled(
        SamplingParams(temperature=0.0), SamplingParams(top_p=0.9, top_k=50, min_p=0.01)
    ),
    "draw all": sampled(
        SamplingParams(top_p=0.9, frequency_penalty=0.5, logit_bias={7: 1.0}), mask=True
    ),
    "mask": lambda: sampling.apply_mask(floats(4, 128256), ints(4, 4008)),
    "penalties": lambda: sampling.penalise(
        floats(4, 128256), ints(7), ints(7), ints(7), floats(4), floats(4), floats(4)
    ),
}  # fmt: skip


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore", UserWarning)
    found = {
        name: [report(build(*launch)) | {"grid": grid} for *launch, grid in launches(CASES[name])]
        for name in names or CASES
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
