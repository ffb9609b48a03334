"""Responses over the real engine: what is left behind by clients that leave, and by tasks that are
ended; whose responses are whose."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.http_server import Served, is_error, serve_text
from helpers.scripted_server import Paced, serve_scripted
from helpers.toy_tokenizer import byte_level
from sglang.srt.config import Config
from sglang.srt.tokenizer import Tokenizer

PATH = "/v1/responses"
LONG: dict[str, Any] = {"input": "Hi", "max_output_tokens": 900, "ignore_eos": True}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer"), running=4, queued=4) as server:
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    golden = served.client.golden()
    served.worker.seconds = 0.005
    yield served.client
    served.worker.seconds = 0.0
    served.client.idle()
    assert served.client.golden() == golden


def begin(http: httpx.Client, **more: Any) -> str:
    """Id of a long response in the background."""
    reply = http.post(PATH, json={**LONG, "background": True, **more})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        piece = connection.recv(4096)
        assert piece, data
        data += piece
    return data


def ended(http: httpx.Client, id: str, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while (found := http.get(f"{PATH}/{id}").json())["status"] in ("queued", "in_progress"):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_aborted(served: Served, http: httpx.Client, stream: bool) -> None:
    aborted = served.client.stats()["aborted"]
    connection = served.open({**LONG, "stream": stream}, PATH)
    while served.client.stats()["running"] == 0:
        time.sleep(0.005)
    if stream:
        read_until(connection, b"response.created")
    connection.close()
    stats = served.client.idle()
    assert stats["aborted"] == aborted + 1
    assert len(served.state.responses) == 0


def test_the_background_outlives_its_client(served: Served, http: httpx.Client) -> None:
    connection = served.open(
        {**LONG, "max_output_tokens": 60, "stream": True, "background": True}, PATH
    )
    id = read_until(connection, b'"object"').split(b'"id":"')[1].split(b'"')[0].decode()
    connection.close()
    found = ended(http, id)
    assert (found["status"], found["usage"]["output_tokens"]) == ("incomplete", 60)
    plain = http.post(PATH, json={**LONG, "max_output_tokens": 60, "temperature": 0}).json()
    again = ended(http, begin(http, max_output_tokens=60, temperature=0))
    assert again["output"][0]["content"] == plain["output"][0]["content"]
    streamed = http.get(f"{PATH}/{id}?stream=true").text.strip().split("\n")[-1]
    assert json.loads(streamed[6:])["response"] == found


def test_what_is_cancelled_leaves_the_engine(served: Served, http: httpx.Client) -> None:
    before = served.client.stats()
    ids = [begin(http) for _ in range(3)]
    while served.client.stats()["received"] < before["received"] + 3:
        time.sleep(0.005)
    for id in ids:
        assert http.post(f"{PATH}/{id}/cancel").json()["status"] == "cancelled"
    assert served.client.idle()["aborted"] == before["aborted"] + 3
    assert served.state.responses.live() == 0
    assert http.get(f"{PATH}/{ids[0]}").json()["usage"] is None


def test_what_is_aborted_or_drained(served: Served, http: httpx.Client) -> None:
    first, second = begin(http), begin(http)
    while served.client.stats()["running"] < 2:
        time.sleep(0.005)
    assert http.post("/abort_request", json={"rid": first}).json()["aborted"] == 1
    assert ended(http, first)["status"] == "cancelled"
    served.state.runtime.completion.abort()  # as the end of a drain does
    found = ended(http, second)
    assert (found["status"], found["output"][0]["status"]) == ("cancelled", "incomplete")


def test_the_queue_is_full(served: Served, http: httpx.Client) -> None:
    ids: list[str] = []
    for _ in range(20):
        reply = http.post(PATH, json={**LONG, "background": True})
        if reply.status_code == 429:
            break
        ids.append(reply.json()["id"])
        time.sleep(0.01)
    assert is_error(reply, 429)["code"] == "queue_full"
    assert 4 <= len(ids) <= 9
    for id in ids:
        assert http.delete(f"{PATH}/{id}").status_code == 200


def test_a_conversation_finds_its_beginning_in_the_cache(http: httpx.Client) -> None:
    first = http.post(PATH, json={**LONG, "max_output_tokens": 40}).json()
    second = http.post(PATH, json={"input": "And?", "max_output_tokens": 4,
                                   "previous_response_id": first["id"]}).json()  # fmt: skip
    cached = second["usage"]["input_tokens_details"]["cached_tokens"]
    assert cached >= first["usage"]["input_tokens"]


def test_another_tenant_finds_nothing(tmp_path: Path) -> None:
    keys = [{"name": name, "key": name * 8} for name in ("a", "b")]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(keys), encoding="utf-8")
    file.chmod(0o600)
    model = Paced(Tokenizer(byte_level(tmp_path)))
    model.text, model.seconds = "Hello", 0.01
    with serve_scripted(model, Config.of(api_keys_file=str(file))) as url:
        mine, other = (
            httpx.Client(
                base_url=url, headers={"Authorization": f"Bearer {key['key']}"}, timeout=60
            )
            for key in keys
        )
        with mine, other:
            answer = mine.post(PATH, json={"input": "Hi"}).json()
            live = mine.post(PATH, json={"input": "Hi", "background": True}).json()
            for id in (answer["id"], live["id"]):
                for reply in (
                    other.get(f"{PATH}/{id}"), other.post(f"{PATH}/{id}/cancel"),
                    other.delete(f"{PATH}/{id}"), other.get(f"{PATH}/{id}/input_items"),
                ):  # fmt: skip
                    is_error(reply, 404)
                reply = other.post(PATH, json={"input": "Hi", "previous_response_id": id})
                assert is_error(reply, 400)["code"] == "previous_response_not_found"
            item = answer["output"][0]["id"]
            reference = {"input": [{"type": "item_reference", "id": item}]}
            is_error(other.post(PATH, json=reference), 400)
            assert mine.post(PATH, json=reference).status_code == 200
            assert ended(mine, live["id"])["status"] == "completed"
