"""A launched server: what users and their clients see, and how it ends."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from helpers.http_server import Client, is_error
from helpers.launched import PYTHON, Server, best_model, client_of, gone, launched, toy_model
from helpers.seeds import LONG as LONG_RUN

LONG = {"max_new_tokens": 3000, "ignore_eos": True, "temperature": 0}
SHORT = {"max_new_tokens": 8, "ignore_eos": True, "temperature": 0}
# Processor time of an engine that starts, in seconds.
STAGES = [0.0, 0.1, 0.3, 0.6, 1.0, 1.4, 1.8] if LONG_RUN else [0.0, 0.2, 0.5, 1.0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with launched(best_model(tmp_path_factory.mktemp("model"))) as found:
        yield found


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return toy_model(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def http(server: Server) -> Iterator[Client]:
    """A client; afterwards the server is idle and gives the golden answer of before."""
    with client_of(server) as client:
        before = client.golden()
        yield client
        client.idle()
        assert client.golden() == before


def begun(http: Client, count: int = 1) -> None:
    """Wait until ``count`` requests are being decoded."""
    start = http.stats()["generated_tokens"]
    deadline = time.monotonic() + 60
    while True:
        stats = http.stats()
        if stats["running"] >= count and stats["generated_tokens"] >= start + 3 * count:
            return
        assert time.monotonic() < deadline, stats
        time.sleep(0.02)


# -- in use ---------------------------------------------------------------------------------------


def test_the_first_line(server: Server, http: Client) -> None:
    info = http.get("/get_server_info").json()
    assert server.tokens == info["capacity"]
    assert server.model == info["served_model_name"]
    assert http.get("/health_generate").status_code == 200


def test_curl(server: Server, http: Client) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4})
    command = ["curl", "-sS", f"{server.url}/v1/chat/completions",
               "-H", "Content-Type: application/json", "-d", body]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout)["object"] == "chat.completion"


def test_the_openai_client(server: Server, http: Client) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    model = client.models.list().data[0].id
    done = client.completions.create(model=model, prompt="one two", temperature=0, max_tokens=6)
    assert done.usage is not None
    again = client.completions.create(model=model, prompt="one two", temperature=0, max_tokens=6)
    assert again.choices[0].text == done.choices[0].text
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
    messages: Any = [{"role": "user", "content": "Say hello."}]
    chat = client.chat.completions.create(
        model=model, messages=messages, temperature=0, max_tokens=12
    )
    parts = list(
        client.chat.completions.create(
            model=model, messages=messages, temperature=0, max_tokens=12, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == chat.choices[0].message.content
    assert parts[-1].usage is not None
    assert chat.usage is not None
    assert parts[-1].usage.completion_tokens == chat.usage.completion_tokens


def test_logprobs_of_a_prompt_do_not_depend_on_the_cache(http: Client) -> None:
    body = {"text": "one two three four", "sampling_params": {"max_new_tokens": 0},
            "return_logprob": True, "logprob_start_len": 0}  # fmt: skip
    http.post("/flush_cache")
    first = http.post("/generate", json=body).json()["meta_info"]["input_token_logprobs"]
    again = http.post("/generate", json=body).json()["meta_info"]["input_token_logprobs"]
    assert [t for _, t, _ in first] == [t for _, t, _ in again]
    assert [v for v, _, _ in again[1:]] == pytest.approx([v for v, _, _ in first[1:]], abs=1e-4)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_aborted(server: Server, http: Client, stream: bool) -> None:
    before = http.stats()
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps({"text": "a", "sampling_params": LONG, "stream": stream}).encode()
    head = (
        f"POST /generate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body)
        begun(http)
    after = http.idle()
    assert after["aborted"] == before["aborted"] + 1
    assert after["generated_tokens"] - before["generated_tokens"] < 3000


def test_abort_and_flush_under_traffic(server: Server, http: Client) -> None:
    def ask() -> dict[str, Any]:
        body = {"text": "a", "rid": "r1", "sampling_params": LONG}
        return dict(httpx.post(f"{server.url}/generate", json=body, timeout=60).json())

    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = pool.submit(ask)
        begun(http)
        is_error(http.post("/flush_cache"), 400)
        assert http.post("/abort_request", json={"rid": "r1"}).json()["aborted"] == 1
        assert asked.result()["meta_info"]["finish_reason"]["type"] == "abort"
    http.idle()
    assert http.post("/flush_cache").status_code == 200


def test_neither_server_nor_engine_imports_torch(server: Server) -> None:
    """The native kernels need none (``test_without_torch``)."""
    for pid in (server.process.pid, server.engine().pid):
        maps = Path(f"/proc/{pid}/maps")
        if not maps.exists():
            pytest.skip("no /proc on this machine")
        assert "libtorch" not in maps.read_text()


# -- starting -------------------------------------------------------------------------------------


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sglang.launch_server", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_port_in_use_is_told_before_the_model_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("--port", str(port), "--model-path", "/nowhere/at/all")
    assert done.returncode == 1
    assert str(port) in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_start_that_fails_says_why(toy: list[str], tmp_path: Path) -> None:
    missing = run("--port", "0", "--model-path", str(tmp_path / "nothing"))
    assert missing.returncode == 1
    assert "nothing" in missing.stderr
    wrong = run("--port", "0", "--page-size", "0")
    assert wrong.returncode == 2
    assert "--page-size" in wrong.stderr
    bad = run("--port", "0", *toy[:2], "--load-format", "safetensors")  # a model without weights
    assert bad.returncode == 1
    for done in (missing, wrong, bad):
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


def test_an_invalid_white_space_pattern_is_refused_at_the_start(toy: list[str]) -> None:
    done = run(*toy, "--port", "0", "--constrained-json-whitespace-pattern", "x")
    assert done.returncode == 1
    assert "--constrained-json-whitespace-pattern: whitespace pattern 'x'" in done.stderr


def test_help_lists_every_flag() -> None:
    from sglang.srt.config import Config

    done = run("--help")
    assert done.returncode == 0
    for name in Config().settings():
        assert "--" + name.replace("_", "-") in done.stdout


# -- ending ---------------------------------------------------------------------------------------


def stream_lines(url: str, params: dict[str, Any]) -> list[str]:
    """Every line of a streamed request, read to its end."""
    body = {"text": "a", "sampling_params": params, "stream": True}
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=60) as reply:
        assert reply.status_code == 200
        return [line for line in reply.iter_lines() if line]


def drains(http: Client) -> None:
    """Wait until the server accepts no more requests."""
    deadline = time.monotonic() + 60
    while (reply := http.post("/tokenize", json={"prompt": "b"})).status_code == 200:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert is_error(reply, 503)["code"] == "draining"


@pytest.mark.usefixtures("hung_up")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_drains(toy: list[str], number: signal.Signals) -> None:
    with launched(toy) as server, client_of(server) as http:
        engine = server.engine()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = pool.submit(stream_lines, server.url, {**LONG, "max_new_tokens": 1000})
            begun(http)
            for process in (server.process, engine):  # a terminal sends it to all
                process.send_signal(number)
            drains(http)
            refused = is_error(http.post("/generate", json={"text": "b"}), 503)
            assert refused["code"] == "draining"
            lines = asked.result()
        assert lines[-1] == "data: [DONE]"
        last = json.loads(lines[-2].removeprefix("data: "))
        assert last["meta_info"]["completion_tokens"] == 1000
        assert server.wait_end() == 0
        gone([engine])


def test_what_outlasts_a_drain_ends_with_an_error(toy: list[str]) -> None:
    with launched([*toy, "--drain-timeout", "0.3"]) as server, client_of(server) as http:
        engine = server.engine()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = [pool.submit(stream_lines, server.url, LONG) for _ in range(2)]
            begun(http, 2)
            command = [sys.executable, "-m", "sglang.srt.cli", "drain", server.url, "--wait"]
            environment = {**os.environ, "PYTHONPATH": str(PYTHON)}
            done = subprocess.run(command, env=environment, timeout=120)
            assert done.returncode == 0
            for lines in (one.result() for one in asked):
                last = json.loads(lines[-1].removeprefix("data: "))
                assert last["error"]["code"] == "draining"
        assert http.get("/drain").json() == {"draining": True, "pending": 0, "seconds_left": 0}
        assert [http.get(path).status_code for path in ("/livez", "/readyz")] == [200, 503]
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_end() == 0
        gone([engine])


def test_a_second_sigterm_ends_at_once(toy: list[str]) -> None:
    with launched(toy) as server, client_of(server) as http:
        engine = server.engine()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            asked = pool.submit(stream_lines, server.url, LONG)
            begun(http)
            server.process.send_signal(signal.SIGTERM)
            drains(http)
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGTERM)
            assert server.wait_end() == 128 + signal.SIGTERM
            with pytest.raises(httpx.HTTPError):
                asked.result()
        gone([engine])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_dies_ends_requests_and_server(toy: list[str], number: int) -> None:
    def ask(url: str) -> httpx.Response:
        return httpx.post(
            f"{url}/generate", json={"text": "a", "sampling_params": LONG}, timeout=60
        )

    with launched([*toy, "--max-engine-restarts", "0"]) as server, client_of(server) as http:
        engine = server.engine()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            streamed = pool.submit(stream_lines, server.url, LONG)
            plain = pool.submit(ask, server.url)
            begun(http, 2)
            engine.send_signal(number)
            error = is_error(plain.result(), 503)
            lines = streamed.result()
        assert error["code"] == "engine_lost"
        assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "engine_lost"
        assert server.wait_end() == 1
        gone([engine])


def test_a_server_that_is_killed_takes_its_engine_along(toy: list[str]) -> None:
    with launched(toy) as server:
        engine = server.engine()
        server.process.kill()
        server.wait_end()
        gone([engine])


@pytest.mark.parametrize("seconds", STAGES)
def test_a_server_killed_while_loading_leaves_no_engine(
    toy: list[str], seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill the server at each stage of the engine's start, found by the engine's processor time:
    before its first line, in its imports, while it makes the model, and when it first sends."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with launched(toy, ready=False) as server:
        deadline = time.monotonic() + 120
        while not psutil.Process(server.process.pid).children():
            assert time.monotonic() < deadline
        engine = server.engine()
        assert server.process.stdout is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            while (
                sum(engine.cpu_times()[:2]) < seconds
                and not select.select([server.process.stdout], [], [], 0.01)[0]
            ):
                assert time.monotonic() < deadline
        server.process.kill()
        server.wait_end()
        gone([engine])
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("sglang-")] == []


def test_a_cache_below_a_prompt_and_a_token_ends_the_launch(toy: list[str]) -> None:
    with launched([*toy, "--max-total-tokens", "1"], ready=False) as server:
        assert server.wait_end() == 1
        errors = server.errors()
    assert "no room is left to generate" in errors
    assert "Traceback" not in errors


def test_sighup_while_loading_ends_nothing(toy: list[str], tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('[{"name": "a", "key": "old"}]')
    with launched([*toy, "--api-keys-file", str(keys)], ready=False) as server:
        deadline = time.monotonic() + 60
        while not psutil.Process(server.process.pid).children():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        keys.write_text('[{"name": "a", "key": "new"}]')
        server.process.send_signal(signal.SIGHUP)
        server.wait_ready()
        with client_of(server) as http:
            assert http.get("/health", headers={"x-api-key": "new"}).status_code == 200
            assert http.get("/health", headers={"x-api-key": "old"}).status_code == 401


def test_sigterm_while_loading(toy: list[str]) -> None:
    with launched(toy, ready=False) as server:
        deadline = time.monotonic() + 60
        while not psutil.Process(server.process.pid).children():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        engine = server.engine()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_end() == 128 + signal.SIGTERM
        assert "Traceback" not in server.errors()
        gone([engine])
