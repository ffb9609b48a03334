"""A launched server with two engines, which are killed while clients read streams."""

from __future__ import annotations

import concurrent.futures
import json
import random
import re
import signal
import subprocess
import sys
import time
from typing import Any

import httpx
import psutil
import pytest
from helpers.launched import PYTHON, Server, client_of, launched

STREAMS = 16
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"sampling_seed": 3, "temperature": 1.0},
    {"sampling_seed": 4, "temperature": 1.0, "frequency_penalty": 0.7, "repetition_penalty": 1.2},
    {"sampling_seed": 5, "temperature": 1.0, "stop": ["zq", " x"]},
    {"sampling_seed": 6, "temperature": 1.0, "regex": "([a-z]{3,9} ){40,60}", "ignore_eos": False},
    {
        "sampling_seed": 7, "temperature": 1.0, "ignore_eos": False,
        "json_schema": '{"type": "array", "items": {"type": "integer"}, "minItems": 60}',
    },
    {"sampling_seed": 8, "temperature": 1.0, "min_new_tokens": 200},
    {"sampling_seed": 9, "temperature": 1.0, "n": 2},
]  # fmt: skip


def streamed(url: str, index: int) -> dict[int, Any]:
    """The end of each completion. Texts only grow."""
    sampling = {"max_new_tokens": 250, "ignore_eos": True, **KINDS[index % len(KINDS)]}
    body = {
        "text": f"the lazy dog {index} jumps", "sampling_params": sampling, "stream": True,
        "return_logprob": index % 3 == 0,
    }  # fmt: skip
    found: dict[int, Any] = {}
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=120) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if "{" in line:
                item = json.loads(line.removeprefix("data: "))
                assert "error" not in item, item
                number = item.get("index", 0)
                before = found.get(number, item)
                assert item["text"].startswith(before["text"]), "a text that was sent has changed"
                found[number] = item
    return found


def seen(found: dict[int, Any]) -> dict[int, Any]:
    """The client's view of completions, without times and caches."""
    return {
        number: (
            item["text"], item["output_ids"], item["meta_info"]["finish_reason"],
            item["meta_info"].get("output_token_logprobs"), item["meta_info"]["completion_tokens"],
        )
        for number, item in found.items()
    }  # fmt: skip


def engines(server: Server) -> list[psutil.Process]:
    children = psutil.Process(server.process.pid).children()
    return [child for child in children if "sglang.srt.engine.process" in " ".join(child.cmdline())]


def test_streams_survive_the_kills_of_engines() -> None:
    """Greedy and sampled, with penalties, stops, grammars, log-probabilities and n: each stream is
    that of a server whose engines live."""
    chance = random.Random(5)
    flags = ["--dp-size", "2", "--max-resumes", "9", "--max-engine-restarts", "9"]
    with launched(flags) as server, client_of(server) as http:
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            whole = [seen(f) for f in pool.map(lambda i: streamed(server.url, i), range(STREAMS))]
            under_way = [pool.submit(streamed, server.url, index) for index in range(STREAMS)]
            for number in (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP):
                while len(serving(http)) < 2:
                    time.sleep(0.02)
                time.sleep(chance.uniform(0.1, 0.4))
                chance.choice(engines(server)).send_signal(number)
                time.sleep(0.1)
            assert [seen(future.result()) for future in under_way] == whole
        while len(serving(http)) < 2:
            time.sleep(0.02)
        http.idle()
        metrics = http.get("/metrics").text
        found = re.search(r"sglang:resumed_requests_total{.*} ([0-9.]+)", metrics)
        assert found is not None
        assert float(found[1]) > 0, "no request has moved"
        command = [sys.executable, "-m", "sglang.srt.cli", "workers", server.url]
        environment = {"PYTHONPATH": str(PYTHON), "PATH": "/usr/bin:/bin"}
        removed = subprocess.run(
            [*command, "--remove", "1"], env=environment, capture_output=True, text=True, timeout=60
        )
        assert removed.returncode == 0, removed.stderr
        assert re.search(r"(?m)^0 +serving", removed.stdout)
        refused = subprocess.run(
            [*command, "--remove", "0"], env=environment, capture_output=True, text=True, timeout=60
        )
        assert refused.returncode == 1
        assert "'0' is the only one" in refused.stderr
        assert seen(streamed(server.url, 1)) == whole[1]


def serving(http: httpx.Client) -> list[str]:
    shown = http.get("/workers").json()["workers"]
    return [each["name"] for each in shown if each["state"] == "serving"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dp-size", "2", "--nnodes", "2", "--dist-init-addr", "h:1"], "a server of its own"),
        (["--engines", "tcp://127.0.0.1:1"], "127.0.0.1:1"),
        (["--engine-keys", "front.key"], "there are no --engines to use it for"),
    ],
)
def test_a_fleet_that_cannot_be_ends_with_one_line(flags: list[str], message: str) -> None:
    command = [sys.executable, "-m", "sglang.launch_server", "--port", "0", *flags]
    environment = {"PYTHONPATH": str(PYTHON), "PATH": "/usr/bin:/bin"}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert found.returncode in (1, 2)
    assert message in found.stderr
    assert "Traceback" not in found.stderr
