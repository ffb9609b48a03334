"""Checks of the machine and the installation. No model is looked at."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import resource
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from sglang.srt.commands.doctor.finding import FAIL, OK, WARN, CheckFinding
from sglang.srt.config import Config
from sglang.srt.config.listening import bind

if TYPE_CHECKING:
    from sglang.srt.numeric.host_arrays import Device

NEEDED = (
    "numpy", "ml_dtypes", "tokenizers", "huggingface_hub", "jinja2", "msgspec", "zmq",
    "psutil", "re2", "llguidance", "interegular", "outlines_core", "starlette", "uvicorn",
    "httptools", "prometheus_client", "tqdm", "python_multipart",
)  # fmt: skip
# Clients, by the name of the package, and the major versions that are known to work.
CLIENTS = {
    "openai": (1, 2, 3),
    "anthropic": (2,),
    "litellm": (1,),
    "dspy": (3,),
    "instructor": (1,),
    "langchain-openai": (1,),
    "outlines": (1,),
}
OPTIONAL = {
    "opentelemetry-exporter-otlp-proto-http": "--otlp-traces-endpoint",
    "transformers": "tests of model parity",
}
DESCRIPTORS = 1024  # open files below which many connections are refused
SPACE = 64 << 20  # bytes of temporary space
ADDRESS = 107  # bytes of a Unix socket's path
FEATURES = re.compile(r"avx2|avx512f|avx512_bf16|amx_bf16|amx_int8|neon|asimd|sve")


def python() -> Iterator[CheckFinding]:
    found = f"{platform.python_version()}, {platform.system()} {platform.machine()}"
    good = sys.version_info >= (3, 10)
    yield CheckFinding(
        "python", OK if good else FAIL, found, "" if good else "use Python 3.10 or newer"
    )


def packages() -> Iterator[CheckFinding]:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        fix = "pip install -e '.[cpu]' in the project's folder"
        yield CheckFinding("packages", FAIL, f"missing: {', '.join(missing)}", fix)
    else:
        yield CheckFinding("packages", OK, f"all {len(NEEDED)} of the server's are installed")


def device(config: Config) -> Iterator[CheckFinding]:
    """The device, and its kernels. Torch is imported where it would compute."""
    from sglang.srt.numeric.torch_later import NEEDED as TORCH_NEEDED
    from sglang.srt.numeric.torch_later import torch
    from sglang.srt.worker.model_loading import device_of
    from sglang.srt.worker.threads import default_threads

    chosen = device_of(config.model.device)
    if chosen.type == "cuda":
        found = f"{torch.cuda.get_device_name(chosen)}, torch {torch.__version__}"
        yield CheckFinding("device", OK, found)
        yield _attention(config, chosen)
        return
    features = ", ".join(sorted(_features())) or "no vector instructions known"
    kernels, fix = _kernels(config)
    if not kernels and importlib.util.find_spec("torch") is None:
        cause, _, fix = TORCH_NEEDED.partition(": ")
        yield CheckFinding("device", FAIL, f"cpu, no native kernels; {cause}", fix)
        return
    by = kernels
    if not kernels:
        path = torch.backends.cpu.get_cpu_capability()
        by = f"torch {torch.__version__}, {path}"
        if path in ("DEFAULT", "NO AVX"):
            fix = "expect few tokens a second: torch finds no vector instructions"
    threads = config.model.threads or default_threads()
    found = f"cpu, {threads} threads; kernels: {by} (the CPU has {features})"
    yield CheckFinding("device", WARN if fix else OK, found, fix)
    yield _attention(config, chosen)


def _attention(config: Config, device: Device) -> CheckFinding:
    """The attention implementation for the device, and the reason."""
    from sglang.srt.attention.backend_choice import choose

    try:
        choice = choose(config.model.attention_backend, device)
    except ValueError as error:
        cause, _, fix = str(error).partition("; ")
        return CheckFinding("attention", FAIL, cause, fix)
    return CheckFinding("attention", OK, f"{choice.name} ({choice.reason})")


def _kernels(config: Config) -> tuple[str, str]:
    """The native kernels that will run, "" where torch's will, and what could be done about it."""
    if config.model.cpu_kernels == "torch":
        return "", ""
    try:
        from sgl_kernel import native
    except ImportError:
        return "", "native kernels are several times faster: pip install ./sgl-kernel"
    if not native.AVAILABLE:
        return "", "native kernels need a C++ compiler when sgl-kernel is installed"
    return f"sgl-kernel, {native.isa()}", ""


