"""Constraints over HTTP, against a real server: hostile ones are a 400 and disturb no other
request."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.http_server import Client
from helpers.launched import Server, best_model, client_of, launched

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = best_model(tmp_path_factory.mktemp("model"))
    with launched([*model, "--device", "cpu", "--max-total-tokens", "16384"]) as server:
        yield server


@pytest.fixture
def http(server: Server) -> Iterator[Client]:
    with client_of(server) as client:
        yield client


def generate(http: Client, **params: Any) -> Any:
    body = {
        "text": "The capital",
        "sampling_params": {"max_new_tokens": 12, "temperature": 0, **params},
    }
    return http.post("/generate", json=body)


DEEP: Any = {"type": "string"}
for _ in range(100):
    DEEP = {"type": "object", "properties": {"a": DEEP}, "required": ["a"]}
LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
HOSTILE: dict[str, dict[str, Any]] = {
    "not a pattern": {"regex": "(a"},
    "back-reference": {"regex": r"(a+)\1"},
    "matches nothing": {"regex": r"[^\s\S]"},
    "nested repeats": {"regex": "(((.{1,30}){1,30}){1,30})"},
    "too many states": {"regex": r"(?:(?=.*a.{9})(?=.*b.{9})(?=.*c.{9}).){1,30}"},
    "4 KB and more": {"regex": "a" * 5000},
    "10,000 levels": {"regex": "(" * 2000 + "a" + ")" * 2000},
    "unknown type": {"json_schema": {"type": "strng"}},
    "unsupported keyword": {"json_schema": {"type": "array", "uniqueItems": True}},
    "allows nothing": {"json_schema": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
    "no such definition": {"json_schema": {"$ref": "#/$defs/none"}},
    "definitions in a circle": {"json_schema": LOOP},
    "100 levels of objects": {"json_schema": DEEP},
    "a large enum": {"json_schema": {"enum": [f"value {i}" for i in range(20_000)]}},
    "a pattern in a schema": {"json_schema": {"type": "string", "pattern": "(a"}},
    "a grammar of nothing": {"ebnf": "root ::= root"},
    "not a grammar": {"ebnf": "root ::= ("},
    "a tag without a trigger": {"structural_tag": {"type": "structural_tag", "structures": [
        {"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<b>"]}},
    "two constraints": {"regex": "a", "json_schema": {}},
    "no choices": {"choices": []},
    "endless white space": {"json_schema": {}, "whitespace_pattern": r"\s*"},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_constraint_is_a_400(http: Client, name: str) -> None:
    before = generate(http, regex="[a-z ]+").json()["text"]
    found = generate(http, **HOSTILE[name])
    assert found.status_code == 400, found.text
    error = found.json()["error"]
    assert error["param"] in (*HOSTILE[name], "sampling_params", None), error
    assert len(error["message"]) < 1000
    assert http.get("/health").status_code == 200
    assert generate(http, regex="[a-z ]+").json()["text"] == before


def test_others_are_served_while_a_constraint_is_compiled(server: Server) -> None:
    """Two late constraints keep both compile processes busy; free requests pass."""
    late = [{"regex": rf"(?:(?=.*{c}.{{9}})(?=.*x.{{9}})(?=.*y.{{9}}).){{1,30}}"} for c in "abcd"]
    answers: list[int] = []

    def ask(params: dict[str, Any]) -> None:
        with client_of(server) as client:
            answers.append(generate(client, **params).status_code)

    threads = [threading.Thread(target=ask, args=(params,)) for params in late]
    for thread in threads:
        thread.start()
    with client_of(server) as http:
        for _ in range(5):
            assert generate(http).status_code == 200
    for thread in threads:
        thread.join()
    assert answers == [400] * 4


def test_a_dead_end_ends_with_the_text_so_far(http: Client) -> None:
    found = generate(http, regex="(abc)+", stop_token_ids=[], min_new_tokens=0, max_new_tokens=6)
    assert found.json()["meta_info"]["finish_reason"]["type"] == "length"
    free = http.post("/v1/completions", json={
        "prompt": "x", "max_tokens": 8, "choices": ["red", "blue"], "logit_bias": {}})  # fmt: skip
    assert free.json()["choices"][0]["text"] in ("red", "blue")


def test_streams_of_constrained_text(http: Client) -> None:
    params = {"regex": r'\{"a": [0-9]{2}, "é": "[a-z]{3}日本"\}', "max_new_tokens": 60}
    whole = generate(http, **params).json()
    assert whole["meta_info"]["finish_reason"]["type"] == "stop"
    json.loads(whole["text"])
    body = {"text": "The capital", "stream": True, "sampling_params": {"temperature": 0, **params}}
    with http.stream("POST", "/generate", json=body) as reply:
        lines = [line for line in reply.iter_lines() if line.startswith("data: {")]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert events[-1]["text"] == whole["text"]
    assert all(b["text"].startswith(a["text"]) for a, b in itertools.pairwise(events))
    assert events[-1]["meta_info"]["forced_tokens"] == whole["meta_info"]["forced_tokens"] > 0


def test_a_refusal_comes_before_the_stream(http: Client) -> None:
    body = {"text": "x", "stream": True, "sampling_params": {"regex": "(a"}}
    reply = http.post("/generate", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "regex"
