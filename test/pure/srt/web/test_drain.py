"""Probes, the drain of a server, and the waits that refusals tell."""

from __future__ import annotations

import concurrent.futures
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.http_server import Served, is_error, serve_text
from sglang.srt.commands import drain_command
from sglang.srt.config import Config
from sglang.srt.config.command_line import Parser
from sglang.srt.web.exchange.error_replies import CODES, ServerError, error_response
from sglang.srt.web.server_state import ServerState

LONG = {"max_new_tokens": 400, "ignore_eos": True, "temperature": 0}
PROBES = ("/livez", "/readyz", "/startupz")
PASS = 0.02  # seconds of a forward pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    config = Config.of(drain_timeout=60.0, admin_api_key="admin")
    with serve_text(tmp_path, config, seconds=PASS) as server:
        server.client.headers["Authorization"] = "Bearer admin"
        yield server


def statuses(http: httpx.Client) -> list[int]:
    return [http.get(path).status_code for path in PROBES]


def wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def running(served: Served) -> bool:
    return bool(served.client.stats()["running"])


def stream(served: Served, **params: Any) -> list[str]:
    body = {"text": "a", "sampling_params": {**LONG, **params}, "stream": True}
    with httpx.stream("POST", f"{served.url}/generate", json=body, timeout=60) as reply:
        assert reply.status_code == 200
        return [line for line in reply.iter_lines() if line]


def test_probes_need_no_key_and_no_known_host(served: Served) -> None:
    with httpx.Client(base_url=served.url, headers={"Host": "elsewhere.example"}) as http:
        assert statuses(http) == [200, 200, 200]
        assert http.get("/health").status_code == 403
        assert http.post("/readyz").status_code == 405


def test_probes_answer_head_without_a_body(served: Served) -> None:
    for path in ("/health", *PROBES):
        reply = served.client.head(path)
        assert (reply.status_code, reply.content) == (200, b"")
    assert served.client.head("/flush_cache").status_code == 405  # a GET that changes something


def test_a_drain_needs_the_admins_key(served: Served) -> None:
    for method in ("GET", "POST"):
        is_error(httpx.request(method, f"{served.url}/drain"), 401)
    assert served.client.get("/drain").json() == {
        "draining": False, "pending": 0, "seconds_left": None,
    }  # fmt: skip


def test_a_drain_finishes_what_is_open(served: Served) -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = pool.submit(stream, served, max_new_tokens=100)
        wait(lambda: running(served))
        first = served.client.post("/drain").json()
        assert (first["draining"], first["pending"]) == (True, 1)
        again = served.client.post("/drain").json()  # the same drain
        assert again["seconds_left"] <= first["seconds_left"] <= 60
        assert statuses(served.client) == [200, 503, 200]
        refused = served.client.post("/generate", json={"text": "b"})
        assert is_error(refused, 503)["code"] == "draining"
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.headers["connection"] == "close"
        lines = asked.result()
    assert lines[-1] == "data: [DONE]"
    last = json.loads(lines[-2].removeprefix("data: "))
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 100}
    wait(lambda: served.client.get("/drain").json()["pending"] == 0)
    wait(served.state.drain.over.is_set)


@pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/embeddings"])
def test_what_outlasts_the_drain_ends_with_its_error(tmp_path: Path, path: str) -> None:
    bodies = {
        "/generate": {"text": "a", "sampling_params": LONG},
        "/v1/completions": {"model": "sglang-tiny", "prompt": "a", "max_tokens": 400},
        "/v1/embeddings": {"model": "sglang-tiny", "input": "a"},
    }
    config = Config.of(drain_timeout=0.05)
    with serve_text(tmp_path, config, seconds=PASS) as served:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            url = served.url + path
            streamed = pool.submit(stream, served)
            wait(lambda: served.client.stats()["generated_tokens"])
            served.client.post("/pause_generation", json={"mode": "in_place"})
            whole = pool.submit(httpx.post, url, json=bodies[path], timeout=60)
            wait(lambda: served.client.stats()["waiting"])
            assert served.client.post("/drain").json()["draining"]
            error = is_error(whole.result(), 503)
            assert (error["code"], whole.result().headers["Retry-After"]) == ("draining", "5")
            assert "--drain-timeout" in error["message"]
            last = json.loads(streamed.result()[-1].removeprefix("data: "))
            assert last["error"]["code"] == "draining"
        wait(lambda: served.client.get("/drain").json()["pending"] == 0)


