"""A launched server's edge: TLS, keys from file and environment, and what it refuses to start."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sglang as sgl
from helpers.http_server import Client, is_error
from helpers.launched import Server, launched, toy_model
from helpers.waiting import until
from sglang.srt.web import launch


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*toy_model(tmp_path_factory.mktemp("toy")), "--skip-server-warmup"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``cert.pem`` for localhost, ``key.pem``, and ``locked.pem``: "secret"."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on this machine to make a certificate with")
    directory = tmp_path_factory.mktemp("tls")
    key, locked = directory / "key.pem", directory / "locked.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key,
         "-out", directory / "cert.pem", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    subprocess.run(
        ["openssl", "rsa", "-aes256", "-passout", "pass:secret", "-in", key, "-out", locked],
        check=True, capture_output=True,
    )  # fmt: skip
    return directory


# -- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(toy: list[str], certificate: Path) -> Iterator[Server]:
    flags = ["--ssl-certfile", str(certificate / "cert.pem"),
             "--ssl-keyfile", str(certificate / "locked.pem"), "--ssl-keyfile-password", "secret",
             "--header-timeout", "2", "--max-header-bytes", "8192"]  # fmt: skip
    with launched([*toy, *flags]) as server:
        yield server


def test_tls(secure: Server, certificate: Path) -> None:
    assert secure.url.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    with Client(base_url=secure.url, timeout=60, verify=trusted) as http:
        before = http.golden()
        body = {"text": "a", "sampling_params": {"max_new_tokens": 20}, "stream": True}
        assert http.post("/generate", json=body).text.endswith("data: [DONE]\n\n")
        info = http.get("/server_info").text
        assert "secret" not in info
        with pytest.raises(httpx.TransportError):
            httpx.get(secure.url, timeout=60)  # the client does not know the signer
        with pytest.raises(httpx.TransportError):
            httpx.get(secure.url.replace("https", "http"), timeout=60)
        host, port = secure.url.removeprefix("https://").split(":")
        with trusted.wrap_socket(socket.create_connection((host, int(port))),
                                 server_hostname="localhost") as raw:  # fmt: skip
            raw.settimeout(60)
            raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 9000)
            assert b"431" in raw.recv(1000)
        with trusted.wrap_socket(socket.create_connection((host, int(port))),
                                 server_hostname="localhost") as raw:  # fmt: skip
            raw.settimeout(60)
            raw.sendall(b"GET /health HTTP/1.1\r\n")
            assert b"408" in raw.recv(1000)
        http.idle()
        assert http.golden() == before


def test_clients_that_reset_under_tls_leave_the_log_empty(
    toy: list[str], certificate: Path
) -> None:
    cert, key = str(certificate / "cert.pem"), str(certificate / "key.pem")
    context = ssl.create_default_context(cafile=cert)
    body = json.dumps({
        "text": "a", "stream": True,
        "sampling_params": {"n": 16, "max_new_tokens": 100, "ignore_eos": True},
    })  # fmt: skip
    with launched([*toy, "--ssl-certfile", cert, "--ssl-keyfile", key]) as server:
        host, port = server.url.removeprefix("https://").split(":")
        for number in range(30):
            plain = socket.create_connection((host, int(port)), timeout=60)
            secured = context.wrap_socket(plain, server_hostname="127.0.0.1")
            secured.sendall(
                f"POST /generate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            while number and secured.recv(1 << 10):  # not to the end
                number -= 1
            secured.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            secured.close()
        server.process.terminate()
        assert server.wait_end() == 0
        said = server.errors().splitlines()
        assert [line for line in said if "socket.send" in line or "SSL" in line] == []


def test_a_runtime_with_tls(toy: list[str], certificate: Path) -> None:
    files = {"ssl_certfile": "cert.pem", "ssl_keyfile": "key.pem"}
    settings: dict[str, Any] = {name: str(certificate / file) for name, file in files.items()}
    with sgl.Runtime(model_path=toy[1], load_format="dummy", threads=1, **settings) as runtime:
        assert runtime.url.startswith("https://")
        reply = json.loads(runtime.generate("a", {"max_new_tokens": 3, "ignore_eos": True}))
        assert reply["meta_info"]["completion_tokens"] == 3


def test_clients_with_a_certificate_only(toy: list[str], certificate: Path) -> None:
    cert, key = certificate / "cert.pem", certificate / "key.pem"
    flags = ["--ssl-certfile", str(cert), "--ssl-keyfile", str(key), "--ssl-ca-certs", str(cert)]
    with launched([*toy, *flags]) as server:
        trusted = ssl.create_default_context(cafile=str(cert))
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/health", verify=trusted, timeout=60)
        trusted.load_cert_chain(cert, key)
        assert httpx.get(f"{server.url}/health", verify=trusted, timeout=60).status_code == 200


# -- settings refused at the start ----------------------------------------------------------------


def test_wrong_settings_end_the_launch_at_once(
    certificate: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cert, locked = str(certificate / "cert.pem"), str(certificate / "locked.pem")
    keys = tmp_path / "keys.json"
    keys.write_text('[{"name": "a"}]')
    wrong = [
        (["--ssl-keyfile", cert], "needs --ssl-certfile"),
        (["--ssl-certfile", str(tmp_path / "none.pem")], "none.pem"),
        (["--ssl-certfile", cert, "--ssl-keyfile", locked], "locked.pem"),  # without a prompt
        (["--ssl-certfile", cert, "--ssl-keyfile", cert], "cert.pem"),
        (["--api-keys-file", str(keys)], "either key or sha256"),
        (["--api-keys-file", str(tmp_path / "none.json")], "none.json"),
        (["--header-timeout", "0"], "--header-timeout is 0"),
        (["--api-key", ""], "--api-key is ''; give a key, or leave it out"),
    ]
    for flags, message in wrong:
        with pytest.raises(SystemExit) as ended:
            launch.main(flags)
        assert ended.value.code == 2
        assert message in capfd.readouterr().err


# -- keys -----------------------------------------------------------------------------------------


def ask(server: Server, key: str, path: str = "/v1/models") -> int:
    headers = {"x-api-key": key}
    return httpx.get(server.url + path, headers=headers, timeout=60).status_code


def test_keys_are_read_again_on_sighup(toy: list[str], tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(json.dumps([{"name": "a", "key": "one"}]))
    with launched([*toy, "--api-keys-file", str(file), "--admin-api-key", "top"]) as server:
        assert (ask(server, "one"), ask(server, "two"), ask(server, "top")) == (200, 401, 200)
        assert (ask(server, "one", "/metrics"), ask(server, "top", "/metrics")) == (403, 200)
        file.write_text(json.dumps([{"name": "b", "key": "two", "requests_per_minute": 1}]))
        server.process.send_signal(signal.SIGHUP)
        until(lambda: ask(server, "two") == 200)
        assert ask(server, "one") == 401
        file.write_text("[")
        server.process.send_signal(signal.SIGHUP)
        assert server.process.stderr is not None
        assert any("the API keys stay as they were" in line for line in server.process.stderr)
        assert ask(server, "two") == 200
        body = {"text": "a", "sampling_params": {"max_new_tokens": 1}}
        codes = [httpx.post(f"{server.url}/generate", json=body, timeout=60,
                            headers={"x-api-key": "two"})
                 for _ in range(2)]  # fmt: skip
        assert [reply.status_code for reply in codes] == [200, 429]
        assert "requests_per_minute" in is_error(codes[1], 429)["message"]
        server.process.terminate()
        assert server.wait_end() == 0


def test_an_empty_key_of_the_environment_ends_the_launch(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLANG_API_KEY", "")
    with pytest.raises(SystemExit) as ended:
        launch.main([])
    assert ended.value.code == 2
    assert "SGLANG_API_KEY is set and is ''" in capfd.readouterr().err


@pytest.mark.parametrize(("flags", "warned"), [([], True), (["--api-key", "k"], False)])
def test_a_server_open_to_everybody_says_so(toy: list[str], flags: list[str], warned: bool) -> None:
    with launched([*toy, "--host", "0.0.0.0", *flags]) as server:
        server.process.terminate()
        assert server.wait_end() == 0
        assert ("0.0.0.0 without an API key" in server.errors()) is warned


def test_keys_of_the_environment_are_on_no_command_line(
    toy: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_API_KEY", "quiet")
    monkeypatch.setenv("SGLANG_ADMIN_API_KEY", "still")
    with launched(toy) as server:
        command = Path(f"/proc/{server.process.pid}/cmdline")
        if command.exists():
            assert b"quiet" not in command.read_bytes()
        assert (ask(server, "quiet"), ask(server, "loud")) == (200, 401)
        assert (ask(server, "quiet", "/metrics"), ask(server, "still", "/metrics")) == (403, 200)