def _features() -> set[str]:
    try:
        return set(FEATURES.findall(Path("/proc/cpuinfo").read_text()))
    except OSError:
        return set()


def port(config: Config) -> Iterator[CheckFinding]:
    """Whether the port is free, and the process that has it."""
    from sglang.srt.config.listening import exposed

    host, number = config.server.host, config.server.port
    where = f"{host} port {number}"
    try:
        with bind(host, number) as probe:
            probe.listen()
    except OSError as error:
        owner = _owner(number)
        fix = "choose another with --port" + (f", or end process {owner[0]}" if owner else "")
        who = f" by process {owner[0]} ({owner[1]})" if owner else ""
        yield CheckFinding("port", FAIL, f"{where}: {error.strerror or error}{who}", fix)
        return
    yield CheckFinding("port", OK, f"{where} is free")
    if exposed(host, config):
        fix = "set SGLANG_API_KEY, or --host 127.0.0.1"
        yield CheckFinding("access", WARN, f"{host} is reachable by others, without a key", fix)


def edge(config: Config) -> Iterator[CheckFinding]:
    """The files of keys and certificates, where there are any."""
    from sglang.srt.config.listening import tls_options
    from sglang.srt.runtime.tenants import Tenants

    given = [name for name in (config.edge.api_keys_file, config.edge.ssl_certfile) if name]
    try:
        Tenants(config)
        tls_options(config.edge)
    except (OSError, ValueError) as error:
        yield CheckFinding("keys, TLS", FAIL, str(error), "mend what the message names")
        return
    if given:
        yield CheckFinding("keys, TLS", OK, f"{', '.join(given)} can be used")


def _owner(number: int) -> tuple[int, str] | None:
    """Id and name of the process that listens on a port, where this user may know it."""
    import psutil

    try:
        for found in psutil.net_connections("tcp"):
            if found.laddr and found.laddr.port == number and found.status == psutil.CONN_LISTEN:
                return (found.pid, psutil.Process(found.pid).name()) if found.pid else None
    except (psutil.Error, OSError):
        pass
    return None


def limits() -> Iterator[CheckFinding]:
    """Open files, and where the engine's socket and files are."""
    import psutil

    few, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    good = few == resource.RLIM_INFINITY or few >= DESCRIPTORS
    fix = "" if good else f"ulimit -n {min(65536, most) if most > 0 else 65536}"
    shown = "unlimited" if few == resource.RLIM_INFINITY else str(few)
    yield CheckFinding("open files", OK if good else WARN, f"{shown} at most", fix)
    directory = Path(tempfile.gettempdir())
    free = psutil.disk_usage(str(directory)).free
    if not os.access(directory, os.W_OK) or free < SPACE:
        fix = "make room, or set TMPDIR"
        yield CheckFinding("temporary files", FAIL, f"{directory} has {free >> 20} MiB for us", fix)
    elif len(os.fsencode(directory)) + len("/sglang-12345678/wire") > ADDRESS:
        fix = "set TMPDIR to a shorter path"
        yield CheckFinding(
            "temporary files", FAIL, f"{directory}: too long for a socket's path", fix
        )
    else:
        yield CheckFinding("temporary files", OK, f"{directory}, {free / 1e9:.1f} GB free")


def clients() -> Iterator[CheckFinding]:
    """Clients that are installed here, and whether their version is a tested one."""
    absent = []
    for name, majors in CLIENTS.items():
        found = _version(name)
        if found is None:
            absent.append(name)
            continue
        known = int(re.match(r"\d*", found)[0] or -1) in majors  # type: ignore[index]
        good = ", ".join(f"{major}.x" for major in majors)
        if known:
            yield CheckFinding("client", OK, f"{name} {found} (known to work)")
        else:
            yield CheckFinding(
                "client", WARN, f"{name} {found}", f"not tried; {good} are known to work"
            )
    if absent:
        yield CheckFinding("client", OK, f"not installed: {', '.join(absent)}")


def optional(config: Config) -> Iterator[CheckFinding]:
    for name, use in OPTIONAL.items():
        found = _version(name)
        text = f"{name} {found}" if found else f"{name} is not installed"
        asked = use == "--otlp-traces-endpoint" and config.operations.otlp_traces_endpoint
        lacks = bool(asked and not found)
        fix = "install the extra otel, or leave the flag out" if lacks else ""
        yield CheckFinding("optional", FAIL if lacks else OK, f"{text} (for {use})", fix)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
