"""Programs on a served model: the embedded one, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.http_server import Client, is_error
from helpers.launched import best_model, client_of, launched
from helpers.program_graphs import Plain, branch, chain, fork, gen, graph, map_reduce, stream, text

from benchmark.applications.sent_programs import Chain, MapReduce, SentProgram


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    model = best_model(tmp_path_factory.mktemp("model"))
    with launched(model) as server, client_of(server) as found:
        yield found


def followed(client: Client, body: Plain, **more: Any) -> tuple[Plain, dict[int, Plain]]:
    """The ids of a submission, and its last events by step."""
    reply = client.post("/v1/submit", json={"graph": body, "stream": True, **more})
    assert reply.status_code == 200, reply.text
    lines = [line[6:] for line in reply.text.split("\n\n") if line.startswith("data: {")]
    ids, *events = map(json.loads, lines)
    assert events[-1] == {"event": "end", "state": "done"}, events
    return ids, {event["step"]: event for event in events if event["event"] == "done"}


def got(client: Client, ids: Plain, name: str) -> Any:
    query = {"session_id": ids["session_id"], "semantic_var_id": ids["variables"][name]}
    return client.post("/v1/get", json={**query, "criteria": "latency"}).json()["value"]


def test_a_chain_is_generate_after_generate(client: Client) -> None:
    _, done = followed(client, chain(4, 12), criteria={"x3": "latency"})
    prompt = ""
    for i in range(4):
        prompt += f" part {i}: "
        settings = {"max_new_tokens": 12, "temperature": 0}
        theirs = client.post("/generate", json={"text": prompt, "sampling_params": settings}).json()
        ours = done[2 * i + 1]["answers"][0]
        assert (ours["text"], ours["output_ids"]) == (theirs["text"], theirs["output_ids"])
        prompt += theirs["text"]


@pytest.mark.parametrize("program", [Chain(1, 3, 6), MapReduce(2, 3, 60, 6)])
def test_the_benchmarks_programs_give_one_text(client: Client, program: SentProgram) -> None:
    assert program.by_client(client) == program.by_server(client)


def test_reasoning_is_split_off(client: Client) -> None:
    regex = "<think>[a-c]{3}</think> [x-z]{2}"
    settings = {"max_new_tokens": 40, "temperature": 0, "regex": regex}
    step = {"op": "gen", "name": "x", "body": {"sampling_params": settings}, "reasoning": "qwen3"}
    ids, done = followed(client, graph(stream(0, text("think "), step, gen("y"))))
    whole = done[1]["answers"][0]["text"]
    values = {name: got(client, ids, name) for name in ("x", "x_reasoning_content")}
    assert whole == f"<think>{values['x_reasoning_content']}</think> {values['x']}"
    assert done[2]["prompt"]["chars"] == len("think ") + len(values["x"])


def test_a_generated_value_with_eight_consumers_is_computed_once(client: Client) -> None:
    """The consumers' prompts begin with the same text, the generated value in it: all but the
    first take its KV from the cache."""
    readers = [branch(i + 1, 2, i, text(f" reader {i}:"), gen("r", 2)) for i in range(8)]
    words = {"max_new_tokens": 40, "temperature": 0, "regex": "[a-z ]{30}"}
    shared = {"op": "gen", "name": "x", "body": {"sampling_params": words}}
    body = graph(stream(0, text("shared 0123456789 " * 8), shared, fork(*range(1, 9))), *readers)
    _, found = followed(client, body)
    whole = found[1]["answers"][0]["meta_info"]
    size = whole["prompt_tokens"] + whole["completion_tokens"] - 2
    metas = [found[(i + 1) * 1000 + 1]["answers"][0]["meta_info"] for i in range(8)]
    assert all(meta["cached_tokens"] >= size - 8 for meta in metas)


def test_the_papers_program_in_two_submits(client: Client) -> None:
    session = client.post("/v1/session").json()["session_id"]
    code = client.post("/v1/submit", json={
        "session_id": session, "prompt": "Write python code of {{task}}. Code: {{code}}",
        "placeholders": [
            {"name": "task", "in_out": False, "value": "a snake game"},
            {"name": "code", "in_out": True, "sampling_params": {"max_new_tokens": 16}}],
    }).json()  # fmt: skip
    test = client.post("/v1/submit", json={
        "session_id": session, "prompt": "Write a test for {{task}}. Code: {{code}}. {{test}}",
        "placeholders": [
            {"name": "task", "in_out": False, "value": "a snake game"},
            {"name": "code", "in_out": False, "semantic_var_id": code["variables"]["code"]},
            {"name": "test", "in_out": True, "sampling_params": {"max_new_tokens": 16}}],
    }).json()  # fmt: skip
    assert got(client, test, "test")
    assert got(client, code, "code")
    assert client.delete(f"/v1/session/{session}").status_code == 200
    query = {"session_id": session, "semantic_var_id": test["variables"]["test"]}
    is_error(client.post("/v1/get", json=query), 404)


def test_nothing_is_left_behind_by_clients_that_leave(client: Client) -> None:
    for _ in range(8):
        ids = client.post("/v1/submit", json={"graph": map_reduce(4, 64)}).json()
        client.post("/v1/cancel", json={k: ids[k] for k in ("session_id", "submission_id")})
    client.idle()
