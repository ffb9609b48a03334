"""HTTP requests of programs: addresses that are not public, names that change, redirects and other
schemes are refused by ``http_get`` and ``http_post``; the allowed host works."""

from __future__ import annotations

import asyncio
import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.silent_link import INFO, NoText, SilentLink
from sglang.srt.inferlet import outbound
from sglang.srt.inferlet.calls import HttpGetCall, HttpPostCall
from sglang.srt.inferlet.controller import Controller
from sglang.srt.inferlet.driver import CallAnswer
from sglang.srt.inferlet.program_limits import ProgramLimits, Rights
from sglang.srt.inferlet.served import RunFollower, Served

ANY = Rights(hosts=("*",))
METHODS = ("GET", "POST")
PUBLIC = "93.184.216.34"
SMALL = ProgramLimits(http_bytes=1000, http_seconds=5.0)


def asked(method: str, url: str, rights: Rights = ANY, limits: ProgramLimits = SMALL) -> CallAnswer:
    """The answer to a program's one call."""

    async def main() -> CallAnswer:
        controller = Controller(Served(SilentLink(), INFO, NoText()), "eager")
        session = controller.open([], rights, limits, RunFollower())
        answer: asyncio.Future[CallAnswer] = asyncio.get_running_loop().create_future()
        session.deliver = answer.set_result
        get = method == "GET"
        session.handle(HttpGetCall(id=1, url=url) if get else HttpPostCall(id=1, url=url, body="b"))
        return await asyncio.wait_for(answer, 30)

    return asyncio.run(main())


class Site(http.server.BaseHTTPRequestHandler):
    """Answers by its path, and notes the requests."""

    def do_GET(self) -> None:
        seen: list[str] = self.server.seen  # type: ignore[attr-defined]
        size = int(self.headers.get("Content-Length", 0))
        seen.append(f"{self.command} {self.headers['Host']}{self.path} {self.rfile.read(size)!r}")
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path[4:])
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"x" * 10**8 if self.path == "/large" else b"found")

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Network:
    """Names lead to ``addresses``, one after the other, the last one from then on; any public
    address is the site.

    Attributes:
        looked: names that were looked up. reached: addresses of connections. seen: by the site.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
        self.looked: list[str] = []
        self.reached: list[str] = []
        self.seen: list[str] = []
        self.addresses = [PUBLIC]
        self.server.seen = self.seen  # type: ignore[attr-defined]

        def lookup(host: str, port: int, **_: Any) -> Any:
            self.looked.append(host)
            found = self.addresses[min(len(self.looked), len(self.addresses)) - 1]
            return [(0, 0, 0, "", (found, port))]

        def reach(address: tuple[str, int], left: float) -> socket.socket:
            self.reached.append(address[0])
            made = socket.socket()
            made.settimeout(left)
            made.connect(("127.0.0.1", self.server.server_port))
            return made

        monkeypatch.setattr(socket, "getaddrinfo", lookup)
        monkeypatch.setattr(socket, "create_connection", reach)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    made = Network(monkeypatch)
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A port of this machine at which nothing may arrive; nor is anything else reached."""

    def reach(address: tuple[str, int], *_: Any) -> socket.socket:
        raise AssertionError(f"{address} was reached")

    monkeypatch.setattr(socket, "create_connection", reach)
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made
        with pytest.raises(BlockingIOError):
            made.accept()


NOT_PUBLIC = {
    "loopback": "127.0.0.1", "decimal": "2130706433", "hex": "0x7f000001", "octal": "0177.0.0.1",
    "hex by parts": "0x7f.0x0.0x0.0x1", "mixed": "0x7f.1", "short": "127.1", "zero": "0",
    "all of this machine": "0.0.0.0", "a name": "localhost",
    "IPv6 loopback": "[::1]", "IPv6 of all": "[::]", "v4-mapped": "[::ffff:127.0.0.1]",
    "v4-mapped in hex": "[::ffff:7f00:1]", "v4-mapped in full": "[0:0:0:0:0:ffff:7f00:0001]",
    "v4-compatible": "[::127.0.0.1]", "v4-translated": "[::ffff:0:127.0.0.1]",
    "NAT64": "[64:ff9b::127.0.0.1]", "6to4": "[2002:7f00:1::]",
    "metadata of AWS, GCP, Azure": "169.254.169.254", "metadata in decimal": "2852039166",
    "metadata in hex": "0xa9fea9fe", "metadata v4-mapped": "[::ffff:169.254.169.254]",
    "metadata of AWS in IPv6": "[fd00:ec2::254]", "metadata of Alibaba": "100.100.100.200",
    "metadata of Oracle": "192.0.0.192", "host of Azure": "168.63.129.16",
    "private 10": "10.0.0.1", "private 172": "172.16.0.1", "private 192": "192.168.0.1",
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_refused(
    listener: socket.socket, name: str, method: str
) -> None:
    host, port = NOT_PUBLIC[name], listener.getsockname()[1]
    for rights in (ANY, Rights(hosts=(host.strip("[]"),))):
        for place in ("", f":{port}"):
            answer = asked(method, f"http://{host}{place}/latest/meta-data", rights)
            assert answer.value is None
            assert answer.error is not None
            assert answer.error.code == "denied", answer.error.message
            assert "is at an address that is not public" in answer.error.message


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("host", ["localhost.", "[fe80::1%25lo]", "1.2.3.4.5", "256.0.0.1", "0x1g"])
def test_a_host_that_only_some_systems_read_reaches_nothing(
    listener: socket.socket, host: str, method: str
) -> None:
    error = asked(method, f"http://{host}:{listener.getsockname()[1]}/").error
    assert error is not None
    assert error.code in ("denied", "failed"), error.message


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["metadata.google.internal", "api.example.com"])
def test_a_name_of_an_address_that_is_not_public_is_refused(
    network: Network, name: str, method: str
) -> None:
    network.addresses = ["169.254.169.254"]
    error = asked(method, f"http://{name}/", Rights(hosts=(name,))).error
    assert error is not None
    assert (error.code, network.reached) == ("denied", [])
    assert network.looked == [name]


