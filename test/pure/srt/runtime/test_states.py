"""``return_hidden_states``: the final hidden state of every token of a completion."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.desk import Desk
from helpers.fake_worker import hidden_state as state_after
from helpers.http_server import Served, is_error, serve_text
from helpers.text_worker import hidden_state
from sglang.srt.core.messages import EVERY, Embed
from sglang.srt.runtime import hidden_states as module

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


@pytest.mark.parametrize("chunk", [1, 3, 2048])
@pytest.mark.parametrize("depth", [1, 2])
def test_every_state_in_order(chunk: int, depth: int) -> None:
    """However the prompt is cut, and whatever the cache has of it."""
    desk = Desk(chunked_prefill_size=chunk, depth=depth)
    wanted = [value for i in range(len(PROMPT)) for value in state_after(PROMPT[: i + 1])]
    for _ in range(2):
        request = desk.ask(PROMPT, Embed(EVERY))
        desk.run()
        found = array("f")
        found.frombytes(desk.done(request).embedding)
        assert list(found) == pytest.approx(wanted)
    desk.finish()


def test_every_state_after_a_retraction() -> None:
    desk = Desk(chunked_prefill_size=3)
    request = desk.ask(PROMPT, Embed(EVERY))
    desk.step()
    desk.engine.planner.retract([r for r in desk.engine.running.values() if r.context.active])
    desk.engine.store.flush()
    desk.run()
    found = array("f")
    found.frombytes(desk.done(request).embedding)
    wanted = [value for i in range(len(PROMPT)) for value in state_after(PROMPT[: i + 1])]
    assert list(found) == pytest.approx(wanted)
    desk.finish()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as server:
        yield server


def states(served: Served, prompt: list[int], output: list[int]) -> list[Any]:
    """Hidden states as the worker defines them."""
    tokens, vocab = prompt + output[:-1], served.tokenizer.vocab_size
    found = [hidden_state(tokens[: i + 1], vocab) for i in range(len(tokens))]
    return [found[: len(prompt)], *found[len(prompt) :]]


@pytest.mark.parametrize("stream", [False, True])
def test_states_of_a_completion(served: Served, stream: bool) -> None:
    body = {"text": "the lazy dog", "return_hidden_states": True, "stream": stream,
            "sampling_params": {"max_new_tokens": 5, "temperature": 0}}  # fmt: skip
    reply = served.client.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    events = re.findall(r"(?m)^data: (\{.*)$", reply.text) if stream else [reply.text]
    *others, last = [json.loads(event) for event in events]
    assert all("hidden_states" not in other["meta_info"] for other in others)
    prompt = list(served.tokenizer.encode("the lazy dog"))
    found = last["meta_info"]["hidden_states"]
    assert found == states(served, prompt, last["output_ids"])
    assert len(found) == last["meta_info"]["completion_tokens"]
    served.client.idle()


def test_states_of_several_prompts_and_completions(served: Served) -> None:
    body = {"input_ids": [[5, 6, 7], [8, 9]], "return_hidden_states": [True, False],
            "sampling_params": {"max_new_tokens": 3, "n": 2, "seed": 1}}  # fmt: skip
    found = served.client.post("/generate", json=body).json()
    assert len(found) == 4
    for answer in found[:2]:
        wanted = states(served, [5, 6, 7], answer["output_ids"])
        assert answer["meta_info"]["hidden_states"] == wanted
    for answer in found[2:]:
        assert "hidden_states" not in answer["meta_info"]
    streamed = served.client.post("/generate", json={**body, "stream": True}).text
    events = [json.loads(event) for event in re.findall(r"(?m)^data: (\{.*)$", streamed)]
    ends = {event["index"]: event for event in events if event["meta_info"]["finish_reason"]}
    assert len(ends) == 4
    for index, answer in enumerate(found):
        assert ends[index]["output_ids"] == answer["output_ids"]
        wanted = answer["meta_info"].get("hidden_states")
        assert ends[index]["meta_info"].get("hidden_states") == wanted


def test_of_a_prompt_alone(served: Served) -> None:
    body = {"input_ids": [5, 6], "return_hidden_states": True,
            "sampling_params": {"max_new_tokens": 0}}  # fmt: skip
    found = served.client.post("/generate", json=body).json()
    assert found["meta_info"]["hidden_states"] == states(served, [5, 6], [])


def test_a_request_has_a_bound(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_NUMBERS", 40)
    body = {"input_ids": [5] * 6, "return_hidden_states": True,
            "sampling_params": {"max_new_tokens": 4}}  # fmt: skip
    assert served.client.post("/generate", json=body).status_code == 200
    body["sampling_params"] = {"max_new_tokens": 5}
    message = is_error(served.client.post("/generate", json=body), 400)["message"]
    assert "The hidden states of 11 tokens, 4 numbers each" in message
    assert "40 numbers, which are 10 tokens" in message


def test_what_does_not_go_with_it(served: Served) -> None:
    number = served.client.post("/open_session").json()
    generate = {"return_hidden_states": True}
    for path, body, told in (
        ("/generate", {**generate, "parts": ["a", ["b", "c"]]}, "does not go with parts"),
        ("/generate", {**generate, "text": "a", "session_params": {"id": number}},
         "without session_params"),
        ("/v1/embeddings", {"input": "a", "pooling": EVERY}, "must be one of last, mean"),
    ):  # fmt: skip
        assert told in is_error(served.client.post(path, json=body), 400)["message"]
