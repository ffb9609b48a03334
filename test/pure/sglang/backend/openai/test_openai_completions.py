"""Typed values and select of completion models, which nothing but stops and a bias can hold."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
import sglang as sgl
from helpers.fake_openai import Body, FakeOpenAI
from helpers.word_tokenizer import WordTokenizer
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sglang import errors
from sglang.backend.base import Prompt
from sglang.backend.openai.api_exchange import OpenAIService
from sglang.backend.openai.selection import by_bias
from sglang.backend.openai.token_ids import MAX_BIAS, TokenIds
from sglang.backend.output_constraint import Dtype
from sglang.ir.choices import greedy_token_selection, token_length_normalized


@sgl.function
def ask(s, dtype, retries=0):
    s += "The answer: " + sgl.gen("x", dtype=dtype, max_retries=retries, stop="END") + "."


def answered(service: FakeOpenAI, dtype: Any, retries: int = 0, **options: Any) -> sgl.ProgramState:
    backend = sgl.OpenAI(
        "m", is_chat_model=False, base_url=service.url, max_retries=0, **options
    )  # fmt: skip
    try:
        return ask.run(dtype, retries, backend=backend, temperature=0)
    finally:
        backend.shutdown()


LEADING = [
    (int, "24.\nThe number of 7 hills is 7.", "24", 24),
    (int, " 24, then 25", "24", 24),
    (int, "\n\n-3 degrees, 4 tomorrow", "-3", -3),
    (float, "2.5.\nThe other is 7.", "2.5.", 2.5),
    (bool, "True\nQ: Is it False?", "True", True),
]


@pytest.mark.parametrize(("dtype", "reply", "text", "value"), LEADING)
def test_the_leading_value_is_taken(dtype: Any, reply: str, text: str, value: Any) -> None:
    with FakeOpenAI(reply) as service:
        state = answered(service, dtype)
    assert state.value("x") == value
    assert state.text() == f"The answer: {state['x']}."
    assert state["x"].strip() in (text, text.rstrip("."))
    assert len(service.bodies) == 1


@pytest.mark.parametrize("reply", ["2024-05-01", "24.5 m", "3rd", "1,000"])
def test_the_beginning_of_something_longer_is_no_value(reply: str) -> None:
    refused = pytest.raises(sgl.InvalidOutput, match="is not an integer in digits")
    with FakeOpenAI(reply) as service, refused:
        answered(service, int)


def test_a_chat_model_has_no_leading_value() -> None:
    """A chat answer may begin with the number of a list's item."""
    reply = "1. The answer is 42"
    refused = pytest.raises(sgl.InvalidOutput, match="is not an integer in digits")
    with FakeOpenAI(reply) as service, refused:
        ask.run(int, 0, backend=sgl.OpenAI("gpt-4o", base_url=service.url))


def test_a_text_is_begun_and_ended_by_quotes() -> None:
    with FakeOpenAI('Paris",\n "population": "2 million"') as service:
        state = answered(service, str)
    assert (state["x"], state.value("x")) == ('"Paris"', "Paris")
    (body,) = service.bodies
    assert (body["prompt"], body["stop"]) == ('The answer: "', ['"'])
    assert "logit_bias" not in body


def test_a_text_whose_server_takes_no_stop() -> None:
    with FakeOpenAI() as service:
        reply = {"text": 'Paris",\n "population": "2 million"', "index": 0, "finish_reason": "stop"}
        service._choice = lambda *_: reply  # type: ignore[method-assign]
        service._counted = lambda *_: {}  # type: ignore[method-assign]
        assert answered(service, str).value("x") == "Paris"


def test_a_text_that_is_cut_has_no_closing_quote() -> None:
    refused = pytest.raises(sgl.InvalidOutput, match="stopped at max_tokens=2 and is not valid")
    with FakeOpenAI("a b c d") as service, refused:
        backend = sgl.OpenAI("m", is_chat_model=False, base_url=service.url)
        ask.run(str, 0, backend=backend, max_tokens=2)


