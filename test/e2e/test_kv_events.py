"""KV events of a launched server, read by a subscriber that knows the schema alone."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
from helpers.kv_subscriber import Subscriber, replayed
from helpers.launched import client_of, launched, toy_model

PROMPT = list(range(40))
SHORT = {"max_new_tokens": 1, "temperature": 0}


def known(endpoint: str, ends: object) -> Subscriber:
    """A subscriber that has replayed everything, once its last event is of the kind ``ends``."""
    deadline = time.monotonic() + 60
    while True:
        subscriber = Subscriber(16)
        for number, payload in replayed(endpoint, 0):
            subscriber.receive(number, payload)
        if subscriber.next and bool(subscriber.known) == ends:
            return subscriber
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_server_publishes_what_its_cache_holds(tmp_path: Path) -> None:
    replay = f"ipc://{tmp_path}/replay"
    events = {"enable_kv_cache_events": True, "publisher": "zmq",
              "endpoint": f"ipc://{tmp_path}/events", "replay_endpoint": replay}  # fmt: skip
    flags = [*toy_model(tmp_path / "toy"), "--kv-events-config", json.dumps(events)]
    with launched(flags) as server, client_of(server) as http:
        body = {"input_ids": PROMPT, "sampling_params": SHORT}
        assert http.post("/generate", json=body).status_code == 200
        paths = {path for _, _, path in known(replay, True).paths()}
        assert {tuple(PROMPT[:16]), tuple(PROMPT[:32])} <= paths
        http.post("/flush_cache")
        known(replay, False)
        assert http.post("/generate", json=body).status_code == 200
        known(replay, True)
        server.engine().kill()  # the next one numbers from 0, and begins by clearing
        deadline = time.monotonic() + 60
        while httpx.get(f"{server.url}/readyz", timeout=60).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        known(replay, False)
        assert replayed(replay, 0)[0][0] == 0


def test_a_port_in_use_ends_the_launch_with_its_name(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        events = {"publisher": "zmq", "endpoint": f"tcp://*:{port}"}
        flags = [*toy_model(tmp_path / "toy"), "--kv-events-config", json.dumps(events)]
        command = [sys.executable, "-m", "sglang.launch_server", "--port", "0", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"endpoint 'tcp://*:{port}' cannot be bound" in done.stderr
    assert "Traceback" not in done.stderr
