"""RuntimeEndpoint and Runtime over real HTTP, against a scripted server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import sglang as sgl
from helpers.counted import reaches
from helpers.threads import running_threads
from sglang.backend.engine.launched_runtime import _flags
from sglang.utils import terminate_process

BRANCHES = 5


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Fake

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            return self.reply(401, {"error": {"message": "wrong key", "type": "x"}})
        if self.server.foreign:
            return self.reply(200, self.server.foreign)
        info = {"model_path": "/models/Qwen2-0.5B", "chat_template": None}
        return self.reply(200, info if self.path == "/get_model_info" else {"path": self.path})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        self.server.bodies.append((self.path, body))
        text = str(body.get("text"))
        if self.path != "/generate":
            return self.reply(404, {"error": {"message": f"no route {self.path}"}})
        if self.server.foreign:
            return self.reply(200, self.server.foreign)
        if "hang" in text or "stall" in text:
            return self.hold(text)
        if "bad" in text:
            return self.reply(400, {"error": {"message": "regex is not available", "type": "x"}})
        if "html" in text:
            return self.reply(502, "<html>bad gateway</html>")
        if "drop" in text:
            self.close_connection = True
            return None
        if body.get("stream"):
            return self.stream(text)
        meta = {
            "prompt_tokens": 4,
            "cached_tokens": 3,
            "completion_tokens": 1,
            "finish_reason": {"type": "abort", "message": "gone"} if "abort" in text else None,
        }
        return self.reply(200, {"text": text[-3:], "meta_info": meta})

    def hold(self, text: str) -> None:
        """Answer nothing, or two events, and wait until the client is gone; it may go before."""
        self.close_connection = True
        try:
            if "stall" in text:
                self.stream(text)
            self.rfile.read(1)
        finally:
            self.server.gone.release()

    def stream(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for event in ({"text": "é", "meta_info": {}}, {"text": "élan", "meta_info": {"x": 1}}):
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        if "late" in text:
            self.wfile.write(b'data: {"error": {"message": "out of memory"}}\n\n')
        elif "cut" not in text and "stall" not in text:
            self.wfile.write(b"data: [DONE]\n\n")

    def reply(self, status: int, value: Any) -> None:
        data = (value if isinstance(value, str) else json.dumps(value)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Fake(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512
    key = ""
    foreign: Any = None  # the answer to everything, if this is no runtime

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.gone = threading.Semaphore(0)  # released for each client that has hung up
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def fake() -> Iterator[Fake]:
    with Fake() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@sgl.function
def program(s, text):
    s += text + sgl.gen("x", 5, seed=3)  # ask
    return s["x"]


def test_a_program_over_http(fake: Fake) -> None:
    endpoint = sgl.RuntimeEndpoint(fake.url + "/")
    assert endpoint.chat_template.name == "qwen"
    state = program.run("hello", backend=endpoint, temperature=0.0)
    assert state["x"] == "llo"
    path, body = fake.bodies[-1]
    assert path == "/generate"
    assert body["text"] == "hello"
    assert body["sampling_params"]["max_new_tokens"] == 5
    assert body["sampling_params"]["temperature"] == 0.0
    assert body["sampling_params"]["sampling_seed"] == 3
    assert body["sampling_params"]["stop"] == ["<|im_end|>"]
    assert "regex" not in body["sampling_params"]
    assert state.usage.cached_tokens == 3
    assert sgl.get_server_info(endpoint) == {"path": "/get_server_info"}
    endpoint.cache_prefix("prefix")
    assert fake.bodies[-1][1] == {"text": "prefix", "sampling_params": {"max_new_tokens": 0}}
    endpoint.shutdown()
    with pytest.raises(sgl.ProgramError, match="has been shut down"):
        program.run("hello", backend=endpoint)


def test_streaming_decodes_and_notices_a_cut(fake: Fake) -> None:
    endpoint = sgl.RuntimeEndpoint(fake.url, chat_template_name="chatml")
    state = program.run("go ", backend=endpoint, stream=True)
    assert "".join(state.text_iter()) == "go élan"
    assert state.get_meta_info("x") == {"x": 1}
    for text, complaint in [
        ("cut ", "cut before its end"),
        ("late ", "out of memory"),
        ("bad", "regex"),
    ]:
        state = program.run(text, backend=endpoint, stream=True)
        with pytest.raises(sgl.ProgramError, match=complaint + r".* at .*:\d+$"):
            list(state.text_iter())


@pytest.mark.parametrize(
    ("text", "complaint", "status"),
    [
        ("bad", "the runtime answered 400: regex is not available", 400),
        ("html", "502: <html>bad gateway", 502),
        ("drop", "was lost", None),
        ("abort", "aborted: gone", None),
    ],
)
def test_refusals_are_told_with_the_line(fake: Fake, text: str, complaint: str, status) -> None:
    endpoint = sgl.RuntimeEndpoint(fake.url)
    with pytest.raises(sgl.ProgramError, match=complaint + r".* at .*_endpoint.py:\d+$") as caught:
        program.run(text, backend=endpoint)
    assert isinstance(caught.value.__cause__, sgl.BackendError)
    assert caught.value.__cause__.status == status


@pytest.mark.parametrize(
    "answer",
    ["<html>hi</html>", {"object": "list"}, ["x"], [{"text": "x"}], 'data: {"object": 1}\n\n',
     "data: [1]\n\n", "data: {bad\n\n"],
)  # fmt: skip
def test_what_is_no_runtime_is_told(fake: Fake, answer: Any) -> None:
    endpoint = sgl.RuntimeEndpoint(fake.url)
    fake.foreign = answer
    complaint = f"{fake.url} is no runtime: it answered "
    for streamed in (False, True):
        with pytest.raises(sgl.ProgramError, match=complaint) as caught:
            program.run("go", backend=endpoint, stream=streamed).text()
        assert type(caught.value.__cause__) is sgl.BackendError
    with pytest.raises(sgl.ProgramError, match=complaint):
        asyncio.run(program.arun("go", backend=endpoint))
    if not isinstance(answer, dict):
        with pytest.raises(sgl.BackendError, match=complaint):
            sgl.RuntimeEndpoint(fake.url)


@pytest.mark.parametrize(("text", "stream"), [("hang", False), ("hang", True), ("stall", True)])
def test_a_server_that_never_answers_holds_nobody(fake: Fake, text: str, stream: bool) -> None:
    @sgl.function
    def program(s):
        forks = s.fork(BRANCHES)
        forks += text + sgl.gen("x")
        assert reaches(lambda: len(fake.bodies) == BRANCHES)
        raise ZeroDivisionError("mine")

    def run() -> None:
        with pytest.raises(ZeroDivisionError, match="mine"):
            program.run(backend=endpoint, stream=stream).text()
        ended.set()

    endpoint, ended = sgl.RuntimeEndpoint(fake.url), threading.Event()
    threads = running_threads()
    threading.Thread(target=run, daemon=True).start()
    assert ended.wait(60)
    assert all(fake.gone.acquire(timeout=60) for _ in range(BRANCHES))
    assert reaches(lambda: running_threads() <= threads)
    assert {path for path, _ in fake.bodies} == {"/generate"}


def test_nothing_listens_and_a_wrong_key(fake: Fake) -> None:
    with pytest.raises(sgl.BackendError, match="start one with: python -m"):
        sgl.RuntimeEndpoint("http://127.0.0.1:9")
    fake.key = "secret"
    with pytest.raises(sgl.BackendError, match="wrong key"):
        sgl.RuntimeEndpoint(fake.url, api_key="guess")
    assert sgl.RuntimeEndpoint(fake.url, api_key="secret").model_info
    with pytest.raises(ValueError, match="no chat template 'x'"):
        sgl.RuntimeEndpoint(fake.url, api_key="secret", chat_template_name="x")


def test_one_endpoint_serves_many_threads(fake: Fake) -> None:
    endpoint = sgl.RuntimeEndpoint(fake.url)

    @sgl.function
    def forks(s):
        s += "go"
        branches = s.fork(120)
        branches += lambda i: f"{i:03}" + sgl.gen("x")
        branches.join()

    assert forks.run(backend=endpoint)["x"] == [f"{i:03}" for i in range(120)]
    endpoint.shutdown()


def test_a_runtime_that_does_not_start_shows_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen

    def broken(command: list[str], **options: Any) -> subprocess.Popen:
        assert command[1:3] == ["-m", "sglang.launch_server"]
        assert command[5:-2] == ["--page-size", "16", "--no-enable-metrics", "--log-requests"]
        assert command[-2:] == ["--exit-with-parent", str(os.getpid())]
        code = "import sys; print('no such model'); sys.exit(3)"
        return real([sys.executable, "-c", code], **options)

    monkeypatch.setattr(subprocess, "Popen", broken)
    with pytest.raises(sgl.BackendError, match="ended with status 3:\nno such model"):
        sgl.Runtime(page_size=16, enable_metrics=False, log_requests=True, api_key=None)


def test_a_runtime_takes_the_key_of_the_environment(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.key = "of the environment"
    monkeypatch.setenv("SGLANG_API_KEY", fake.key)
    real, command = subprocess.Popen, [sys.executable, "-c", "import time; time.sleep(200)"]
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: real(command, **options))
    runtime = sgl.Runtime(port=int(fake.url.rpartition(":")[2]), launch_timeout=60.0)
    assert runtime.endpoint.model_info
    runtime.shutdown()


def test_terminate_process_takes_what_the_process_left_behind() -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", code + "; p.wait()"], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    terminate_process(process)
    assert process.poll() is not None
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and _runs(child):
        time.sleep(0.01)
    assert not _runs(child)
    terminate_process(process)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_stubborn_processes_are_killed() -> None:
    code = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)\n"
        "time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    terminate_process(process, timeout=0.1)
    assert process.poll() == -9


def test_a_runtime_without_a_path_serves_the_embedded_model() -> None:
    """The command line takes no empty one."""
    assert _flags({"model_path": "", "tp_size": 1}) == ["--tp-size", "1"]
    assert _flags({"model_path": "a"}) == ["--model-path", "a"]