def test_asking_again_goes_on_after_the_note() -> None:
    with FakeOpenAI(["many", "12 of them"]) as service:
        state = answered(service, int, retries=1)
    assert state.value("x") == 12
    assert "That is not valid: 'many' is not an integer" in service.bodies[1]["prompt"]


def test_a_known_tokenizer_makes_a_number_likely() -> None:
    tokenizer = WordTokenizer()
    with FakeOpenAI("24") as service:
        assert answered(service, int, tokenizer=tokenizer).value("x") == 24
        ask.bind(dtype=int).run(
            backend=sgl.OpenAI("m", is_chat_model=False, base_url=service.url, tokenizer=tokenizer),
            logit_bias={5: 1.0},
        )
    body, own = service.bodies
    bias = {tokenizer.decode([int(token)]): value for token, value in body["logit_bias"].items()}
    assert set(bias.values()) == {100.0}
    assert len(bias) == MAX_BIAS
    assert {"<end>", " ", "-", "7", "42", "007"} <= bias.keys()
    assert all(text.isdigit() for text in bias.keys() - {"<end>", " ", "-", "\n"})
    assert body["max_tokens"] == 24
    assert own["logit_bias"] == {"5": 1.0}


def test_a_tokenizer_that_is_given_is_the_one_used() -> None:
    assert TokenIds("gpt-3.5-turbo-instruct", None, official=False).get() is None
    assert TokenIds("m", None, official=False).integers() == {}
    assert TokenIds("m", given := WordTokenizer(), official=True).get() is given


# select


def preferring(tokenizer: WordTokenizer, *texts: str) -> Callable[[Body], str]:
    """A script: of the tokens biased for, the one whose text comes first in ``texts``."""

    def reply(body: Body) -> str:
        allowed = [tokenizer.decode([int(token)]) for token in body["logit_bias"]]
        taken = next(text for text in texts if text in allowed)
        return "" if taken == "<end>" else taken

    return reply


def chosen(
    service: FakeOpenAI, tokenizer: Any, options: list[str], prompt: str = "It is",
    method: Any = token_length_normalized, loop: bool = False,
) -> sgl.choices.Decision:  # fmt: skip
    backend = sgl.OpenAI(
        "m", is_chat_model=False, base_url=service.url, tokenizer=tokenizer, max_retries=0
    )
    try:
        if loop:
            return asyncio.run(backend.achoose(Prompt(prompt), options, method))
        return backend.choose(Prompt(prompt), options, method)
    finally:
        backend.shutdown()


@pytest.mark.parametrize("loop", [False, True])
def test_select_by_bias_where_echo_is_refused(loop: bool) -> None:
    tokenizer = WordTokenizer()
    with FakeOpenAI(preferring(tokenizer, " red", " wine"), echo=False) as service:
        options = [" red wine", " red rose", " white wine"]
        decision = chosen(service, tokenizer, options, loop=loop)
    assert decision.text == " red wine"
    assert decision.meta["decided_by"] == "logit bias"
    echo, first, second = service.bodies
    assert echo["echo"] is True
    assert first["prompt"] == tokenizer.encode("It is")
    assert second["prompt"] == tokenizer.encode("It is red")
    assert first["max_tokens"] == 1
    assert decision.meta["usage"]["prompt_tokens"] == 2 + 3
    asked = [{tokenizer.decode([int(i)]) for i in body["logit_bias"]} for body in (first, second)]
    assert asked == [{" red", " white"}, {" wine", " rose"}]


@pytest.mark.parametrize(("prefers", "text"), [("<end>", " red"), (" wine", " red wine")])
def test_an_option_that_begins_another(prefers: str, text: str) -> None:
    tokenizer = WordTokenizer()
    with FakeOpenAI(preferring(tokenizer, prefers), echo=False) as service:
        assert chosen(service, tokenizer, [" red", " red wine"]).text == text
    assert len(service.bodies) == 2


def test_without_an_end_token_the_longer_option_is_taken() -> None:
    tokenizer = WordTokenizer()
    tokenizer.eot_token = None  # type: ignore[assignment]
    with FakeOpenAI("unused", echo=False) as service:
        assert chosen(service, tokenizer, [" red", " red wine"]).text == " red wine"
        assert len(service.bodies) == 1  # the refused one: there was nothing to decide


