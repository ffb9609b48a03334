"""Chosen backend: what the flags --url, --backend and --model of a command name."""

from __future__ import annotations

import argparse
import os
from typing import Any
from urllib.parse import urlsplit

from sglang.errors import SglangError

SERVICES = ("openai", "anthropic", "litellm")
KINDS = ("engine", "server", *SERVICES)


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that choose a backend."""
    group = parser.add_argument_group("backend", "What computes; the embedded model by default.")
    group.add_argument(
        "--url", default="",
        help="a server of this project; with /v1 at its end any server that speaks OpenAI's API",
    )  # fmt: skip
    group.add_argument(
        "--backend", choices=KINDS,
        help="engine: in this process; server: at --url; else the service of that name, by its "
        "own client (default: server with --url, else engine)",
    )  # fmt: skip
    group.add_argument(
        "--model", default="",
        help="for engine a directory, GGUF file or hub id; for a service its model's name",
    )  # fmt: skip
    group.add_argument(
        "--api-key",
        help="of the server or service (default: SGLANG_API_KEY, or the service's own variable)",
    )
    group.add_argument(
        "--insecure", action="store_true", help="do not verify the server's certificate"
    )
    group.add_argument(
        "--setting", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of the engine, such as max_total_tokens=8192; may be given again",
    )  # fmt: skip


def speaks_openai(url: str) -> bool:
    """Whether the URL is one of OpenAI's API: its path ends with /v1."""
    return urlsplit(url).path.rstrip("/").endswith("/v1")


def kind_of(arguments: argparse.Namespace) -> str:
    """The kind of backend that the flags mean. Raises ValueError where they exclude each other."""
    kind = arguments.backend or ("server" if arguments.url else "engine")
    if kind == "server" and not arguments.url:
        raise ValueError("--backend server needs its address: add --url http://HOST:PORT")
    if kind == "engine" and arguments.url:
        raise ValueError("--backend engine computes in this process and --url names a server; "
                         "leave one of them out")  # fmt: skip
    if kind in ("anthropic", "litellm") and not arguments.model:
        raise ValueError(f"--backend {kind} needs the name of its model: add --model NAME")
    if kind == "openai" and not arguments.model and not arguments.url:
        raise ValueError("--backend openai needs the name of its model: add --model NAME")
    if arguments.setting and kind != "engine":
        raise ValueError(f"--setting is of the engine in this process, and the backend is {kind}")
    return kind


def open_backend(arguments: argparse.Namespace) -> Any:
    """The backend, to be shut down by the caller. Raises ValueError, OSError and SglangError."""
    kind = kind_of(arguments)
    if kind == "engine":
        return _engine(arguments)
    if kind == "server" and not speaks_openai(arguments.url):
        from sglang.backend.native.endpoint import RuntimeEndpoint

        key = arguments.api_key or os.environ.get("SGLANG_API_KEY")
        url = arguments.url if "://" in arguments.url else f"http://{arguments.url}"
        return RuntimeEndpoint(url, api_key=key, verify=False if arguments.insecure else None)
    more = {"base_url": arguments.url} if arguments.url else {}
    if kind == "litellm":
        from sglang.backend.litellm import LiteLLM

        return LiteLLM(arguments.model, api_key=arguments.api_key, **more)
    if kind == "anthropic":
        from sglang.backend.anthropic.anthropic_backend import Anthropic

        return Anthropic(arguments.model, api_key=arguments.api_key, **more)
    return _openai(arguments, more)


def _openai(arguments: argparse.Namespace, more: dict[str, Any]) -> Any:
    from sglang.backend.openai.openai_backend import OpenAI

    key = arguments.api_key or os.environ.get("SGLANG_API_KEY")
    if arguments.url and not key and "OPENAI_API_KEY" not in os.environ:
        key = "none"  # the client insists on one; servers of one's own often have none
    model = arguments.model or only_model(arguments.url, key, arguments.insecure)
    return OpenAI(model, api_key=key, **more)


def only_model(url: str, key: str | None, insecure: bool = False) -> str:
    """The first model that a server of OpenAI's API lists. Raises SglangError."""
    from sglang.terminal.chat_stream import ChatServer

    return ChatServer(url, key or "", insecure).models()[0]


def _engine(arguments: argparse.Namespace) -> Any:
    try:
        from sglang.backend.engine.embedded import Engine
    except ModuleNotFoundError as error:
        raise SglangError(
            f"a model in this process needs the runtime, and {error.name} is missing: install the "
            "extra cpu, or give --url of a server"
        ) from error
    from sglang.srt.commands.named_values import named_values

    settings = named_values("--setting", arguments.setting)
    settings.setdefault("log_level", "warning")
    if arguments.model:
        settings["model_path"] = arguments.model
    return Engine(**settings)
