"""A launched server as its operators see it: its log, its traces, its command line."""

from __future__ import annotations

import http.server
import json
import signal
import socket
import threading
import time

import pytest
from helpers.http_server import GOLDEN
from helpers.launched import client_of, launched, toy_model


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return toy_model(tmp_path_factory.mktemp("toy"))


def test_every_line_of_a_json_log_is_json(toy: list[str]) -> None:
    flags = ["--log-format", "json", "--log-requests", "--log-requests-level", "2"]
    with launched([*toy, *flags]) as server, client_of(server) as http:
        http.post("/generate", json={**GOLDEN, "rid": 'a"\n{"level":"forged"}'})
        engine = server.engine()
        engine.kill()
        deadline = time.monotonic() + 60
        while http.get("/health").status_code == 200:
            assert time.monotonic() < deadline
        while http.get("/health").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_end() == 0
        lines = [json.loads(line) for line in server.errors().splitlines()]
    (request,) = [line for line in lines if line.get("route") == "/generate"]
    assert request["prompt_tokens"] > 0
    assert request["inputs"] == [GOLDEN["text"]]
    assert not [line for line in lines if line["level"] == "forged"]
    assert any("starting the engine again" in line["message"] for line in lines)


def test_a_log_that_nobody_reads_stops_nothing(toy: list[str]) -> None:
    with launched([*toy, "--log-requests", "--log-requests-level", "3"]) as server:
        with client_of(server) as http:
            before = http.golden()
            body = {"text": "é" * 1500, "sampling_params": {"max_new_tokens": 0}}
            for _ in range(60):  # several pipes full
                assert http.post("/generate", json=body).status_code == 200
            assert http.golden() == before
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_end() == 0


class Collector(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        self.received: list[bytes] = []
        received = self.received

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                received.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


def test_spans_are_out_before_the_server_is(toy: list[str]) -> None:
    with Collector() as collector:
        endpoint = f"http://127.0.0.1:{collector.server_address[1]}"
        with launched([*toy, "--otlp-traces-endpoint", endpoint]) as server:
            with client_of(server) as http:
                http.golden()
            server.process.send_signal(signal.SIGTERM)
            assert server.wait_end() == 0
        collector.shutdown()
    assert b"gen_ai.usage.output_tokens" in b"".join(collector.received)
    assert str(GOLDEN["text"]).encode() not in b"".join(collector.received)


def test_a_collector_that_is_away_delays_nothing(toy: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with launched([*toy, "--otlp-traces-endpoint", endpoint]) as server:
            with client_of(server) as http:
                http.golden()
            server.process.send_signal(signal.SIGTERM)
            assert server.wait_end() == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--otlp-traces-endpoint", "collector"], "give a URL such as"),
        (["--watchdog-timeout", "-1"], "--watchdog-timeout is -1.0; it must be 0 or more"),
        (["--exit-with-parent", "1"], ""),
    ],
)
def test_what_cannot_be_is_said_before_the_model_is_read(
    toy: list[str], flags: list[str], words: str
) -> None:
    with launched([*toy, *flags], ready=False) as server:
        assert server.wait_end() != 0
        errors = server.errors()
    assert words in errors
    assert "Traceback" not in errors
