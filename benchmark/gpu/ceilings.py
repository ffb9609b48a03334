"""Environment and ceilings: what the machine is, and the most it copies and multiplies."""

from __future__ import annotations

import platform
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch

from benchmark.gpu.bench import Bench


def environment(bench: Bench) -> None:
    table = bench.table("environment")
    found: dict[str, str] = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("triton", "flashinfer-python", "sgl-kernel"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    if bench.device.type == "cuda":
        properties = torch.cuda.get_device_properties(bench.device)
        found |= {
            "GPU": properties.name,
            "CUDA": str(torch.version.cuda),
            "multiprocessors": str(properties.multi_processor_count),
            "memory": f"{properties.total_memory / 2**30:.0f} GiB",
        }
    else:
        found["GPU"] = "none: sizes are toys, and figures mean nothing"
    table.rows += [{"what": name, "found": value} for name, value in found.items()]


def ceilings(bench: Bench) -> None:
    """Sets ``copy`` and ``product``. Random values: zeros can run faster than data does."""
    table = bench.table("ceilings")
    size = 1 << 16 if bench.tiny else 2 << 30
    source = torch.randn(size, device=bench.device).to(torch.bfloat16)
    target = torch.empty_like(source)
    seconds = bench.seconds(partial(target.copy_, source))
    bench.copy = 2 * source.nbytes / seconds
    table.rows.append({"ceiling": "copy", "value": bench.copy / 1e12, "unit": "TB/s"})
    del source, target
    n = 64 if bench.tiny else 8192
    a, b = (torch.randn(n, n, device=bench.device).to(bench.dtype) for _ in range(2))
    out = torch.empty_like(a)
    seconds = bench.seconds(lambda: torch.matmul(a, b, out=out))
    bench.product = 2 * n**3 / seconds
    kind = str(bench.dtype).removeprefix("torch.")
    table.rows.append({"ceiling": f"product {kind}", "value": bench.product / 1e12, "unit": "TF/s"})
