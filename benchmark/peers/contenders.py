"""Contenders: systems that are measured, each with its Python, settings, weights and work.

Each has the settings that are best for it here: both cores, bf16 weights (and 8 bits beside them),
prefix caches on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmark.peers.child import ROOT
from benchmark.peers.work import WORKS

LONGEST = 2048  # tokens of a sequence, prompt and output
ROOM = 70_000  # tokens of KV: what W4 takes without sharing
ALL = tuple(WORKS)
_SIDES = "benchmark.peers.sides"
# Settings that the peers' own documents advise, for both cores and room for W5.
_VLLM_ENVIRONMENT = {
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True, eq=False)
class Contender:
    """``kind``: the weights' format, "bfloat16" or "int8". ``http`` marks those used over HTTP,
    which are compared with one another. ``missing`` says why it cannot run; "" where it can."""

    name: str
    python: str
    module: str
    spec: Mapping[str, Any]
    kind: str = "bfloat16"
    http: bool = False
    works: tuple[str, ...] = ALL
    environment: Mapping[str, str] = field(default_factory=dict)
    missing: str = ""


def contenders(model: Path, files: Mapping[str, Path], peers: Path, cores: int) -> list[Contender]:
    """All there are, ours first.

    Args:
        model: the checkpoint.
        files: the same in GGUF, by format ("BF16", "Q8_0"); empty without llama.cpp.
        peers: folder of the peers' environments, ``vllm`` and ``llama``.
        cores: threads, for those that take a number.
    """
    return [*_ours(model), _transformers(model), *_vllm(model, peers), *_llama(files, peers, cores)]


def interpreter(peers: Path, name: str) -> Path:
    """Python of a peer's environment, whether it is there or not."""
    return peers / name / "bin" / "python"


def _ours(model: Path) -> list[Contender]:
    # As the peers: our default for so small a model would be float32.
    spec = {
        "model_path": str(model), "max_total_tokens": ROOM, "log_level": "warning",
        "dtype": "bfloat16",
    }  # fmt: skip
    small = {**spec, "quantization": "int8"}
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])}
    arguments = ["--model-path", str(model), "--max-total-tokens", str(ROOM), "--port", "{port}"]
    # A server that stands still for the others' turns is not dead.
    arguments += ["--log-level", "warning", "--watchdog-timeout", "0", "--dtype", "bfloat16"]
    served = {
        "command": [sys.executable, "-m", "sglang.launch_server", *arguments],
        "protocol": "sglang",
    }
    module = f"{_SIDES}.ours"
    return [
        Contender("ours", sys.executable, module, spec, environment=path),
        Contender("ours int8", sys.executable, module, small, kind="int8", environment=path),
        Contender(
            "ours no cache", sys.executable, module, {**spec, "disable_radix_cache": True},
            works=("W4",), environment=path,
        ),
        Contender("ours HTTP", sys.executable, f"{_SIDES}.http", served, http=True,
                  works=("W5",), environment=path),
    ]  # fmt: skip


def _transformers(model: Path) -> Contender:
    spec = {"model_path": str(model), "dtype": "bfloat16"}
    gone = "" if find_spec("transformers") else "transformers is not installed"
    return Contender("transformers", sys.executable, f"{_SIDES}.static", spec, missing=gone)


def _vllm(model: Path, peers: Path) -> list[Contender]:
    python = interpreter(peers, "vllm")
    gone = "" if python.exists() else f"no {python}: make bench-peers installs it"
    spec = {
        "model": str(model),
        "dtype": "bfloat16",
        "max_model_len": LONGEST,
        "skip_tokenizer_init": True,
    }
    arguments = [
        "--model",
        str(model),
        "--dtype",
        "bfloat16",
        "--max-model-len",
        str(LONGEST),
        "--port",
        "{port}",
    ]
    served = {
        "command": [str(python), "-m", "vllm.entrypoints.openai.api_server", *arguments],
        "protocol": "openai",
        "extra": {"return_token_ids": True},
        "environment": _VLLM_ENVIRONMENT,
    }
    return [
        Contender("vllm-cpu", str(python), f"{_SIDES}.vllm_cpu", spec, missing=gone,
                  environment=_VLLM_ENVIRONMENT),
        Contender("vllm-cpu HTTP", sys.executable, f"{_SIDES}.http", served, http=True,
                  works=("W5",), missing=gone),
    ]  # fmt: skip


def _llama(files: Mapping[str, Path], peers: Path, cores: int) -> list[Contender]:
    python = interpreter(peers, "llama")
    gone = "" if python.exists() else f"no {python}: make bench-peers installs it"
    libraries = peers / "llama" / "build" / "bin"
    environment = {"LLAMA_CPP_LIB_PATH": str(libraries)} if libraries.is_dir() else {}
    found = []
    for name, weights, kind in (("bf16", "BF16", "bfloat16"), ("Q8_0", "Q8_0", "int8")):
        spec = {"model_path": str(files.get(weights, "")), "threads": cores}
        found.append(
            Contender(
                f"llama.cpp {name}", str(python), f"{_SIDES}.llama_cpp_python", spec, kind=kind,
                environment=environment, missing=gone,
            )
        )  # fmt: skip
    program = libraries / "llama-server"
    slots = 64
    arguments = ["--ctx-size", str(ROOM), "--parallel", str(slots), "--no-kv-unified"]
    arguments += ["--threads", str(cores), "--threads-http", "2", "--port", "{port}"]
    served = {
        "command": [str(program), "--model", str(files.get("BF16", "")), *arguments],
        "protocol": "openai",
        "extra": {"return_tokens": True},
    }
    lacking = gone or ("" if program.exists() else f"no {program}")
    found.append(
        Contender("llama.cpp HTTP", sys.executable, f"{_SIDES}.http", served, http=True,
                  works=("W5",), missing=lacking)
    )  # fmt: skip
    return found
