"""The page's files and the live view, over HTTP and the real engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.http_server import Served, is_error, serve_text
from helpers.paths import ROOT
from sglang.srt.config import Config
from sglang.srt.requests.completion.completer import EngineLost
from sglang.srt.runtime.caller import Caller
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.page import live_view as live
from sglang.srt.web.page import page_files as page

from tools.vendored import differences, table

FOLDER = Path(page.__file__).parent / "static"
ALL = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file())
FILES = [name for name in ALL if not name.startswith("vendor/")]
SERVED = [name for name in ALL if not name.endswith(".json")]
KINDS = {
    ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2",
    ".txt": "text/plain", ".html": "text/html",
}  # fmt: skip
SHORT = {"max_new_tokens": 2, "temperature": 0}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as found:
        yield found


@pytest.fixture(autouse=True)
def _empty(served: Served) -> None:
    """Every test begins with an empty cache, and none sees a snapshot of another."""
    served.app.state.watch = None
    served.client.idle()
    assert served.client.post("/flush_cache").status_code == 200


def complete(served: Served, text: str, **body: Any) -> None:
    reply = served.client.post("/generate", json={"text": text, "sampling_params": SHORT, **body})
    assert reply.status_code == 200, reply.text


def items(reply: httpx.Response) -> Iterator[Any]:
    """Events of a stream; the last is None, for [DONE]."""
    for line in reply.iter_lines():
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield None if data == "[DONE]" else json.loads(data)


# -- the page's files -----------------------------------------------------------------------------


def test_files_are_served_with_a_strict_policy(served: Served) -> None:
    for path in ["/", *(f"/page/{name}" for name in SERVED)]:
        reply = served.client.get(path)
        assert reply.status_code == 200, path
        name = "index.html" if path == "/" else path.removeprefix("/page/")
        assert reply.content == (FOLDER / name).read_bytes()
        assert reply.headers["x-content-type-options"] == "nosniff"
        policy = reply.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "trusted-types dompurify" in policy
        assert not re.search(r"unsafe|https?:|\*", policy)
        assert reply.headers["content-type"].startswith(KINDS[Path(name).suffix])


def test_a_file_that_the_browser_has_is_not_sent_again(served: Served) -> None:
    tag = served.client.get("/page/chat.js").headers["etag"]
    again = served.client.get("/page/chat.js", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert "content-security-policy" in again.headers
    other = served.client.get("/page/main.js", headers={"If-None-Match": tag})
    assert other.status_code == 200


def test_libraries_are_those_of_the_list() -> None:
    assert differences() == []
    page_of_docs = (ROOT / "docs" / "page.md").read_text(encoding="utf-8")
    assert table() in page_of_docs


@pytest.mark.parametrize("name", ["none.js", "..%2fpage.py", "%2e%2e%2fpage.py", "a%00.js", "%2f",
    "vendor/vendored.json", "vendor/%2e%2e/%2e%2e/page_files.py", "vendor"])  # fmt: skip
def test_nothing_else_is_served(served: Served, name: str) -> None:
    is_error(served.client.get(f"/page/{name}"), 404)


def test_a_browsers_password_is_the_key_of_the_pages_files_alone(tmp_path: Path) -> None:
    config = Config.of(api_key="a key: ü")
    with (
        serve_text(tmp_path, config) as served,
        httpx.Client(base_url=served.url, timeout=60) as browser,
    ):
        password = ("anybody", "a key: ü")
        for path in ("/", "/page/main.js"):
            assert is_error(browser.get(path), 401)
            assert browser.get(path).headers["www-authenticate"].startswith("Basic ")
            assert browser.get(path, auth=password).status_code == 200
            assert served.client.get(path).status_code == 200
            assert is_error(browser.get(path, auth=("anybody", "a key")), 401)
            for value in ("Basic", "Basic ???", "Basic YQ", "Basic " + "QUFB" * 1000):
                assert is_error(browser.get(path, headers={"Authorization": value}), 401)
        for path in ("/v1/models", "/live", "/health", "/nowhere"):
            assert is_error(browser.get(path, auth=password), 401)
            assert "Basic" not in browser.get(path).headers["www-authenticate"]
        for path in ("/", "/generate", "/v1/chat/completions"):
            assert is_error(browser.post(path, auth=password, json={"text": "a"}), 401)


def test_the_page_is_whole_and_needs_nothing_from_elsewhere() -> None:
    for name in FILES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert len(text.splitlines()) < 250, name
        assert set(re.findall(r"https?://[^\s\"'`]*", text)) <= {"http://www.w3.org/2000/svg"}
        linked = re.findall(r'(?:from|import|import\()\s*"\./([^"]+)"', text)
        linked += re.findall(r'"page/([^"]+)"', text)
        linked += re.findall(r'url\("([^"]+)"\)', text)
        assert set(linked) <= set(ALL), name


def test_the_page_names_its_modules_so_that_none_waits() -> None:
    found: set[str] = set()
    left = ["main.js"]
    while left:
        name = left.pop()
        text = (FOLDER / name).read_text(encoding="utf-8")
        new = set(re.findall(r'(?:from|import) "\./([^"]+)"', text)) - found
        found |= new
        left += [each for each in new if not each.startswith("vendor/")]
    page_text = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert set(re.findall(r'modulepreload" href="page/([^"]+)"', page_text)) == found


def test_no_text_can_become_markup() -> None:
    unsafe = re.compile(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function")
    for name in FILES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        assert not unsafe.search(text), name
        if name.endswith(".html"):
            assert not re.search(r"<script(?! type=\"module\" src=)|\son\w+=|style=", text)


# -- a snapshot -----------------------------------------------------------------------------------


def test_a_snapshot_shows_the_tree_with_its_texts(served: Served) -> None:
    complete(served, "the lazy dog")
    complete(served, "the lazy cat\n\x07\x7f")
    found = served.client.get("/live").json()
    nodes = {node["id"]: node for node in found["tree"]["nodes"]}
    assert len(nodes) == found["tree"]["total_nodes"] == found["tree"]["shown"]
    root = next(node for node in nodes.values() if node["children"] == 2)
    assert root["text"] == "the lazy"
    assert (root["parent"], root["depth"], root["locks"]) == (-1, root["tokens"], 0)
    texts = {node["text"] for node in nodes.values() if node["parent"] == root["id"]}
    assert any(text.startswith(" dog") for text in texts)
    assert any(text.startswith(" cat↵␇\ufffd") for text in texts)
    assert found["running"] == found["waiting"] == []
    assert found["stats"]["total_tokens"] == served.client.stats()["total_tokens"]
    assert found["model"] == served.state.runtime.model_name


def test_the_texts_are_cut(served: Served) -> None:
    complete(served, "abcdefghij" * 30)
    (node,) = (n for n in served.client.get("/live").json()["tree"]["nodes"] if n["parent"] == -1)
    assert node["text"].startswith("abcdefghij")
    assert node["text"].endswith("…")
    assert len(node["text"]) <= live.TEXT_CHARS + 1
    assert "text_ids" not in node


def test_a_limit_is_kept_and_the_tree_stays_one(served: Served) -> None:
    for i in range(8):
        complete(served, f"{i} is a number of its own")
    found = served.client.get("/live", params={"limit": 3}).json()["tree"]
    ids = {node["id"] for node in found["nodes"]}
    assert 3 <= len(ids) == found["shown"] < found["total_nodes"]
    assert {node["parent"] for node in found["nodes"]} <= ids | {-1}


@pytest.mark.parametrize("limit", ["-1", "1001", "x", "1e2", "", "9" * 5000, "٣"])
def test_a_wrong_limit_is_named(served: Served, limit: str) -> None:
    for path in ("/live", "/live/events"):
        assert is_error(served.client.get(path, params={"limit": limit}), 400)["param"] == "limit"


@pytest.mark.parametrize("interval", ["0", "-1", "61", "nan", "inf", "x", ""])
def test_a_wrong_interval_is_named(served: Served, interval: str) -> None:
    reply = served.client.get("/live/events", params={"interval": interval})
    assert is_error(reply, 400)["param"] == "interval"


def test_only_an_admin_sees_texts_and_namespaces(served: Served) -> None:
    complete(served, "a secret", cache_salt="whose\n")
    (shown,) = (n for n in served.client.get("/live").json()["tree"]["nodes"] if n["parent"] == -1)
    assert shown["text"].startswith("a secret")
    assert shown["namespace"].endswith("whose↵")

    node = {"id": 1, "tokens": 2, "text_ids": [70, 71], "namespace": "whose", "age": 1.0}
    for admin, hidden in ((True, False), (False, True)):
        token = CALLER.set(Caller(admin=admin))
        found = live._node(served.state, node, CALLER.get().admin)
        CALLER.reset(token)
        assert (found["text"] == found["namespace"] == "") is hidden


def test_a_nodes_plain_text_has_nothing_of_the_template(served: Served) -> None:
    tokenizer = served.tokenizer
    text = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in (
        ("system", "Be brief."), ("user", "user\ndata")))  # fmt: skip
    ids = tokenizer.encode(f"{text}<|im_start|>assistant\n")
    assert live._plain(tokenizer, ids) == "Be brief. · user\ndata"
    assert live._plain(tokenizer, ids[:1]) == ""
    complete(served, "a text of its own")
    (node,) = (n for n in served.client.get("/live").json()["tree"]["nodes"] if n["parent"] == -1)
    assert node["plain"].startswith("a text of its own")


def test_a_snapshot_has_the_last_hour(served: Served) -> None:
    before = sum(m["completions"] for m in served.client.get("/live").json()["hour"])
    complete(served, "the lazy dog")
    found = served.client.get("/live").json()
    assert sum(minute["completions"] for minute in found["hour"]) == before + 1
    assert found["hour"][-1]["generated_tokens"] >= 2
    assert set(found["latency"]) == {"first", "token", "whole"}
    for shares in found["latency"].values():
        assert 0 < shares["p50"] <= shares["p95"] <= shares["p99"]


# -- a stream of them -----------------------------------------------------------------------------


def test_a_stream_brings_a_snapshot_in_every_interval(served: Served) -> None:
    begun = time.time()
    with served.client.stream("GET", "/live/events", params={"interval": 0.2, "limit": 0}) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        found = items(reply)
        times = [next(found)["time"] for _ in range(4)]
    assert all(at - begun > 0.2 * place - 0.05 for place, at in enumerate(times))


def test_a_drain_ends_the_streams(served: Served) -> None:
    with served.client.stream("GET", "/live/events", params={"interval": 60}) as reply:
        found = items(reply)
        assert next(found)["tree"]
        served.state.drain.begun = True
        try:
            begun = time.monotonic()
            assert list(found) == [None]
            assert time.monotonic() - begun < 50  # not the interval
        finally:
            served.state.drain.begun = False


def test_watchers_are_limited_and_leave_no_trace(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_WATCHERS", 2)
    streams = [served.client.stream("GET", "/live/events") for _ in range(2)]
    opened = [items(stream.__enter__()) for stream in streams]
    assert [next(found)["pending"] for found in opened] == [0, 0]
    assert is_error(served.client.get("/live/events"), 429)["code"] == "queue_full"
    for stream in streams:
        stream.__exit__(None, None, None)
    deadline = time.monotonic() + 60
    while served.app.state.watch.open:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_many_watchers_ask_no_more_of_the_engine_than_one(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, calls = served.state.runtime.completion.control, 0

    async def counted(op: str, seconds: float = 5.0, limit: int = 0) -> Any:
        nonlocal calls
        calls += 1
        return await asked(op, seconds, limit)

    monkeypatch.setattr(served.state.runtime.completion, "control", counted)
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        path = "/live/events?interval=1"
        streams = [stack.enter_context(served.client.stream("GET", path)) for _ in range(8)]
        found = [items(reply) for reply in streams]
        first = [next(each)["time"] for each in found]
        again = [next(each)["time"] for each in found]
    assert calls <= 2 + 2 * (time.monotonic() - begun)  # one in half an interval
    assert all(after > before for before, after in zip(first, again))


def test_a_stream_ends_by_itself(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_SNAPSHOTS", 2)
    with served.client.stream("GET", "/live/events", params={"interval": 0.1}) as reply:
        found = list(items(reply))
    assert len(found) == 3
    assert found[-1] is None


def test_a_silent_engine_is_busy(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(op: str, seconds: float = 5.0, limit: int = 0) -> None:
        raise asyncio.TimeoutError

    monkeypatch.setattr(served.state.runtime.completion, "control_each", silent)
    is_error(served.client.get("/live"), 503)
    with served.client.stream("GET", "/live/events", params={"interval": 0.1}) as reply:
        found = items(reply)
        assert [next(found), next(found)] == [{"busy": True}] * 2


def test_a_lost_engine_is_an_error(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = served.state.runtime.completion.control_each
    calls = 0

    async def dying(op: str, seconds: float = 5.0, limit: int = 0) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise EngineLost("gone")
        return await asked(op, seconds, limit)

    monkeypatch.setattr(served.state.runtime.completion, "control_each", dying)
    with served.client.stream("GET", "/live/events", params={"interval": 0.1}) as reply:
        found = list(items(reply))
    assert "tree" in found[0]
    assert found[1]["error"]["code"] == "engine_lost"
    assert len(found) == 2
    is_error(served.client.get("/live"), 503)
