"""The guard: permissions by key and by origin; ids of requests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.http_server import GOLDEN, Served, is_error, serve_text
from sglang.srt.config import Config
from sglang.srt.config.listening import exposed
from sglang.srt.runtime.tenants import Tenants
from sglang.srt.web.connection.guard import ORDINARY, ORDINARY_BELOW, PROBES, RESERVED
from sglang.srt.web.connection.hosts import Hosts

ADMIN = {
    "/get_server_info", "/server_info", "/metrics", "/flush_cache", "/live", "/live/events",
    "/get_load", "/pause_generation", "/continue_generation", "/drain",
    "/workers", "/workers/leave",
}  # fmt: skip
POSTED = {"/pause_generation", "/continue_generation"}
"""Routes that show or change what belongs to others. A new route is in here or in ORDINARY."""
LOADING = {"/load_lora_adapter", "/unload_lora_adapter", *RESERVED}


def bearer(key: str | bytes) -> dict[str, bytes]:
    return {"Authorization": b"Bearer " + (key if isinstance(key, bytes) else key.encode())}


def paths_of(server: Served) -> list[str]:
    found = {route.path for route in server.app.routes}  # type: ignore[attr-defined]
    assert {"/", "/health", "/metrics", "/openapi.json", "/generate"} <= found
    return sorted(found)


# -- keys: row 31 ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("keyed")
    file = directory / "keys.json"
    digest = hashlib.sha256(b"hashed-key").hexdigest()
    keys = [{"name": "a", "key": "key-of-a"}, {"name": "b", "sha256": digest},
            {"name": "boss", "key": "key-of-boss", "admin": True}]  # fmt: skip
    file.write_text(json.dumps(keys))
    config = Config.of(api_key="ordinary", admin_api_key="topmost", api_keys_file=str(file))
    with serve_text(directory / "tokenizer", config) as server:
        server.client.headers["Authorization"] = "Bearer topmost"
        yield server


def test_every_route_is_ordinary_or_for_admins(keyed: Served) -> None:
    for path in paths_of(keyed):
        ordinary = path in ORDINARY or path.startswith(ORDINARY_BELOW)
        if path in PROBES:
            assert not ordinary
            continue
        if path in LOADING:
            assert not ordinary or path in RESERVED
            continue
        assert ordinary != (path in ADMIN), f"{path}: put it into ORDINARY, or into ADMIN here"


@pytest.mark.slow
def test_without_a_key_every_route_says_401_and_no_more(keyed: Served) -> None:
    with httpx.Client(base_url=keyed.url, timeout=60) as http:
        found = set()
        paths = {*paths_of(keyed), "/nowhere", "/v1/", "/page/../metrics", "//health"} - PROBES
        for path in sorted(paths):
            for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "PROPFIND"):
                reply = http.request(method, path)
                assert reply.status_code == 401, (method, path)
                sent = reply.request.url.path
                page = sent in ("/", "/docs") or sent.startswith("/page/")
                page = page and method in ("GET", "HEAD")
                assert reply.headers["WWW-Authenticate"].startswith("Basic" if page else "Bearer")
                found.add(reply.content.partition(b'"request_id"')[0])
        assert len(found) <= 4  # one text in each form of errors, and none for HEAD


WRONG: list[list[tuple[str, bytes]]] = [
    [("Authorization", b"")],
    [("Authorization", b"Bearer")],
    [("Authorization", b"Bearer ordinar")],
    [("Authorization", b"Bearer ordinaryy")],
    [("Authorization", b"Bearer ORDINARY")],
    [("Authorization", b"Basic ordinary")],
    [("Authorization", b"ordinary")],
    [("Authorization", b"Bearer \xff\xfeordinary")],
    [("Authorization", "Bearer schlüssel".encode())],
    [("Authorization", b"Bearer " + b"k" * 60_000)],
    [("Authorization", b"Bearer ordinary"), ("Authorization", b"Bearer ordinary")],
    [("Authorization", b"Bearer wrong"), ("Authorization", b"Bearer ordinary")],
    [("x-api-key", b"ordinary"), ("x-api-key", b"ordinary")],
    [("x-api-key", b"wrong")],
    [("x-api-key", b"")],
    [("x-api-key", b"key-of-a"), ("Authorization", b"Bearer ordinary")],
    [("x-api-key", b"ordinary"), ("Authorization", b"Basic ordinary")],
    [("x-api-key", hashlib.sha256(b"hashed-key").hexdigest().encode())],
    [("Cookie", b"Authorization=Bearer ordinary")],
]


@pytest.mark.slow
@pytest.mark.parametrize("headers", WRONG)
def test_a_wrong_key_is_a_401(keyed: Served, headers: list[tuple[str, bytes]]) -> None:
    for path in ("/health", "/v1/models", "/get_server_info", "/nowhere"):
        reply = httpx.get(keyed.url + path, headers=headers, timeout=60)  # type: ignore[arg-type]
        assert is_error(reply, 401)["code"] == "invalid_api_key"


@pytest.mark.parametrize("key", ["ordinary", "key-of-a", "hashed-key", "key-of-boss", "topmost"])
def test_both_headers_are_read(keyed: Served, key: str) -> None:
    for headers in ({"Authorization": f"bearer  {key}"}, {"x-api-key": key},
                    {"x-api-key": key, "Authorization": f"Bearer {key}"}):  # fmt: skip
        assert httpx.get(f"{keyed.url}/v1/models", headers=headers, timeout=60).status_code == 200


@pytest.mark.parametrize(
    ("key", "admin"),
    [("ordinary", False), ("key-of-a", False), ("hashed-key", False), ("key-of-boss", True),
     ("topmost", True)],
)  # fmt: skip
def test_what_concerns_others_needs_the_admins_key(keyed: Served, key: str, admin: bool) -> None:
    with httpx.Client(base_url=keyed.url, headers=bearer(key), timeout=60) as http:  # type: ignore[arg-type]
        for path in sorted(
            ADMIN - {"/live/events", "/live", "/workers/leave"}, reverse=True
        ):  # pause, continue
            reply = http.request("POST" if path in POSTED else "GET", path)
            if admin:
                assert reply.status_code == 200
            else:
                assert is_error(reply, 403)["code"] == "forbidden"
        assert http.post("/workers/leave", json={}).status_code == (400 if admin else 403)
        assert http.get("/nowhere").status_code == (404 if admin else 403)
        assert http.post("/generate", json=GOLDEN).status_code == 200


def test_the_books_balance_after_all_that(keyed: Served) -> None:
    before = keyed.client.golden()
    keyed.client.idle()
    assert keyed.client.golden() == before
    assert keyed.state.open_requests <= 1  # perhaps the connection's own


def may(server: Served, path: str, key: str = "") -> int:
    return httpx.get(server.url + path, headers=bearer(key) if key else {}, timeout=60).status_code  # type: ignore[arg-type]


def test_one_key_is_the_admins_unless_there_is_one_for_him(tmp_path: Path) -> None:
    with serve_text(tmp_path / "1", Config.of(api_key="k")) as server:
        assert may(server, "/server_info", "k") == 200
    with serve_text(tmp_path / "2", Config.of(api_key="k", admin_api_key="a")) as server:
        assert may(server, "/server_info", "k") == 403
        assert may(server, "/server_info", "a") == 200
        assert may(server, "/health", "k") == may(server, "/health", "a") == 200


@pytest.mark.slow
def test_with_an_admins_key_alone_the_rest_is_open(tmp_path: Path) -> None:
    with serve_text(tmp_path / "1", Config.of(admin_api_key="a")) as server:
        for path in ("/health", "/v1/models"):
            assert may(server, path) == may(server, path, "any") == may(server, path, "a") == 200
        for path in sorted(ADMIN):
            assert may(server, path) == may(server, path, "any") == 401
        assert may(server, "/metrics", "a") == 200
        abort = {"abort_all": True}
        assert is_error(httpx.post(f"{server.url}/abort_request", json=abort, timeout=60), 403)
        server.client.headers["Authorization"] = "Bearer a"
        assert server.client.post("/abort_request", json=abort).status_code == 200


def test_no_key_is_told(keyed: Served) -> None:
    text = keyed.client.get("/server_info").text
    for key in ("ordinary", "topmost", "key-of-a"):
        assert f'"{key}"' not in text


@pytest.mark.parametrize(
    ("entries", "wrong"),
    [
        ("[", "malformed|truncated"),
        ('{"name": "a"}', "array"),
        ('[{"name": "a"}]', "either key or sha256"),
        ('[{"name": "a", "key": "k", "sha256": "' + "0" * 64 + '"}]', "either key or sha256"),
        ('[{"name": "a", "sha256": "abc"}]', "64 hexadecimal"),
        ('[{"name": "", "key": "k"}]', "1 to 64"),
        ('[{"name": "a\\nb", "key": "k"}]', "printable"),
        ('[{"name": "admin", "key": "k"}]', "admin"),
        ('[{"name": "a", "key": " k"}]', "space"),
        ('[{"name": "a", "key": "k", "requests_per_minute": -1}]', "0, no limit, or more"),
        ('[{"name": "a", "key": "k", "request_per_minute": 1}]', "request_per_minute"),
        ('[{"name": "a", "key": "k", "priority": 10000000}]', "priority"),
        ('[{"name": "a", "key": "k"}, {"name": "a", "key": "l"}]', "two entries"),
        ('[{"name": "a", "key": "k"}, {"name": "b", "key": "k"}]', "the same"),
        ('[{"name": "a", "key": "mine"}]', "the same"),
    ],
)
def test_a_broken_file_of_keys_is_named(tmp_path: Path, entries: str, wrong: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(entries)
    with pytest.raises(ValueError, match=wrong):
        Tenants(Config.of(api_keys_file=str(file), api_key="mine"))
    with pytest.raises(OSError, match=r"--api-keys-file .*nofile: No such file"):
        Tenants(Config.of(api_keys_file=str(tmp_path / "nofile")))


# -- hosts and origins: row 32 --------------------------------------------------------------------


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("local"), Config.of()) as server:
        yield server


def asked(server: Served, headers: dict[str, str], path: str = "/health") -> httpx.Response:
    return httpx.get(server.url + path, headers=headers, timeout=60)


@pytest.mark.slow
def test_a_name_that_was_made_to_point_here_is_refused(local: Served) -> None:
    port = local.url.rpartition(":")[2]
    for host in ("localhost", f"localhost:{port}", f"127.0.0.1:{port}", "[::1]:8080", "127.0.0.2",
                 "LOCALHOST:1", "x.localhost"):  # fmt: skip
        assert asked(local, {"Host": host}).status_code == 200, host
    for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "10.0.0.1", "",
                 "127.0.0.1.nip.io", "localhost@evil.example"):  # fmt: skip
        error = is_error(asked(local, {"Host": host}), 403)
        assert "--allowed-hosts" in error["message"]


@pytest.mark.slow
def test_a_page_of_another_origin_is_refused(local: Served) -> None:
    before = local.client.golden()
    port = local.url.rpartition(":")[2]
    generate = f"{local.url}/generate"
    for origin in ("http://evil.example", "https://localhost", f"http://localhost:{port}1", "null",
                   "http://127.0.0.1", "http://127.0.0.1:1", "file://", ""):  # fmt: skip
        for kind in ("application/json", "text/plain"):
            reply = httpx.post(
                generate, json=GOLDEN, headers={"Origin": origin, "Content-Type": kind}, timeout=60
            )
            if origin:
                assert "--cors-allow-origins" in is_error(reply, 403)["message"]
            assert "access-control-allow-origin" not in reply.headers
        assert asked(local, {"Origin": origin}).status_code == (403 if origin else 200)
    own = {"Origin": local.url}
    assert httpx.post(generate, json=GOLDEN, headers=own, timeout=60).status_code == 200
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    is_error(httpx.options(generate, headers=preflight), 403)
    local.client.idle()
    assert local.client.golden() == before


def test_an_image_on_another_page_changes_nothing(local: Served) -> None:
    image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    is_error(asked(local, image), 403)
    is_error(asked(local, {**image, "Sec-Fetch-Site": "same-site"}), 403)  # another port
    is_error(asked(local, image, "/flush_cache"), 403)
    is_error(asked(local, link, "/flush_cache"), 403)
    assert asked(local, link).status_code == 200
    assert asked(local, {"Sec-Fetch-Site": "same-origin"}, "/flush_cache").status_code == 200


HOSTS: list[tuple[str, str, str, bool]] = [
    ("0.0.0.0", "", "any.example", True),
    ("::", "", "any.example:80", True),
    ("10.0.0.7", "", "any.example", True),
    ("0.0.0.0", "a.example, b.example", "b.example:30000", True),
    ("0.0.0.0", "a.example,b.example", "c.example", False),
    ("0.0.0.0", "a.example", "localhost:30000", True),
    ("0.0.0.0", "*.example", "x.example", True),
    ("0.0.0.0", "*.example", "example", False),
    ("0.0.0.0", "*.example", "x.y.example", False),
    ("127.0.0.1", "a.example", "A.Example.", True),
    ("127.0.0.1", "a.example", "b.example", False),
    ("127.0.0.1", "*", "b.example", True),
    ("localhost", "", "b.example", False),
    ("::1", "", "[::1]", True),
    ("::1", "", "[::2]", False),
]


@pytest.mark.parametrize(("bound", "allowed", "host", "good"), HOSTS)
def test_which_hosts_are_known(bound: str, allowed: str, host: str, good: bool) -> None:
    scope: dict[str, Any] = {
        "path": "/", "http_version": "1.1", "headers": [(b"host", host.encode())],
    }  # fmt: skip
    hosts = Hosts(bound, allowed, "")
    if good:
        hosts.verify(scope)
    else:
        with pytest.raises(Exception, match="allowed-hosts"):
            hosts.verify(scope)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "a.example"])
def test_a_server_that_others_reach_without_a_key_is_exposed(host: str) -> None:
    assert exposed(host, Config())
    assert exposed(host, Config.of(admin_api_key="k"))  # /generate does not need the admin's key
    for guard in ({"api_key": "k"}, {"api_keys_file": "f"}, {"ssl_ca_certs": "f"}):
        assert not exposed(host, Config.of(**guard))
    assert not any(exposed(own, Config()) for own in ("127.0.0.1", "127.1.2.3", "::1", "localhost"))


def test_keys_that_open_nothing_or_to_nobody_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    for text, why in (("", "the file is empty"), ("\n", "the file is empty"), ("[]", "no key")):
        file.write_text(text)
        with pytest.raises(ValueError, match=why):
            Tenants(Config.of(api_keys_file=str(file)))
    file.write_text('[{"name": "a", "key": ""}]')
    with pytest.raises(ValueError, match="either key or sha256"):
        Tenants(Config.of(api_keys_file=str(file)))
    for key in (" ", "a ", "a\n", "a\x00"):
        with pytest.raises(ValueError, match=r"--api-key .*no client can send it"):
            Tenants(Config.of(api_key=key))


@pytest.mark.slow
def test_cors(tmp_path: Path) -> None:
    config = Config.of(cors_allow_origins="https://app.example, http://x:1", api_key="k")
    with serve_text(tmp_path / "1", config) as server:
        generate = f"{server.url}/generate"
        for origin in ("https://app.example", "http://x:1"):
            asks = {"Origin": origin, "Access-Control-Request-Method": "POST",
                    "Access-Control-Request-Headers": "authorization,x-stainless-os"}  # fmt: skip
            reply = httpx.options(generate, headers=asks)  # the one thing that needs no key
            assert reply.status_code == 200
            assert reply.headers["access-control-allow-origin"] == origin
            assert "x-stainless-os" in reply.headers["access-control-allow-headers"]
            assert "POST" in reply.headers["access-control-allow-methods"]
            headers: Any = {"Origin": origin, **bearer("k")}
            reply = httpx.post(generate, json=GOLDEN, headers=headers, timeout=60)
            assert reply.status_code == 200
            assert reply.headers["access-control-allow-origin"] == origin
            assert "x-request-id" in reply.headers["access-control-expose-headers"]
            assert "access-control-allow-credentials" not in reply.headers
            refused = httpx.post(generate, json=GOLDEN, headers={"Origin": origin}, timeout=60)
            assert is_error(refused, 401)
            assert refused.headers["access-control-allow-origin"] == origin
        is_error(httpx.options(generate, headers={"Origin": "http://x:1"}), 401)
        is_error(httpx.options(generate, headers={**asks, "Origin": "http://x:2"}), 403)
        is_error(
            httpx.post(generate, json=GOLDEN, headers={"Origin": "http://x:2"}, timeout=60), 403
        )
    with serve_text(tmp_path / "2", Config.of(cors_allow_origins="*")) as server:
        reply = asked(server, {"Origin": "http://anywhere", "Cookie": "a=b"})
        assert reply.headers["access-control-allow-origin"] in ("*", "http://anywhere")
        assert "access-control-allow-credentials" not in reply.headers


# -- ids ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_answer_carries_the_requests_id(keyed: Served, local: Served) -> None:
    for path, given in (("/health", {}), ("/nowhere", {}), ("/generate", {}), ("/", {}),
                        ("/health", {"Host": "evil.example"})):  # fmt: skip
        reply = asked(local, {"X-Request-Id": "mine-1", **given}, path)
        assert reply.headers["X-Request-Id"] == "mine-1"
        made = [asked(local, given, path).headers["X-Request-Id"] for _ in range(2)]
        assert len(set(made)) == 2
    assert asked(keyed, {"X-Request-Id": "mine-2"}).headers["X-Request-Id"] == "mine-2"
    body = {**GOLDEN, "stream": True}
    reply = httpx.post(
        f"{local.url}/generate", json=body, headers={"X-Request-Id": "mine-3"}, timeout=60
    )
    assert reply.headers["X-Request-Id"] == "mine-3"


@pytest.mark.parametrize("given", ["", "two words", "x" * 129, "é", "tab\tbed"])
def test_an_odd_id_is_replaced(local: Served, given: str) -> None:
    headers = {"X-Request-Id": given.encode()}
    found = httpx.get(f"{local.url}/health", headers=headers, timeout=60).headers["X-Request-Id"]  # type: ignore[arg-type]
    assert found != given
    assert len(found) == 32
    twice = [("X-Request-Id", "a"), ("X-Request-Id", "b")]
    assert (
        len(httpx.get(f"{local.url}/health", headers=twice, timeout=60).headers["X-Request-Id"])
        == 32
    )
