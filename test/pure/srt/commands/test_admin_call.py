"""Commands for a running server: its address in every form, its key, and what else may answer."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import ClassVar

import pytest
from sglang.srt.cli import main


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers every request with ``body``."""

    body: ClassVar[bytes] = b""
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Host and port of a server without engines."""
    monkeypatch.setattr(Answers, "body", json.dumps({"workers": []}).encode())
    monkeypatch.setattr(Answers, "asked", [])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("flag", [[], ["--url"]])
@pytest.mark.parametrize("scheme", ["", "http://"])
@pytest.mark.parametrize("key", ["--api-key", "--admin-api-key"])
def test_an_address_and_a_key_have_every_form(
    flag: list[str], scheme: str, key: str, address: str
) -> None:
    assert main(["workers", *flag, scheme + address, key, "k"]) == 0
    assert Answers.asked == [("/workers", "Bearer k")]


def test_two_addresses_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["workers", "http://a", "--url", "http://b"])
    assert "not allowed with" in capsys.readouterr().err


def test_explain_takes_the_same(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Answers, "body", json.dumps({"prompts": [{"text": "all"}]}).encode())
    assert main(["explain", "a/b", "--url", address, "--api-key", "k", "--insecure"]) == 0
    assert capsys.readouterr().out == "all\n"
    assert Answers.asked == [("/explain/a%2Fb", "Bearer k")]


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"\xff"])
@pytest.mark.parametrize("command", ["workers", "explain x --url"])
def test_another_server_is_named(
    body: bytes, command: str, address: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(Answers, "body", body)
    assert main([*command.split(), address]) == 1
    assert f"{address} answers /" in capsys.readouterr().err
