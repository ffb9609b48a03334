"""Environment and ceilings: what the machine is, and the most it copies and multiplies."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch

from benchmark.gpu.bench import Bench
from benchmark.gpu.timing import timed

PACKAGES = (
    "triton", "numpy", "flashinfer-python", "apache-tvm-ffi", "sgl-kernel", "msgspec", "starlette",
    "pytest", "pytest-xdist", "matplotlib",
)  # fmt: skip


def environment(bench: Bench) -> None:
    found: dict[str, str] = {"python": platform.python_version(), "torch": torch.__version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    found |= {"processors": str(os.cpu_count()), "nvcc": _nvcc()}
    if bench.on_gpu:
        properties = torch.cuda.get_device_properties(bench.device)
        free, total = torch.cuda.mem_get_info(bench.device)
        found |= {
            "GPU": properties.name, "CUDA of torch": str(torch.version.cuda),
            "compute capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": str(properties.multi_processor_count),
            "second-level cache": f"{getattr(properties, 'L2_cache_size', 0) / 2**20:.0f} MiB",
            "memory": f"{free / 2**30:.0f} of {total / 2**30:.0f} GiB free", **_driver(),
        }  # fmt: skip
    else:
        found["GPU"] = "none: sizes are toys, and figures mean nothing"
    for name, value in found.items():
        bench.row("environment", what=name, found=value)


def _nvcc() -> str:
    home = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")
    return _first([nvcc, "--version"], last=True) if nvcc else "not found"


def _driver() -> dict[str, str]:
    """Driver, clocks and limits, where nvidia-smi tells them."""
    fields = ("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit", "temperature.gpu")
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    if shutil.which("nvidia-smi") is None:
        return {}
    return dict(zip(fields, (value.strip() for value in _first(query).split(","))))


def _first(command: list[str], last: bool = False) -> str:
    """One line of a command's output, "unknown" where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = done.stdout.strip().splitlines()
    return lines[-1 if last else 0] if lines else "unknown"


def ceilings(bench: Bench) -> None:
    """Copy and read bandwidth, rates of products, and the time of an empty launch."""
    size = 1 << 16 if bench.tiny else 2 << 30
    source = bench.random(size).to(torch.bfloat16)
    target = torch.empty_like(source)
    seconds = timed(bench, [partial(target.copy_, source)], 1.0).seconds
    _ceiling(bench, "copy", 2 * source.nbytes / seconds / 1e12, "TB/s")
    total = torch.empty(1, device=bench.device)
    add = partial(torch.sum, source.view(torch.float32), dim=0, keepdim=True, out=total)
    seconds = timed(bench, [add], 1.0).seconds
    _ceiling(bench, "read", source.nbytes / seconds / 1e12, "TB/s")
    del source, target, add
    n = 64 if bench.tiny else 8192
    a, b = (bench.random(n, n) for _ in range(2))
    out = torch.empty_like(a)
    seconds = timed(bench, [lambda: torch.matmul(a, b, out=out)], 1.0).seconds
    _ceiling(bench, "product", 2 * n**3 / seconds / 1e12, "TF/s", str(bench.dtype)[6:])
    if bench.on_gpu:
        _float8(bench, n)
    small = torch.zeros(1, device=bench.device)
    timing = timed(bench, [lambda: small.add_(1)])
    _ceiling(bench, "smallest kernel", timing.seconds * 1e6, "us", timing.how)
    _ceiling(bench, "its launch from Python", timing.host * 1e6, "us")


def _float8(bench: Bench, n: int) -> None:
    try:
        a, b = (bench.random(n, n).to(torch.float8_e4m3fn) for _ in range(2))
        one = torch.ones((), device=bench.device)
        work = partial(
            torch._scaled_mm, a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
        )
        seconds = timed(bench, [work], 1.0).seconds
    except Exception as error:
        bench.failed("product float8", error)
        return
    _ceiling(bench, "product float8", 2 * n**3 / seconds / 1e12, "TF/s")


def _ceiling(bench: Bench, name: str, value: float, unit: str, note: str = "") -> None:
    bench.row("ceilings", ceiling=name, value=value, unit=unit, note=note or None)
