"""Proxies of the environment, and URLs that end in /v1, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import sglang as sgl
from helpers.http_server import Served, serve_text
from sglang.backend.native.http_proxy import HttpProxy, proxy_of
from sglang.srt.config import Config

NAME = "runtime.example"  # known to the proxy alone


class Proxy(threading.Thread):
    """Forwards what it is sent, one direction a thread, and notes the first lines of requests."""

    def __init__(self, target: tuple[str, int], answer: bytes = b"") -> None:
        super().__init__(daemon=True)
        self.target, self.answer = target, answer
        self.heads: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self.target) as server:
            threading.Thread(target=_copy, args=(server, client), daemon=True).start()
            while data := client.recv(1 << 16):
                if b"HTTP/1.1\r\n" in data:
                    self.heads.append(data.partition(b"\r\n\r\n")[0].decode())
                if self.answer:
                    client.sendall(self.answer)
                    return
                server.sendall(data)


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = Config.of(allowed_hosts=NAME)
    with serve_text(tmp_path_factory.mktemp("tokenizer"), config) as server:
        yield server


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def proxy(served: Served) -> Iterator[Proxy]:
    host, _, port = served.url.removeprefix("http://").partition(":")
    found = Proxy((host, int(port)))
    yield found
    found.listener.close()


@sgl.function
def program(s: Any) -> None:
    s += "hello" + sgl.gen("x", 4, ignore_eos=True)


def test_requests_go_through_the_proxy(
    served: Served, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads and event loops send the credentials and the whole URL."""
    monkeypatch.setenv("HTTP_PROXY", f"http://me:pass%20word@127.0.0.1:{proxy.port}")
    direct = program.run(backend=sgl.RuntimeEndpoint(served.url), temperature=0)["x"]
    assert not proxy.heads
    endpoint = sgl.RuntimeEndpoint(f"http://{NAME}/v1")
    assert program.run(backend=endpoint, temperature=0)["x"] == direct

    async def main() -> str:
        return str((await program.arun(backend=endpoint, temperature=0))["x"])

    assert asyncio.run(main()) == direct
    lines = [head.split("\r\n")[0] for head in proxy.heads]
    assert f"GET http://{NAME}/get_model_info HTTP/1.1" in lines
    assert lines.count(f"POST http://{NAME}/generate HTTP/1.1") == 2
    assert all("Proxy-Authorization: Basic bWU6cGFzcyB3b3Jk" in head for head in proxy.heads)
    endpoint.shutdown()


def test_a_refused_tunnel_is_named(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Proxy(("127.0.0.1", int(served.url.rpartition(":")[2])),
                     b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")  # fmt: skip
    monkeypatch.setenv("https_proxy", f"127.0.0.1:{refusing.port}")
    with pytest.raises(sgl.BackendError, match=rf"through the proxy .*{refusing.port} answers 403"):
        sgl.RuntimeEndpoint(f"https://{NAME}")
    assert refusing.heads[0].startswith(f"CONNECT {NAME}:443 HTTP/1.1")
    refusing.listener.close()


def test_a_tunnel_passes_what_follows(proxy: Proxy) -> None:
    """The answer to CONNECT is read to its end and no byte further."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"HTTP/1.1 200 Connection established\r\n\r\nmore")
        HttpProxy("proxy", 1, "Basic x").tunnel(ours, "::1", 443)
        assert ours.recv(10) == b"more"
        sent = theirs.recv(1000).decode()
    assert sent.startswith("CONNECT [::1]:443 HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic x\r\n" in sent


def test_which_proxy_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_of("http", NAME) is None
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example,.internal")
    assert proxy_of("http", NAME) == HttpProxy("proxy", 3128)
    assert proxy_of("https", NAME) is None
    for host in ("inside.example", "a.internal", "localhost", "127.0.0.1", "127.1.2.3", "::1"):
        assert proxy_of("http", host) is None
    monkeypatch.setenv("HTTP_PROXY", "socks5://proxy:1080")
    with pytest.raises(ValueError, match=r"names the proxy socks5://proxy for runtime\.example"):
        sgl.RuntimeEndpoint(f"http://{NAME}")


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_a_url_of_either_api_will_do(served: Served, ending: str) -> None:
    endpoint = sgl.RuntimeEndpoint(served.url + ending)
    assert endpoint.base_url == served.url
    assert program.run(backend=endpoint)["x"]
    endpoint.shutdown()
