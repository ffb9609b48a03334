"""A server in an environment without torch: what it answers, and what it says needs torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import vision
from helpers.http_server import Client
from helpers.launched import PYTHON, Server, launched
from helpers.paths import ROOT
from sglang.srt.tokenizer.tokenizer import EMBEDDED

NO_TORCH = ROOT / "test" / "helpers" / "no_torch"
KERNELS = ROOT / "sgl-kernel" / "python"
PATHS = [str(NO_TORCH), str(PYTHON), str(KERNELS)]
GREEDY = {"temperature": 0, "max_new_tokens": 24}
PROMPT = "The capital of France is"
# Requests of /generate, whose tokens are those of an engine with torch.
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"sampling_params": GREEDY},
    "sampled": {"sampling_params": {"temperature": 0.8, "top_p": 0.9, "top_k": 40,
                                    "sampling_seed": 5, "max_new_tokens": 24}},
    "penalties": {"sampling_params": {**GREEDY, "frequency_penalty": 0.6, "presence_penalty": 0.3,
                                      "repetition_penalty": 1.2, "min_new_tokens": 8}},
    "regex": {"sampling_params": {**GREEDY, "regex": r"[A-Z][a-z]{2,8}(, [A-Z][a-z]{2,8}){2}"}},
    "json": {"sampling_params": {**GREEDY, "max_new_tokens": 60, "json_schema": json.dumps(
             {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
             )}},
    "log-probabilities": {"sampling_params": GREEDY, "return_logprob": True,
                          "top_logprobs_num": 4, "logprob_start_len": 0},
}  # fmt: skip
EMBEDS: dict[str, Any] = {"model": "any", "input": ["one text", "another"]}
CHAT: dict[str, Any] = {
    "model": "any", "messages": [{"role": "user", "content": PROMPT}],
    "temperature": 0, "max_tokens": 16, "logprobs": True, "top_logprobs": 2,
}  # fmt: skip

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is not here"
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with launched([], paths=PATHS) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def with_torch() -> Iterator[Client]:
    """The same kernels among torch's tensors."""
    tensors = str(NO_TORCH.with_name("on_tensors"))
    with (
        launched([], paths=[tensors, *PATHS[1:]]) as server,
        Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


def mapped(process: psutil.Process) -> list[str]:
    """Files of torch that a process has in memory."""
    return [m.path for m in process.memory_maps() if "/torch/" in m.path]


def generated(client: Client, request: dict[str, Any]) -> dict[str, Any]:
    reply = client.post("/generate", json={"text": PROMPT, **request})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


@pytest.mark.parametrize("name", REQUESTS)
def test_tokens_are_those_with_torch(name: str, client: Client, with_torch: Client) -> None:
    ours, theirs = (generated(one, REQUESTS[name]) for one in (client, with_torch))
    assert ours["output_ids"] == theirs["output_ids"]
    for key in ("output_token_logprobs", "input_token_logprobs"):
        for one, other in zip(ours["meta_info"].get(key, []), theirs["meta_info"].get(key, [])):
            assert one[1:] == other[1:]
            assert one[0] == pytest.approx(other[0], abs=1.1e-5)


def test_embeddings_and_chats_are_those_with_torch(client: Client, with_torch: Client) -> None:
    both = [one.post("/v1/embeddings", json=EMBEDS).json()["data"] for one in (client, with_torch)]
    for ours, theirs in zip(*both, strict=True):
        assert ours["embedding"] == pytest.approx(theirs["embedding"], abs=1.1e-5)
    texts = [one.post("/v1/chat/completions", json=CHAT).json() for one in (client, with_torch)]
    assert texts[0]["choices"][0]["message"] == texts[1]["choices"][0]["message"]


def test_no_process_has_torch(server: Server, client: Client) -> None:
    generated(client, REQUESTS["greedy"])
    whole = psutil.Process(server.process.pid)
    for process in (whole, *whole.children(recursive=True)):
        assert mapped(process) == []


@pytest.mark.parametrize(
    "flags", [["--cpu-kernels", "torch"], ["--device", "cuda"]], ids=lambda flags: flags[0]
)
def test_a_flag_that_needs_torch_says_so(flags: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sglang.launch_server", "--port", "0", *flags],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode != 0
    assert "torch is not installed" in done.stderr
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_needs_torch_says_so(tmp_path: Path) -> None:
    architecture = "LlavaForConditionalGeneration"
    config = vision.config(architecture)
    config.architectures = [architecture]
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    command = "import sys; from sglang.srt.config import Config; from sglang.srt.worker import " \
        "model_loading; model_loading.plan_of(Config.of(model_path=sys.argv[1], " \
        "load_format='dummy', cpu_kernels='native'))"  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", command, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert (
        f"no native pass holds all of {architecture} (vision towers); torch is not installed"
        in done.stderr
    )
