"""The journal: one line a request, with its outcome, and no more than was configured."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.http_server import Served, serve_text
from sglang.srt.config import Config
from sglang.srt.system import logs

PROMPT, SECRET = "the lazy dog", "tell nobody"
GREEDY = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}


class Lines:
    """Parsed lines of the request log."""

    def __init__(self) -> None:
        self._stream = io.StringIO()
        self._handler = logs.Writer(self._stream)
        self._handler.setFormatter(logs.JsonLines())
        self._log = logging.getLogger("sglang.requests")
        self._log.setLevel(logging.INFO)
        self._log.propagate = False
        self._log.addHandler(self._handler)

    def close(self) -> None:
        self._log.removeHandler(self._handler)
        self._log.propagate = True

    def text(self) -> str:
        self._handler.flush()
        return self._stream.getvalue()

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]

    def last(self, route: str, count: int = 1) -> dict[str, Any]:
        """The last of ``count`` lines about ``route``; it is written after the answer is out."""
        deadline = time.monotonic() + 60
        while len(found := [line for line in self.all() if line["route"] == route]) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return found[-1]


@pytest.fixture
def lines() -> Iterator[Lines]:
    found = Lines()
    yield found
    found.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("tokenizer")
    with serve_text(directory, Config.of(log_requests=True, log_requests_level=0)) as server:
        yield server


def test_a_line_says_what_became_of_a_request(served: Served, lines: Lines) -> None:
    body = {"prompt": PROMPT, "max_tokens": 6, "n": 2, "ignore_eos": True, "user": SECRET}
    headers = {"X-Request-Id": "mine-1"}
    reply = served.client.post("/v1/completions", json=body, headers=headers)
    found, usage = lines.last("/v1/completions"), reply.json()["usage"]
    assert found["message"] == "request"
    assert (found["id"], found["method"], found["status"]) == ("mine-1", "POST", 200)
    assert found["response_id"] == reply.json()["id"]
    assert found["prompts"] == 1
    assert found["prompt_tokens"] == usage["prompt_tokens"]
    assert found["completion_tokens"] == usage["completion_tokens"] == 12
    assert found["finish_reasons"] == {"length": 2}
    assert 0 <= found["queue_seconds"] <= found["first_token_seconds"] <= found["seconds"] < 60
    assert "client_gone" not in found
    again = served.client.post("/v1/completions", json=body)
    assert lines.last("/v1/completions", 2)["cached_tokens"] > 0
    assert again.status_code == 200


def test_a_stream_has_its_line_when_it_has_ended(served: Served, lines: Lines) -> None:
    body = {"text": PROMPT, "sampling_params": GREEDY, "stream": True, "rid": "a-name"}
    with served.client.stream("POST", "/generate", json=body) as reply:
        rows = [row for row in reply.iter_lines() if row]
    assert rows[-1] == "data: [DONE]"
    found = lines.last("/generate")
    assert (found["status"], found["completion_tokens"]) == (200, 6)
    assert found["response_id"] == "a-name"


def test_a_client_that_leaves_is_told_apart(served: Served, lines: Lines) -> None:
    for stream in (True, False):
        body = {"text": "leave", "stream": stream,
                "sampling_params": {**GREEDY, "max_new_tokens": 900}}  # fmt: skip
        served.worker.seconds = 0.005
        connection = served.open(body)
        if stream:
            connection.recv(1000)
        else:
            while not served.client.stats()["running"]:
                time.sleep(0.005)
        connection.close()
        served.client.idle()
        served.worker.seconds = 0.0
        deadline = time.monotonic() + 60
        while lines.last("/generate").get("client_gone") is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        found = lines.last("/generate")
        assert found["status"] == (200 if stream else 499)
        assert "finish_reasons" not in found


@pytest.mark.parametrize(
    ("method", "path", "route", "status"),
    [
        ("GET", "/v1/models", "/v1/models", 200),
        ("GET", "/v1/models/other", "/v1/models/{name:path}", 404),
        ("GET", "/nowhere/at/all", "other", 404),
        ("DELETE", "/generate", "/generate", 405),
        ("POST", "/generate", "/generate", 415),
    ],
)
def test_routes_are_templates(
    method: str, path: str, route: str, status: int, served: Served, lines: Lines
) -> None:
    assert served.client.request(method, path).status_code == status
    found = lines.last(route)
    assert (found["method"], found["status"]) == (method, status)


def test_probes_make_no_noise(served: Served, lines: Lines) -> None:
    for path in ("/health", "/metrics", "/v1/models"):
        served.client.get(path)
    lines.last("/v1/models")
    assert {line["route"] for line in lines.all()} == {"/v1/models"}


@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_levels_say_more_and_more(level: int, tmp_path: Path, lines: Lines) -> None:
    with serve_text(tmp_path, Config.of(log_requests=True, log_requests_level=level)) as served:
        text = SECRET * 40
        sampling = {**GREEDY, "stop": ["x" * 1000], "max_new_tokens": 300}
        reply = served.client.post("/generate", json={"text": text, "sampling_params": sampling})
        found = lines.last("/generate")
    assert ("parameters" in found) == (level >= 1)
    assert ("inputs" in found) == ("outputs" in found) == (level >= 2)
    if level == 0:
        assert SECRET not in lines.text()
        assert "xxx" not in lines.text()
    if level >= 1:
        assert found["parameters"][0]["max_new_tokens"] == 300
        assert len(found["parameters"][0]["stop"][0]) == (1000 if level == 3 else 256)
    if level == 2:
        assert found["inputs"] == [text[:256]]
        assert found["outputs"] == [reply.json()["text"][:256]]
    if level == 3:
        assert found["inputs"] == [text]
        assert found["outputs"] == [reply.json()["text"]]


def test_hostile_names_stay_in_their_line(served: Served, lines: Lines) -> None:
    rid = "a\nrequest id=forged status=200\x1b[2J"
    body = {"text": PROMPT, "sampling_params": GREEDY, "rid": rid}
    assert served.client.post("/generate", json=body).status_code == 200
    found = lines.last("/generate")
    assert found["response_id"] == rid
    record = logging.LogRecord("sglang.requests", logging.INFO, "", 0, "request", None, None)
    record.fields = found
    assert len(logs.Lines(logs.TEXT).format(record).splitlines()) == 1
    assert logs.Lines(logs.TEXT).format(record).isprintable()


def test_without_the_flag_there_is_no_line(tmp_path: Path, lines: Lines) -> None:
    with serve_text(tmp_path, Config.of(log_requests_level=3)) as served:
        served.client.golden()
    assert lines.text() == ""