def test_a_full_queue_is_not_ready(tmp_path: Path) -> None:
    options: dict[str, Any] = {"running": 1, "queued": 1}
    with serve_text(tmp_path, seconds=PASS, **options) as served:
        assert statuses(served.client) == [200, 200, 200]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = [pool.submit(stream, served, max_new_tokens=60)]
            wait(lambda: running(served))
            asked.append(pool.submit(stream, served, max_new_tokens=60))
            wait(lambda: served.state.runtime.completion.pending == 2)
            reply = served.client.get("/readyz")
            assert is_error(reply, 503)["code"] == "overloaded"
            assert int(reply.headers["Retry-After"]) >= 1
            full = served.client.post("/generate", json={"text": "b"})
            assert is_error(full, 429)["code"] == "queue_full"
            assert int(full.headers["Retry-After"]) >= 1
            for one in asked:
                assert one.result()[-1] == "data: [DONE]"
        wait(lambda: statuses(served.client) == [200, 200, 200])


@pytest.mark.parametrize("code", [code for code, (status, _) in CODES.items() if status > 428])
def test_whatever_may_be_sent_again_tells_when(code: str) -> None:
    reply = error_response(ServerError(code, "Later."))
    waits = reply.status_code in (429, 503)
    assert waits == ("retry-after" in reply.headers)
    assert not waits or int(reply.headers["retry-after"]) >= 1


def drain(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    parser = Parser()
    drain_command.add_parser_arguments(parser)
    code = drain_command.run(parser.parse_args(arguments), parser)
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_the_command_waits_for_open_requests(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SGLANG_ADMIN_API_KEY", raising=False)
    monkeypatch.delenv("SGLANG_API_KEY", raising=False)
    code, told = drain(capsys, served.url)
    assert (code, served.state.draining) == (1, False)
    assert "key" in told
    monkeypatch.setenv("SGLANG_ADMIN_API_KEY", "admin")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = pool.submit(stream, served, max_new_tokens=60)
        wait(lambda: running(served))
        code, told = drain(capsys, served.url, "--wait")
        assert (code, told) == (0, f"{served.url} drains: 0 requests open\n")
        assert asked.result()[-1] == "data: [DONE]"


@pytest.mark.parametrize(
    ("url", "told"),
    [("ftp://127.0.0.1:1", "URL is 'ftp://127.0.0.1:1'; it must begin with http:// or https://"),
     ("http://127.0.0.1:1", "no server answers at http://127.0.0.1:1")],
)  # fmt: skip
def test_the_command_names_a_wrong_address(
    capsys: pytest.CaptureFixture[str], url: str, told: str
) -> None:
    code, found = drain(capsys, url)
    assert code == 1
    assert told in found


@pytest.mark.parametrize("seconds", [-1.0, 86401.0, float("nan")])
def test_a_wrong_timeout_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"--drain-timeout is .*; it must be from 0 to 86400"):
        Config.of(drain_timeout=seconds)


def test_a_stalled_engine_ends_the_process_if_nothing_else_does(tmp_path: Path) -> None:
    for timeout, status in ((300.0, 200), (0.0, 503)):
        with serve_text(tmp_path / str(status), Config.of(watchdog_timeout=timeout)) as served:
            state: ServerState = served.state
            state.runtime.completion.engines.clients[0].stalled = "planning for 12 s, request 7"
            found = served.client.get("/livez")
            assert found.status_code == status
            ready = served.client.get("/readyz")
            assert is_error(ready, 503)["code"] == "engine_stalled"
            assert "request 7" not in found.text + ready.text
