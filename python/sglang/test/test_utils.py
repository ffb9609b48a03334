"""Helpers that upstream's benchmarks and tests import to choose a backend and launch a server."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import unittest
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from sglang.backend.base import Backend
from sglang.utils import (
    free_port,
    http_request,
    own_environment,
    terminate_process,
    wait_for_server,
)

__all__ = [
    "DEFAULT_MODEL_NAME_FOR_TEST",
    "DEFAULT_SMALL_MODEL_NAME_FOR_TEST",
    "DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH",
    "DEFAULT_URL_FOR_TEST",
    "CustomTestCase",
    "add_common_other_args_and_parse",
    "add_common_sglang_args_and_parse",
    "find_available_port",
    "get_call_generate",
    "is_in_ci",
    "popen_launch_server",
    "select_sglang_backend",
]
# The embedded model, unless the environment names another.
DEFAULT_MODEL_NAME_FOR_TEST = os.environ.get("SGLANG_TEST_MODEL", "sglang-tiny")
DEFAULT_SMALL_MODEL_NAME_FOR_TEST = DEFAULT_MODEL_NAME_FOR_TEST
DEFAULT_URL_FOR_TEST = "http://127.0.0.1:21000"
DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH = 600
CustomTestCase = unittest.TestCase
_OTHER = {"srt-raw": 30000, "vllm": 8000}  # backends, and the ports they listen on by default


def is_in_ci() -> bool:
    """Whether the environment says so: ``SGLANG_IS_IN_CI``."""
    return os.environ.get("SGLANG_IS_IN_CI", "").lower() in ("1", "true")


def find_available_port(base_port: int = 0) -> int:
    """A free port; ``base_port`` is accepted for compatibility."""
    return free_port()


# -- command lines of benchmarks ------------------------------------------------------------------


def add_common_sglang_args_and_parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the flags that ``select_sglang_backend`` reads, and parse the command line."""
    _add_common(parser, 30000)
    parser.add_argument("--backend", default="srt", help="srt, srt-no-parallel or gpt-...")
    parser.add_argument("--device", default="auto", choices=["auto", "cuda", "rocm", "cpu"])
    parser.add_argument("--raw-result-file")
    return parser.parse_args()


def add_common_other_args_and_parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the flags that ``get_call_generate`` reads, and parse the command line."""
    _add_common(parser, None)
    parser.add_argument("--backend", required=True, choices=list(_OTHER))
    parser.add_argument("--n-ctx", type=int, default=4096)
    parser.add_argument("--model-path", default="")
    args = parser.parse_args()
    args.port = args.port or _OTHER[args.backend]
    return args


def _add_common(parser: argparse.ArgumentParser, port: int | None) -> None:
    parser.add_argument("--parallel", type=int, default=64, help="requests at once")
    parser.add_argument("--host", default="http://127.0.0.1", help="with its scheme")
    parser.add_argument("--port", type=int, default=port)
    parser.add_argument("--result-file", default="result.jsonl")


def select_sglang_backend(args: argparse.Namespace) -> Backend:
    """The backend that ``args.backend`` names. Raises ValueError for an unknown one."""
    if args.backend in ("srt", "srt-no-parallel"):
        from sglang.backend.native.endpoint import RuntimeEndpoint

        return RuntimeEndpoint(f"{args.host}:{args.port}")
    if args.backend.startswith("gpt-"):
        from sglang.backend.openai.openai_backend import OpenAI

        return OpenAI(args.backend)
    raise ValueError(f"backend is {args.backend!r}; use srt, srt-no-parallel or gpt-...")


def get_call_generate(args: argparse.Namespace) -> Callable[..., Any]:
    """A function of ``prompt, temperature, max_tokens, stop=None, n=1`` that sends a plain request
    and returns its text, or a list of ``n``. Raises ValueError for another backend."""
    url = f"{args.host}:{args.port}"
    if args.backend == "srt-raw":
        return partial(_by_generate, url + "/generate")
    if args.backend == "vllm":
        return partial(_by_completions, url + "/v1/completions")
    raise ValueError(f"backend is {args.backend!r}; use one of {', '.join(_OTHER)}")


def _by_generate(
    url: str, prompt: str, temperature: float, max_tokens: int, stop: Any = None, n: int = 1
) -> Any:
    sampling = {"temperature": temperature, "max_new_tokens": max_tokens, "stop": stop, "n": n}
    answer = _posted(url, {"text": prompt, "sampling_params": sampling})
    return [one["text"] for one in answer] if n > 1 else answer["text"]


def _by_completions(
    url: str, prompt: str, temperature: float, max_tokens: int, stop: Any = None, n: int = 1
) -> Any:
    body = {"model": "default", "prompt": prompt, "temperature": temperature,
            "max_tokens": max_tokens, "stop": stop, "n": n}  # fmt: skip
    texts = [choice["text"] for choice in _posted(url, body)["choices"]]
    return texts if n > 1 else texts[0]


def _posted(url: str, body: dict[str, Any]) -> Any:
    reply = http_request(url, json=body)
    if reply.status_code != 200:
        raise RuntimeError(f"{url} answered {reply.status_code}: {reply.text[:500]}")
    return reply.json()


# -- servers --------------------------------------------------------------------------------------


def popen_launch_server(
    model: str,
    base_url: str,
    timeout: float,
    api_key: str | None = None,
    other_args: Sequence[object] = (),
    env: Mapping[str, str] | None = None,
    device: str = "auto",
) -> subprocess.Popen[bytes]:
    """Start a server at ``base_url`` and return its process when it has generated a token.

    Raises RuntimeError where it ends before, TimeoutError after ``timeout`` seconds; it is ended
    then. ``sglang.utils.terminate_process`` ends it.
    """
    address = urlsplit(base_url)
    command = [sys.executable, "-m", "sglang.launch_server", "--device", device]
    command += ["--host", address.hostname or "127.0.0.1", "--port", str(address.port or 30000)]
    command += ["--model-path", model] if model else []
    command += ["--api-key", api_key] if api_key else []
    process = subprocess.Popen(
        [*command, *map(str, other_args or ())],
        env={**own_environment(), **(env or {})},
        start_new_session=True,
    )
    try:
        wait_for_server(base_url, timeout, process, "/health_generate", api_key)
    except BaseException:
        terminate_process(process)
        raise
    return process
