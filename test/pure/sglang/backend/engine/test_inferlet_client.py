"""InferletClient: its requests, and each kind of answer. A real server answers it in
test/e2e/test_inferlet_sandbox.py."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT
from sglang import InferletClient
from sglang.backend.engine.inferlets import InferletError
from sglang.errors import (
    AuthenticationFailed,
    BackendError,
    BadRequest,
    ConnectionFailed,
    NotFound,
    PermissionDenied,
    RateLimited,
    TimedOut,
)

ENDS = [{"type": "result", "number": 1, "value": 7}, {"type": "usage", "number": 2, "turns": 1}]


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by ``server.replies``: status and body by method and path, else 404."""

    def answer(self) -> None:
        server: Any = self.server
        size = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(size)) if size else None
        server.asked.append((self.command, self.path, self.headers["Authorization"], body))
        status, reply = server.replies.get(f"{self.command} {self.path}", (404, {}))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", reply)
            reply = b""
        data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_header("Content-Length", str(len(data) + server.missing))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Fake:
    """A server. ``missing``: bytes of a body that never come."""

    def __init__(self) -> None:
        self.http: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        vars(self.http).update(replies={}, asked=[], missing=0)
        self.address = f"127.0.0.1:{self.http.server_port}"
        self.client = InferletClient(f"http://{self.address}/v1/", "key")
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def says(self, where: str, reply: Any, status: int = 200) -> None:
        self.http.replies[where] = status, reply

    @property
    def bodies(self) -> list[Any]:
        return [body for *_, body in self.http.asked]


@pytest.fixture
def fake() -> Iterator[Fake]:
    made = Fake()
    yield made
    made.http.shutdown()
    made.http.server_close()


def stream(*events: dict[str, Any]) -> bytes:
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (one["type"].encode(), json.dumps(one).encode())
        for one in events
    )


@pytest.mark.parametrize("form", ["{}", "{}/", "http://{}", "http://{}/v1", "http://{}/v1/"])
def test_a_server_is_named_in_every_form(fake: Fake, form: str) -> None:
    fake.says("GET /v1/runs", {"data": [{"id": "run_1"}]})
    assert InferletClient(form.format(fake.address), "k").runs() == [{"id": "run_1"}]
    assert InferletClient(form.format(fake.address)).runs() == [{"id": "run_1"}]
    assert [key for _, _, key, _ in fake.http.asked] == ["Bearer k", None]


def test_a_program_is_a_text_bytes_or_a_file(fake: Fake, tmp_path: Path) -> None:
    fake.says("POST /v1/inferlets", {"id": "abc"})
    (tmp_path / "hello.py").write_text("a = 'ä'")
    (tmp_path / "hello.wasm").write_bytes(b"\0asm")
    for program in ("a = 'ä'", b"\0asm", tmp_path / "hello.py", tmp_path / "hello.wasm"):
        assert fake.client.put(program) == "abc"
    assert fake.client.put(tmp_path / "hello.py", "named") == "abc"
    (tmp_path / "hello.js").write_text("a = 'ä'")
    assert fake.client.put(tmp_path / "hello.js") == "abc"
    assert fake.client.put("a = 'ä'", javascript=True) == "abc"
    text = {"source": "a = 'ä'", "sha256": hashlib.sha256("a = 'ä'".encode()).hexdigest()}
    javascript = {"javascript": text["source"], "sha256": text["sha256"]}
    wasm = {"wasm": "AGFzbQ==", "sha256": hashlib.sha256(b"\0asm").hexdigest()}
    assert fake.bodies == [
        {"name": "", **text}, {"name": "", **wasm}, {"name": "hello.py", **text},
        {"name": "hello.wasm", **wasm}, {"name": "named", **text},
        {"name": "hello.js", **javascript}, {"name": "", **javascript},
    ]  # fmt: skip


def test_a_run_is_launched_and_sent_to(fake: Fake) -> None:
    fake.says("POST /v1/inferlets/abc/runs", {"id": "run_1"})
    fake.says("POST /v1/runs/run_1/messages", {"id": "run_1"})
    fake.says("DELETE /v1/runs/run_1", {"deleted": True})
    fake.says("DELETE /v1/inferlets/abc", {"deleted": True})
    run = fake.client.launch("abc", "one", "two", turn_cpu=0.5, program="unknown")
    fake.client.send(run, "text")
    fake.client.send(run, b"\0")
    fake.client.kill(run)
    fake.client.forget("abc")
    first = {"arguments": ["one", "two"], "turn_cpu": 0.5, "program": "unknown", "stream": False}
    data = base64.b64encode(b"\0").decode()
    assert fake.bodies == [first, {"text": "text"}, {"data": data}, None, None]


def test_events_are_read_to_the_end_and_from_any_number(fake: Fake) -> None:
    started = {"type": "started", "number": 0}
    fake.says("GET /v1/runs/r?stream=true", b": a comment\n\n" + stream(started, *ENDS))
    fake.says("GET /v1/runs/r?stream=true&starting_after=0", stream(*ENDS))
    assert list(fake.client.events("r")) == [started, *ENDS]
    assert list(fake.client.events("r", 0)) == ENDS


