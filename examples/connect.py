"""Backend of the examples: the embedded model in this process, or a server (--url)."""

from __future__ import annotations

import argparse
from typing import Any

import sglang as sgl


def connect() -> Any:
    """Set the default backend from the command line, and give it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", help="a running server, such as http://127.0.0.1:30000")
    parser.add_argument("--model-path", default="", help="default: the embedded model")
    arguments = parser.parse_args()
    if arguments.url:
        backend: Any = sgl.RuntimeEndpoint(arguments.url)
    else:
        backend = sgl.Engine(model_path=arguments.model_path, log_level="warning")
    sgl.set_default_backend(backend)
    return backend
