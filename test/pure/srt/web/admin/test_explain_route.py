"""Explanations of cache misses, from the server's route and the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from helpers.http_server import Client, Served, is_error, serve_text
from sglang.srt import cli
from sglang.srt.config import Config

PROMPT = "the quick brown fox jumps over the lazy dog and runs away from it"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as server:
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[Client]:
    served.client.idle()
    served.client.post("/flush_cache")
    yield served.client
    served.client.idle()


def ask(http: Client, text: str, rid: str, **body: Any) -> dict[str, Any]:
    """The explanation of a completion of ``text``."""
    body = {"text": text, "rid": rid, "sampling_params": {"max_new_tokens": 1}, **body}
    reply = http.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = http.get(f"/explain/{quote(rid, safe='')}").json()["prompts"][0]
    assert sum(reason["tokens"] for reason in found["reasons"]) == found["prompt_tokens"]
    assert found["cached_tokens"] == reply.json()["meta_info"]["cached_tokens"]
    assert found["cached_tokens"] + found["computed_tokens"] == found["prompt_tokens"]
    return found


def kinds(found: dict[str, Any]) -> dict[str, int]:
    return {reason["kind"]: reason["tokens"] for reason in found["reasons"]}


def test_where_a_prompt_left_the_cached_path(http: Client) -> None:
    found = ask(http, PROMPT, "first")
    length = found["prompt_tokens"]
    assert kinds(found) == {"never_seen": length - 1, "wanted": 1}
    assert found["diverged"] is None
    found = ask(http, PROMPT, "again")
    assert kinds(found) == {"cached": length - 1, "wanted": 1}
    changed = PROMPT.replace("lazy dog", "laid back cat")
    found = ask(http, changed, "other")
    left = found["diverged"]
    assert left["at"] == found["cached_tokens"]
    at = len(left["before"])
    assert PROMPT.startswith(left["before"])
    assert changed.startswith(left["before"] + left["prompt_text"])
    assert PROMPT.startswith(left["before"] + left["cached_text"])
    assert PROMPT.index("zy") - 8 < at <= PROMPT.index("zy")
    for part in ("came from the cache", "left the nearest cached path"):
        assert part in found["text"]


def test_what_was_flushed_is_told(http: Client) -> None:
    ask(http, PROMPT, "a")
    assert http.post("/flush_cache").status_code == 200
    found = ask(http, PROMPT, "b")
    assert kinds(found) == {"flushed": found["prompt_tokens"] - 1, "wanted": 1}
    assert "flushed on request at 20" in found["text"]


def test_another_salt_is_told(http: Client) -> None:
    ask(http, PROMPT, "a", cache_salt="one")
    found = ask(http, PROMPT + "!", "b", cache_salt="two")
    assert set(kinds(found)) == {"salt", "never_seen", "wanted"} - (
        set() if kinds(found).get("never_seen") else {"never_seen"}
    )
    assert kinds(found)["salt"] >= found["prompt_tokens"] - 2


def test_wanted_log_probabilities_are_told(http: Client) -> None:
    ask(http, PROMPT, "a")
    found = ask(http, PROMPT, "b", return_logprob=True, logprob_start_len=5)
    assert kinds(found) == {"cached": 4, "wanted": found["prompt_tokens"] - 4}


def test_tenants_who_share_a_cache_read_nothing_of_each_other(tmp_path: Path) -> None:
    names = {"a": {}, "b": {}, "c": {"shared_cache": True}, "d": {"shared_cache": True},
             "boss": {"admin": True}}  # fmt: skip
    keys = [{"name": name, "key": name, **more} for name, more in names.items()]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(keys))
    with serve_text(tmp_path / "t", Config.of(api_keys_file=str(file))) as server:
        each = {name: {"Authorization": f"Bearer {name}"} for name in names}
        texts = {"a": PROMPT, "b": PROMPT, "c": PROMPT, "d": PROMPT[:30] + "secrets"}
        for name, text in texts.items():
            body = {"text": text, "rid": "job", "sampling_params": {"max_new_tokens": 1}}
            assert server.client.post("/generate", json=body, headers=each[name]).is_success
        seen = {
            name: server.client.get("/explain/job", headers=header).json()["prompts"][0]
            for name, header in each.items()
        }
    for name in "abc":  # the name that d gave too is still theirs
        assert seen[name]["cached_tokens"] == 0
    assert seen["d"]["cached_tokens"] > 0
    assert seen["d"]["diverged"] is None
    assert PROMPT[30:40] not in json.dumps(seen["d"])
    assert PROMPT[30:40] in seen["boss"]["diverged"]["cached_text"]  # the newest one is d's


def test_every_name_of_a_request(http: Client) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    chat = http.post("/v1/chat/completions", json=body).json()
    assert len(http.get(f"/explain/{chat['id']}").json()["prompts"]) == 1
    body = {"prompt": ["one", "two"], "max_tokens": 1}
    reply = http.post("/v1/completions", json=body, headers={"X-Request-Id": "mine"})
    for name in ("mine", reply.json()["id"]):
        assert len(http.get(f"/explain/{name}").json()["prompts"]) == 2
    is_error(http.get("/explain/never-heard-of"), 404)


def test_the_command(
    served: Served, http: Client, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = ask(http, PROMPT, "a b/c")
    assert cli.main(["explain", "a b/c", "--url", served.url]) == 0
    assert capsys.readouterr().out == found["text"] + "\n"
    assert cli.main(["explain", "x", "--url", served.url]) == 1
    assert "no explanation of 'x'" in capsys.readouterr().err
    for url in ("http://127.0.0.1:9", "http://a:b@c:d"):
        assert cli.main(["explain", "x", "--url", url]) == 1
        assert "no server answers at" in capsys.readouterr().err
    assert cli.main(["explain", "x", "--url", str(tmp_path)]) == 1
    assert "must begin with http" in capsys.readouterr().err
