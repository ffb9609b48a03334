"""Servers behind one address are replaced one after the other; no client sees an error."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import sglang as sgl
from helpers.launched import PYTHON, Server, launched, toy_model

SECONDS = 0.02  # a limit of a drain
GENERATED = 3000  # tokens of a text, which takes longer on any machine


class Connection(socketserver.BaseRequestHandler):
    """Bytes there and back."""

    server: Balancer

    def handle(self) -> None:
        with self.server.connected() as there:
            back = threading.Thread(target=passed, args=(there, self.request))
            back.start()
            passed(self.request, there)
            back.join()


def passed(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class Balancer(socketserver.ThreadingTCPServer):
    """One address for several servers, each of which gets connections in turn."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.ports: list[int] = []
        self._turns = itertools.count()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def connected(self) -> socket.socket:
        ports = self.ports
        return socket.create_connection(("127.0.0.1", ports[next(self._turns) % len(ports)]))


@pytest.fixture
def balancer() -> Iterator[Balancer]:
    with Balancer() as balancer:
        thread = threading.Thread(target=balancer.serve_forever, args=(0.01,))
        thread.start()
        yield balancer
        balancer.shutdown()
        thread.join()


@sgl.function
def story(s: Any, number: int) -> None:
    s += f"Story {number}: "
    s += sgl.gen("text", GENERATED, temperature=1.0, seed=number, ignore_eos=True)
    s += " The end" + sgl.gen("end", 4, temperature=0, ignore_eos=True)


def port(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


@contextlib.contextmanager
def engine(flags: list[str]) -> Iterator[str]:
    """The address of an engine for several servers, so that each of them starts at once."""
    command = [sys.executable, "-m", "sglang.srt.cli", "engine", "--threads", "1", *flags]
    child = subprocess.Popen(
        [*command, "--listen", "tcp://127.0.0.1:0"], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(PYTHON)},
    )  # fmt: skip
    try:
        assert child.stdout is not None
        yield child.stdout.readline().split()[4]
    finally:
        child.kill()
        child.communicate()


def test_clients_survive_a_rolling_restart(
    balancer: Balancer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Streams of programs outlast the drain and go on with the other server in mid-text; an
    official OpenAI client has its answers."""
    model = toy_model(tmp_path_factory.mktemp("toy"))
    over, answers = threading.Event(), list[str]()

    def chat() -> None:
        client = openai.OpenAI(base_url=f"{balancer.url}/v1", api_key="-", max_retries=4)
        while not over.is_set():
            reply = client.completions.create(
                model="default", prompt="a", max_tokens=8, temperature=0
            )
            answers.append(reply.choices[0].text)
            time.sleep(0.02)

    with contextlib.ExitStack() as stack:
        address = stack.enter_context(engine(model))
        flags = [*model, "--engines", address, "--drain-timeout", str(SECONDS)]
        servers = [stack.enter_context(launched(flags, ready=False)) for _ in range(3)]
        for server in servers:
            server.wait_ready()
            maps = Path(f"/proc/{server.process.pid}/maps").read_text(encoding="utf-8")
            assert "libtorch" not in maps, "a server without engines of its own needs no torch"
        balancer.ports = [port(servers[0])]
        backend = sgl.RuntimeEndpoint(balancer.url)
        whole = [story.run(number, backend=backend).text() for number in range(2)]
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor())
        clients = [pool.submit(chat) for _ in range(2)]
        cut = 0
        for old, new in itertools.pairwise(servers):
            balancer.ports = [port(old)]
            states = [story.run(number, backend=backend, stream=True) for number in range(2)]
            texts = [state.text_iter() for state in states]
            begun = [next(text) + next(text) for text in texts]
            streams = [pool.submit(list, text) for text in texts]
            balancer.ports = [port(new)]
            old.process.send_signal(signal.SIGTERM)
            assert old.wait_end() == 0
            rest = ["".join(stream.result(30)) for stream in streams]
            assert [first + more for first, more in zip(begun, rest)] == whole
            cut += "(--drain-timeout) and are ended" in old.errors()
        over.set()
        for client in clients:
            client.result(30)
        assert len(set(answers)) == 1
        assert cut, "no text was cut by a drain"