def test_events_that_are_cut_end_with_an_error(fake: Fake) -> None:
    started = {"type": "started", "number": 0}
    fake.says("GET /v1/runs/r?stream=true", stream(started))
    found = fake.client.events("r")
    assert next(found) == started
    with pytest.raises(ConnectionFailed, match="was lost before the run's end"):
        next(found)
    fake.says("GET /v1/runs/r?stream=true", stream(started) + b'data: {"type')
    found = fake.client.events("r")
    assert next(found) == started
    with pytest.raises(ConnectionFailed, match="was lost"):
        next(found)


def shown(status: str, **more: Any) -> dict[str, Any]:
    return {"status": status, "events": 1, "result": None, "error": None, **more}


def test_a_result_is_waited_for(fake: Fake) -> None:
    fake.says("GET /v1/runs/r", shown("completed", result={"a": 1}))
    assert fake.client.result("r") == {"a": 1}
    fake.says("GET /v1/runs/r", shown("failed", error="Traceback\nZeroDivisionError\n"))
    with pytest.raises(InferletError, match=r"Traceback\nZeroDivisionError$"):
        fake.client.result("r")
    assert [path for _, path, _, _ in fake.http.asked] == ["/v1/runs/r"] * 2


def test_a_run_that_goes_on_is_followed_to_its_end(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = [shown("running", events=4), shown("completed", result=7)]
    monkeypatch.setattr(fake.client, "run", lambda run: states.pop(0))
    fake.says("GET /v1/runs/r?stream=true&starting_after=3", stream(*ENDS))
    assert fake.client.result("r") == 7


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, BadRequest), (401, AuthenticationFailed), (403, PermissionDenied), (404, NotFound),
     (409, BackendError), (429, RateLimited)],
)  # fmt: skip
def test_a_refusal_is_the_error_of_its_status(
    fake: Fake, status: int, kind: type[BackendError]
) -> None:
    fake.says("GET /v1/runs/r", {"error": {"message": "The reason."}}, status)
    fake.says("GET /v1/runs/r?stream=true", {"error": {"message": "The reason."}}, status)
    with pytest.raises(kind, match=r"^The reason\.$") as caught:
        fake.client.run("r")
    assert caught.value.status == status
    with pytest.raises(kind, match=r"^The reason\.$"):
        next(fake.client.events("r"))
    fake.says("GET /v1/runs/r", b"<html>", status)
    with pytest.raises(kind, match=f"the server answered {status}"):
        fake.client.run("r")


def test_a_key_follows_no_redirect(fake: Fake) -> None:
    fake.says("GET /v1/runs", f"http://{fake.address}/other", 302)
    with pytest.raises(BackendError, match="the server answered 302"):
        fake.client.runs()
    assert len(fake.http.asked) == 1


@pytest.mark.parametrize("reply", [b"", b"<html>", b"[1]"])
def test_another_server_is_named(fake: Fake, reply: bytes) -> None:
    fake.says("GET /v1/runs", reply)
    with pytest.raises(BackendError, match="no JSON object; it is no server of this project"):
        fake.client.runs()


def test_a_server_that_is_silent_or_gone_is_an_error(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.says("GET /v1/runs", {"data": []})
    fake.http.missing = 9
    with pytest.raises(ConnectionFailed, match="was lost"):
        fake.client.runs()
    monkeypatch.setattr(Handler, "do_GET", lambda self: threading.Event().wait(1))
    with pytest.raises(TimedOut, match="timed out"):
        fake.client._call("GET", "/v1/runs", None, 0.1)
    with pytest.raises(ConnectionFailed, match="sglang serve --enable-inferlets"):
        InferletClient("http://127.0.0.1:1").programs()


def test_names_of_a_path_are_written_as_such(fake: Fake) -> None:
    with pytest.raises(NotFound):
        fake.client.kill("../inferlets/abc?x#y")
    assert fake.http.asked[0][1] == "/v1/runs/..%2Finferlets%2Fabc%3Fx%23y"


@pytest.mark.parametrize(("url", "key"), [("ftp://a", None), ("http://a", "a\nb"), ("a", "ä")])
def test_a_url_or_key_that_cannot_be_sent_is_refused(url: str, key: str | None) -> None:
    with pytest.raises(ValueError, match=r"begin with|a header cannot") as caught:
        InferletClient(url, key)
    assert key is None or key not in str(caught.value)


def test_the_client_needs_the_standard_library_alone() -> None:
    code = """
import sys
from sglang import InferletClient
InferletClient("http://a")
heavy = {"torch", "numpy", "httpx", "h11", "msgspec", "zmq", "transformers"} & sys.modules.keys()
raise SystemExit(" ".join(heavy) or 0)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "python", capture_output=True)
    assert done.returncode == 0, done.stderr