@pytest.mark.parametrize("method", METHODS)
def test_a_name_that_changes_is_looked_up_once(network: Network, method: str) -> None:
    network.addresses = [PUBLIC, "127.0.0.1"]  # DNS rebinding
    rights = Rights(hosts=("api.example.com",))
    assert asked(method, "http://api.example.com/", rights).value == "found"
    assert (network.looked, network.reached) == (["api.example.com"], [PUBLIC])
    error = asked(method, "http://api.example.com/", rights).error
    assert error is not None
    assert (error.code, network.reached) == ("denied", [PUBLIC])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "to", ["http://169.254.169.254/latest", "http://127.0.0.1:1/", "/found", "file:///etc/passwd"]
)
def test_a_redirect_is_not_followed(network: Network, to: str, method: str) -> None:
    error = asked(method, f"http://api.example.com/to/{to}").error
    assert error is not None
    assert (error.code, "answers 302" in error.message) == ("failed", True), error.message
    assert network.reached == [PUBLIC]
    assert len(network.seen) == 1


SCHEMES = [
    "file:///etc/passwd", "ftp://api.example.com/a", "gopher://127.0.0.1:6379/_FLUSHALL",
    "data:text/plain,abc", "unix:///run/docker.sock", "ws://api.example.com/", "jar:http://a!/b",
    "dict://127.0.0.1:11211/", "ldap://127.0.0.1/", "//api.example.com/", "api.example.com", "",
    "http:", "http:///", "http+unix://%2Frun%2Fdocker.sock/info", "HTTPS+FILE:///etc/passwd",
]  # fmt: skip
MISREAD = [
    "http://api.example.com@127.0.0.1/", "http://127.0.0.1#@api.example.com/",
    "http://api.example.com\\@127.0.0.1/", "http://127.0.0.1\\.api.example.com/",
    "http://api.example.com:80@127.0.0.1/", "http://api.example.com%00.evil.com/",
    "http://api.example.com\r\nHost: 127.0.0.1/", "http://api.example.com /", "http://[::1/",
    "http://\u2460\u2461\u2466.0.0.1/", "http://api.example.com\u3002evil.com/",
    "http://api.example.com:99999/", "http://api.example.com.evil.com/", "http://xapi.example.com/",
    "http://evil.com/?api.example.com", "http://evil.com/api.example.com",
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("url", SCHEMES + MISREAD)
def test_other_schemes_and_hosts_are_refused(network: Network, url: str, method: str) -> None:
    error = asked(method, url, Rights(hosts=("api.example.com",))).error
    assert error is not None
    assert error.code in ("denied", "failed"), error.message
    assert (network.looked, network.reached) == ([], [])


@pytest.mark.parametrize("rights", [Rights(), Rights(store=True, topics=True, owner="ann")])
@pytest.mark.parametrize("method", METHODS)
def test_no_host_is_reached_by_default(network: Network, rights: Rights, method: str) -> None:
    error = asked(method, "http://api.example.com/", rights).error
    assert error is not None
    assert (error.code, network.looked) == ("denied", [])
    assert "lacks the right to reach 'api.example.com'" in error.message


@pytest.mark.parametrize("method", METHODS)
def test_the_allowed_host_works(network: Network, method: str) -> None:
    rights = Rights(hosts=("api.example.com",))
    assert asked(method, "http://API.example.com:8080/a?b=c", rights).value == "found"
    body = "b'b'" if method == "POST" else "b''"
    assert network.seen == [f"{method} API.example.com:8080/a?b=c {body}"]
    assert network.reached == [PUBLIC]


@pytest.mark.parametrize("method", METHODS)
def test_an_answer_of_100_megabytes_is_not_read(network: Network, method: str) -> None:
    error = asked(method, "http://api.example.com/large").error
    assert error is not None
    assert error.code == "failed"
    assert "the answer has more than 1000 bytes" in error.message


@pytest.mark.parametrize("method", METHODS)
def test_a_request_ends_before_its_slow_lookup(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    end, ended = threading.Event(), threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        end.wait(10)
        ended.set()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        answer = asked(method, "http://api.example.com/", limits=ProgramLimits(http_seconds=0.1))
        assert not ended.is_set()
    finally:
        end.set()
    assert answer.error is not None
    assert answer.error.code == "failed"
    assert "the lookup of 'api.example.com' took longer than 0.1 s" in answer.error.message


def test_a_request_that_waited_for_lookups_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound._LOOKUPS, "_share", 0)
    answer = asked("GET", "http://api.example.com/", limits=ProgramLimits(http_seconds=0.1))
    assert answer.error is not None
    assert "'api.example.com' waited longer than 0.1 s for other lookups" in answer.error.message
