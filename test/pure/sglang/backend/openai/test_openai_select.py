"""select through OpenAI's APIs: by structured output, and by scoring echoed prompts."""

from __future__ import annotations

import asyncio

import pytest
import sglang as sgl
from helpers.fake_openai import FakeOpenAI, Refuse
from sglang import errors
from sglang.backend.base import Prompt
from sglang.backend.openai.openai_backend import OpenAI
from sglang.ir.choices import (
    ChoicesMethod,
    Decision,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)

PROMPT = Prompt("Is it", ({"role": "user", "content": "Is it"},))
SCORES = {"yes": -0.5, "no": -0.25, "never": -3.0}


def decided(
    service: FakeOpenAI, api: str, options: list[str],
    method: ChoicesMethod = token_length_normalized, loop: bool = False,
) -> Decision:  # fmt: skip
    backend = OpenAI("m", api=api, base_url=service.url, max_retries=0)
    try:
        if loop:
            return asyncio.run(backend.achoose(PROMPT, options, method))
        return backend.choose(PROMPT, options, method)
    finally:
        assert backend.token_usage.prompt_tokens == service.prompt_tokens
        backend.shutdown()


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_chat_model_may_reply_with_nothing_but_an_option(api: str, loop: bool) -> None:
    with FakeOpenAI('{"value": " no"}') as service:
        decision = decided(service, api, [" yes", " no", " no"], loop=loop)
    assert decision.text == " no"
    assert decision.meta["decided_by"] == "structured output"
    counts = {"prompt_tokens": 2, "cached_tokens": 1, "completion_tokens": 3}
    assert decision.meta["usage"] == counts
    (body,) = service.bodies
    form = body["text"]["format"] if api == "responses" else body["response_format"]["json_schema"]
    value = form["schema"]["properties"]["value"]
    assert value == {"type": "string", "enum": [" yes", " no"]}
    assert body["temperature"] == 0.0
    assert not {"max_tokens", "max_output_tokens"} & body.keys()


@pytest.mark.parametrize("reply", ['{"value": "perhaps"}', "perhaps", '{"value": ["yes"]}'])
def test_a_reply_that_is_no_option_is_an_error(reply: str) -> None:
    no_option = pytest.raises(errors.BackendError, match="which is none of")
    with FakeOpenAI(reply) as service, no_option:
        OpenAI("m", base_url=service.url).choose(PROMPT, ["yes", "no"], token_length_normalized)


def test_a_chat_model_has_no_other_method() -> None:
    lacks = pytest.raises(errors.Unsupported, match="choices_method=greedy_token_selection needs")
    with FakeOpenAI() as service, lacks:
        decided(service, "chat", ["a", "b"], greedy_token_selection)
    assert service.bodies == []


@pytest.mark.parametrize("loop", [False, True])
def test_a_completion_model_scores_the_options(loop: bool) -> None:
    with FakeOpenAI("", scores=SCORES) as service:
        decision = decided(service, "completions", [" yes", " no", " never ever"], loop=loop)
    assert decision.text == " no"
    assert decision.meta["normalized_prompt_logprobs"] == [-0.5, -0.25, -2.0]
    assert decision.meta["input_token_logprobs"][0] == [[-0.5, " yes", " yes"]]
    assert decision.meta["usage"]["prompt_tokens"] == service.prompt_tokens
    (body,) = service.bodies
    texts = ["Is it", "Is it yes", "Is it no", "Is it never ever"]
    assert body == {
        "model": "m", "prompt": texts, "max_tokens": 0, "temperature": 0.0, "logprobs": 1,
        "echo": True,
    }  # fmt: skip


def test_options_are_scored_where_any_leaves_the_prompts_tokens() -> None:
    with FakeOpenAI("", scores={"itself": -0.125, "it": -4.0, "yes": -0.5}) as service:
        decision = decided(service, "completions", [" yes", "self"])
    assert [[entry[1] for entry in row] for row in decision.meta["input_token_logprobs"]] == [
        [" it", " yes"],
        [" itself"],
    ]
    assert decision.text == "self"


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("method", [greedy_token_selection, unconditional_likelihood_normalized])
def test_the_other_methods(method: ChoicesMethod, loop: bool) -> None:
    with FakeOpenAI("", scores=SCORES) as service:
        decision = decided(service, "completions", [" yes", " no"], method, loop)
    assert decision.text == " no"
    if method.unconditional:
        assert service.bodies[1]["prompt"] == [" yes", " no"]
        assert decision.meta["usage"]["prompt_tokens"] == service.prompt_tokens
        assert decision.meta["unconditional_token_logprobs"][0] == [[None, " yes", " yes"]]


def test_without_a_prompt_the_options_alone_are_scored() -> None:
    with FakeOpenAI("", scores={"b": -0.5}) as service:
        backend = OpenAI("m", api="completions", base_url=service.url)
        decision = backend.choose(Prompt(""), ["x a", "x b"], token_length_normalized)
        backend.shutdown()
    assert decision.text == "x b"
    assert service.bodies[0]["prompt"] == ["x a", "x b"]


@pytest.mark.parametrize("loop", [False, True])
def test_a_server_that_does_not_echo_cannot_select(loop: bool) -> None:
    lacks = pytest.raises(errors.Unsupported, match=r"has no echo with logprobs.*use a chat model")
    with FakeOpenAI(echo=False) as service, lacks:
        decided(service, "completions", ["a", "b"], loop=loop)
    with FakeOpenAI() as service:
        service._choice = lambda body, reply, prompt, index: {"text": "", "index": index}  # type: ignore
        service._counted = lambda body, choices: {}  # type: ignore[method-assign]
        with lacks:
            decided(service, "completions", ["a", "b"], loop=loop)
    refused = pytest.raises(errors.BadRequest, match="no credit")
    with FakeOpenAI(Refuse(400, "no credit")) as service, refused:
        decided(service, "completions", ["a", "b"], loop=loop)
    with FakeOpenAI(Refuse(400, "no credit")) as service, refused:
        backend = OpenAI("m", api="completions", base_url=service.url)
        backend.choose(Prompt("no echo, no logprobs"), ["a", "b"], token_length_normalized)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_reasoning_model_selects(api: str) -> None:
    """Reasoning models refuse a temperature."""
    with FakeOpenAI('{"value": "b"}') as service:
        backend = OpenAI("o3", api=api, base_url=service.url)
        assert backend.choose(PROMPT, ["a", "b"], token_length_normalized).text == "b"
        backend.shutdown()


@sgl.function
def program(s):
    s += sgl.user("Is it?")
    s += sgl.assistant(sgl.select("answer", ["yes", "no"]))


def test_a_program_selects() -> None:
    with FakeOpenAI('{"value": "yes"}') as service:
        backend = OpenAI("gpt-4o", base_url=service.url)
        state = program.run(backend=backend)
        assert state["answer"] == "yes"
        assert state.messages()[-1]["content"] == "yes"
        backend.shutdown()