def test_an_option_that_merges_with_the_prompt() -> None:
    tokenizer = WordTokenizer()
    with FakeOpenAI(preferring(tokenizer, " itself"), echo=False) as service:
        assert chosen(service, tokenizer, ["self", " red"], "Is it").text == "self"
    assert service.bodies[1]["prompt"] == tokenizer.encode("Is")


def test_a_refusal_is_remembered() -> None:
    tokenizer = WordTokenizer()
    with FakeOpenAI(preferring(tokenizer, " a"), echo=False) as service:
        backend = sgl.OpenAI("m", is_chat_model=False, base_url=service.url, tokenizer=tokenizer)
        for _ in range(3):
            assert backend.choose(Prompt("x"), [" a", " b"], token_length_normalized).text == " a"
        backend.shutdown()
    assert [body.get("echo", False) for body in service.bodies] == [True, False, False, False]


def test_a_service_that_ignores_the_bias_is_an_error() -> None:
    ignored = pytest.raises(errors.BackendError, match=r"'hello'.* not one of .*\[' a', ' b'\]")
    with FakeOpenAI("hello", echo=False) as service, ignored:
        chosen(service, WordTokenizer(), [" a", " b"])


@pytest.mark.parametrize(
    ("tokenizer", "method"), [(None, token_length_normalized), (True, greedy_token_selection)]
)
def test_without_tokens_or_scores_select_is_refused(tokenizer: Any, method: Any) -> None:
    lacks = pytest.raises(errors.Unsupported, match=r"no echo with logprobs.*OpenAI\(tokenizer=\)")
    with FakeOpenAI(echo=False) as service, lacks:
        chosen(service, tokenizer and WordTokenizer(), [" a", " b"], method=method)


def test_options_beyond_the_bias_are_refused() -> None:
    options = [f" {chr(97 + i // 26)}{chr(97 + i % 26)}x" for i in range(MAX_BIAS + 1)]
    many = pytest.raises(errors.Unsupported, match="301 different tokens and OpenAI takes a bias")
    with FakeOpenAI(echo=False) as service, many:
        chosen(service, WordTokenizer(), options)


@settings(max_examples=200)
@given(st.integers(-(10**19), 10**19), st.text("a1., \n-:/+", max_size=6))
def test_a_leading_integer_is_taken_whatever_follows(number: int, rest: str) -> None:
    assume(not re.match(r"\w|[.,:/+-]\d", rest))  # then it is part of something longer
    assert int(Dtype("int").extract(f" {number}{rest}", continues=True)) == number


class Greedy:
    """A model that at each step writes the piece that comes first in ``order``."""

    def __init__(self, tokenizer: WordTokenizer, order: list[str]) -> None:
        self.tokenizer, self.order = tokenizer, order

    def reply(self, body: Body) -> Body:
        allowed = [self.tokenizer.decode([int(token)]) for token in body["logit_bias"]]
        text = min(allowed, key=self.order.index)
        return {"choices": [{"text": "" if text == "<end>" else text}]}


PIECES = [" a", " b", " c"]


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4), min_size=1, max_size=6),
    st.permutations([*PIECES, "<end>"]),
)
def test_select_by_bias_is_greedy_among_the_options(
    rows: list[list[str]], order: list[str]
) -> None:
    tokenizer = WordTokenizer()
    options = ["".join(row) for row in rows]
    steps = by_bias(OpenAIService("OpenAI", "m"), tokenizer, Prompt("It is"), options)
    model, reply, requests = Greedy(tokenizer, order), None, 0
    while True:
        try:
            _, body = steps.send(reply)
        except StopIteration as end:
            decision = end.value
            break
        reply, requests = model.reply(body), requests + 1
    ranks = [[order.index(piece) for piece in [*row, "<end>"]] for row in rows]
    assert decision.text == "".join(rows[ranks.index(min(ranks))])
    assert requests <= max(map(len, rows))
