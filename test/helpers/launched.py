"""A server as users start it: its own processes, on a free port."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
from helpers.http_server import Client
from helpers.toy_tokenizer import byte_level
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.tokenizer.tokenizer import EMBEDDED

PYTHON = Path(__file__).resolve().parents[2] / "python"
READY = re.compile(r"sglang serving (\S+) at (https?://\S+) - (\d+) KV tokens\n")


def toy_model(directory: Path) -> list[str]:
    """Flags for a model of random weights, small enough to start at once."""
    path = byte_level(directory)
    tokenizer = Tokenizer(path)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": tokenizer.vocab_size, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "hidden_act": "silu", "eos_token_id": tokenizer.eos_ids[0],
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return ["--model-path", str(path), "--load-format", "dummy"]


def best_model(directory: Path) -> list[str]:
    """Flags for the embedded model, for random weights where it is missing."""
    return [] if (EMBEDDED / "model.safetensors").is_file() else toy_model(directory)


class Server:
    """A launched server process and its engine."""

    def __init__(self, arguments: list[str], paths: Sequence[str] = (str(PYTHON),)) -> None:
        """``paths``: where its processes import from first."""
        command = [sys.executable, "-m", "sglang.launch_server", "--threads", "1", *arguments]
        if "--port" not in arguments:
            command += ["--port", "0"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.url = self.model = ""
        self.tokens = 0

    def wait_ready(self, seconds: float = 120.0) -> None:
        """Wait for the first line of standard output."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise TimeoutError("the server is not ready")
        line = self.process.stdout.readline()
        match = READY.fullmatch(line)
        assert match, f"first line: {line!r}; errors: {self.errors() if not line else ''}"
        self.model, self.url, self.tokens = match[1], match[2], int(match[3])

    def errors(self) -> str:
        """Standard error of a server that has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def engine(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def wait_end(self, seconds: float = 120.0) -> int:
        return self.process.wait(seconds)


@contextlib.contextmanager
def launched(
    arguments: list[str], ready: bool = True, paths: Sequence[str] = (str(PYTHON),)
) -> Iterator[Server]:
    """Ends with neither the server nor its engine alive, however the block ends."""
    server = Server(arguments, paths)
    children: list[psutil.Process] = []
    try:
        if ready:
            server.wait_ready()
            children = psutil.Process(server.process.pid).children(recursive=True)
        yield server
    finally:
        if server.process.poll() is None:
            children = children or psutil.Process(server.process.pid).children(recursive=True)
            server.process.kill()
            server.process.wait()
        for pipe in (server.process.stdout, server.process.stderr):
            assert pipe is not None
            pipe.close()
        gone(children)


def gone(processes: list[psutil.Process], seconds: float = 120.0) -> None:
    """Assert that they end by themselves."""
    deadline = time.monotonic() + seconds
    while [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < deadline, f"still alive: {processes}"
        time.sleep(0.05)


def client_of(server: Server) -> Client:
    return Client(base_url=server.url, timeout=60)
