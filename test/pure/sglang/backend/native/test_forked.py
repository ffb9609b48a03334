"""Processes that are forked from one that runs programs."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import sglang as sgl
from sglang.backend.engine import launched_runtime as runtime
from sglang.backend.native.connections import Connections, ServerOrigin
from sglang.errors import located
from sglang.ir.source_location import Location

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]


def forked(function: Callable[[], object]) -> str:
    """``str(function())`` of a child, which has 20 seconds."""
    read, write = os.pipe()
    if not (child := os.fork()):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            os.write(write, str(function()).encode())
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as pipe:
        told = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, "the child was still waiting"
    return told


class _TellsPorts(BaseHTTPRequestHandler):
    """Answers with the port that the request came from: one a connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        port = str(self.client_address[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(port)))
        self.end_headers()
        self.wfile.write(port)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _TellsPorts) as server:
        server.daemon_threads, server.block_on_close = True, False
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_connections_are_not_shared_with_a_fork(url: str) -> None:
    """A fork on a shared connection would read the response to its parent's request."""
    connections = Connections(ServerOrigin(url, {}, True))

    def ask() -> str:
        with connections.exchange("GET", "/") as exchange:
            return exchange.read().decode()

    kept = ask()
    assert ask() == kept
    first, second = forked(lambda: f"{ask()} {ask()}").split()
    assert first == second  # the fork keeps its own connection
    assert first != kept
    assert ask() == kept  # the parent's connection is still open
    connections.close()


def test_a_fork_has_workers_of_its_own() -> None:
    """An idle one of the parent's, which the child does not have, would be waited for."""

    @sgl.function
    def program(s: sgl.ProgramState, word: str) -> None:
        s += word + sgl.gen("a")
        forks = s.fork(2)
        forks += sgl.gen("b")
        s += forks[0]["b"] + forks[1]["b"]

    def run(word: str) -> str:
        return program.run(word, backend=sgl.Mock(["x"] * 3)).text()

    assert run("parent ") == "parent xxx"
    assert forked(lambda: run("child ")) == "child xxx"
    assert run("parent ") == "parent xxx"


def test_a_fork_that_ends_leaves_the_runtime_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = tmp_path / "server"
    server.write_text("#!/bin/sh\nexec sleep 60\n")
    server.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(server))
    monkeypatch.setattr(runtime.Runtime, "_wait", lambda *_: None)
    monkeypatch.setattr(runtime, "RuntimeEndpoint", lambda *_, **__: sgl.Mock())
    started = runtime.Runtime()
    try:
        assert forked(started.shutdown) == "None"  # as its atexit does
        assert started.process.poll() is None
        assert Path(started.log_path).exists()
    finally:
        started.shutdown()
    assert started.process.poll() is not None


def test_what_a_process_tells_another_survives_pickle() -> None:
    @sgl.function
    def program(s: sgl.ProgramState, word: str) -> None:
        s += word + sgl.gen("a")

    usage = program.run("one", backend=sgl.Mock(["x"])).usage
    copy = pickle.loads(pickle.dumps(usage))
    assert repr(copy) == repr(usage)
    copy.merge(usage)
    assert copy.calls == 2
    with pytest.raises(sgl.BatchError) as raised:
        program.run_batch([{"word": 1}, {"word": "two"}], backend=sgl.Mock(["x"]))
    error = pickle.loads(pickle.dumps(raised.value))
    assert (str(error), list(error.errors), error.states) == (str(raised.value), [0], [])
    invalid = located(sgl.InvalidOutput("no number", "x"), "no number", Location("a.py", 3))
    again = pickle.loads(pickle.dumps(invalid))
    assert (type(again), str(again), vars(again)) == (type(invalid), str(invalid), vars(invalid))
