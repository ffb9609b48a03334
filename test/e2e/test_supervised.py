"""A launched server whose engine is lost: it goes on, ends in order, or ends with the reason."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import sglang as sgl
from helpers.http_server import Client, is_error
from helpers.launched import PYTHON, Server, client_of, gone, launched, toy_model
from sglang.terminal.chaos.crash_bundle import load_bundle
from sglang.terminal.chat_stream import ChatServer

LONG = {"max_new_tokens": 3000, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return toy_model(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files of this test's servers."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def stream_lines(url: str) -> list[str]:
    body = {"text": "a", "sampling_params": LONG, "stream": True}
    with httpx.stream("POST", f"{url}/generate", json=body, timeout=60) as reply:
        assert reply.status_code == 200
        return [line for line in reply.iter_lines() if line]


def ask(url: str) -> httpx.Response:
    return httpx.post(f"{url}/generate", json={"text": "a", "sampling_params": LONG}, timeout=60)


def running(http: Client, count: int) -> None:
    deadline = time.monotonic() + 60
    while http.stats()["running"] < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def health(http: Client, status: int) -> httpx.Response:
    """The answer of /health once it has this status."""
    deadline = time.monotonic() + 60
    while True:
        reply = http.get("/health")
        if reply.status_code == status:
            return reply
        assert time.monotonic() < deadline, reply.text
        time.sleep(0.02)


def test_after_a_kill_and_a_stop_the_same_bytes_come_again(toy: list[str]) -> None:
    with launched(toy) as server, client_of(server) as http:
        before, info = http.golden(), http.get("/get_model_info").json()
        whole = ask(server.url).json()["text"]
        engines = []
        for number in (signal.SIGKILL, signal.SIGSTOP):
            engines.append(server.engine())
            with concurrent.futures.ThreadPoolExecutor() as pool:
                streamed = pool.submit(stream_lines, server.url)
                plain = pool.submit(ask, server.url)
                running(http, 2)
                engines[-1].send_signal(number)
                refused = health(http, 503)
                assert refused.headers["retry-after"]
                assert "started again" in is_error(refused, 503)["message"]
                assert http.get("/metrics").status_code == 200
                health(http, 200)
                assert plain.result().json()["text"] == whole
                lines = [line for line in streamed.result() if "{" in line]
                assert json.loads(lines[-1].removeprefix("data: "))["text"] == whole
            assert http.golden() == before
            assert http.get("/get_model_info").json() == info
            http.idle()
        gone(engines)
        metrics = http.get("/metrics").text
        assert re.search(r"sglang:engine_restarts_total{.*} 2.0", metrics)
        assert re.search(r"sglang:resumed_requests_total{.*} 4.0", metrics)


def test_a_program_and_a_chat_wait_for_the_next_engine(toy: list[str]) -> None:
    """Each begins while the engine is being started again."""

    @sgl.function
    def program(s: Any) -> None:
        s += "a" + sgl.gen("x", 8, ignore_eos=True, temperature=0)

    chat = {"model": "default", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
    with launched([*toy, "--max-engine-restarts", "4"]) as server, client_of(server) as http:
        endpoint = sgl.RuntimeEndpoint(server.url)
        whole = program.run(backend=endpoint)["x"]
        for ask in (
            lambda: asyncio.run(program.arun(backend=endpoint))["x"] == whole,
            lambda: "".join(program.run(backend=endpoint, stream=True).text_iter("x")) == whole,
            lambda: program.run(backend=endpoint, on="server")["x"] == whole,
            lambda: [piece.finish for piece in ChatServer(server.url).stream(chat)].count("length"),
        ):
            server.engine().send_signal(signal.SIGKILL)
            health(http, 503)
            assert ask()
            health(http, 200)
        endpoint.shutdown()


def test_too_many_losses_end_the_server_with_the_reason(toy: list[str]) -> None:
    """Requests that may not go on end with their engine."""
    flags = [*toy, "--max-engine-restarts", "1", "--max-resumes", "0"]
    with launched(flags) as server, client_of(server) as http:
        engine = server.engine()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            streamed = pool.submit(stream_lines, server.url)
            plain = pool.submit(ask, server.url)
            running(http, 2)
            engine.kill()
            assert is_error(plain.result(), 503)["code"] == "engine_lost"
            last = json.loads(streamed.result()[-1].removeprefix("data: "))
            assert last["error"]["code"] == "engine_lost"
        gone([engine])
        health(http, 200)
        engine = server.engine()
        engine.kill()
        gone([engine])
        assert server.wait_end() == 1
        errors = server.errors()
        assert "exited with code -9; starting the engine again (1 of 1)" in errors
        assert "exited with code -9; the server exits" in errors
        assert "Traceback" not in errors


def test_what_a_lost_engine_had_is_replayed(toy: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "crashes"
    with launched([*toy, "--crash-dump-folder", str(folder)]) as server, client_of(server) as http:
        whole = ask(server.url).json()["text"]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            plain = pool.submit(ask, server.url)
            running(http, 1)
            server.engine().kill()
            assert plain.result().json()["text"] == whole
        http.idle()
    (path,) = folder.iterdir()
    bundle = load_bundle(str(path))
    assert "exited with code -9" in bundle.failures[0]["error"]
    assert whole.startswith(bundle.failures[0]["found"])
    again = subprocess.run(
        [sys.executable, "-m", "sglang", "replay", str(path)],
        env={**os.environ, "PYTHONPATH": str(PYTHON)}, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert again.returncode == 0, again.stdout + again.stderr
    assert "1 right answer" in again.stdout


@pytest.mark.parametrize("taken", ["file", "file/below"])
def test_a_folder_for_crashes_that_cannot_be_is_refused(
    toy: list[str], tmp_path: Path, taken: str
) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "sglang.launch_server", *toy, "--port", "0",
         "--crash-dump-folder", str(tmp_path / taken)],
        env={**os.environ, "PYTHONPATH": str(PYTHON)}, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode != 0
    assert "--crash-dump-folder" in done.stderr
    assert "cannot be a folder" in done.stderr
    assert "Traceback" not in done.stderr


def respawning(server: Server) -> psutil.Process:
    """The engine that is being loaded in place of one that was killed."""
    first = server.engine()
    first.kill()
    parent, deadline = psutil.Process(server.process.pid), time.monotonic() + 20
    while True:
        new = [child for child in parent.children() if child.pid != first.pid]
        if new:
            return new[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("signals", [1, 2])
def test_signals_while_the_engine_is_loading_again(
    toy: list[str], alone: Path, signals: int
) -> None:
    with launched(toy) as server:
        engine = respawning(server)
        for _ in range(signals):
            server.process.send_signal(signal.SIGTERM)
        code = server.wait_end()
        assert code in (0, 128 + signal.SIGTERM)
        assert signals == 2 or code == 0
        gone([engine])
        assert not [path for path in alone.iterdir() if path.name.startswith("sglang-")]
        assert "Traceback" not in server.errors()


def test_a_server_that_is_killed_takes_the_second_engine_along(toy: list[str]) -> None:
    with launched(toy) as server, client_of(server) as http:
        respawning(server)
        health(http, 200)
        engine = server.engine()
        server.process.kill()
        server.wait_end()
        gone([engine])


def test_a_runtime_that_is_killed_takes_its_server_along(toy: list[str], tmp_path: Path) -> None:
    code = (
        "import sys, time, sglang as sgl\n"
        f"runtime = sgl.Runtime(model_path={toy[1]!r}, load_format='dummy', threads=1)\n"
        "print(runtime.process.pid, flush=True)\n"
        "time.sleep(100)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PYTHON), "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    server = psutil.Process(int(parent.stdout.readline()))
    family = [server, *server.children(recursive=True)]
    assert len(family) > 1
    parent.kill()
    parent.wait()
    parent.stdout.close()
    gone(family)
