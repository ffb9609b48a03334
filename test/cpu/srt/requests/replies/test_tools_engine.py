"""Constraints and tools through OpenAI's client: the embedded model, and one with random weights,
of which nothing is right by luck."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
import sglang as sgl
from helpers.tiny_model import write_config
from helpers.toy_tokenizer import byte_level
from pydantic import BaseModel, Field

pytest.importorskip("torch")

SETTINGS: dict[str, Any] = {"device": "cpu", "threads": 1, "log_level": "warning"}


@pytest.fixture(scope="module", params=["embedded", "random"])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    settings: dict[str, Any] = {**SETTINGS, "max_total_tokens": 20000}
    if request.param == "random":
        directory = tmp_path_factory.mktemp("model")
        byte_level(directory)
        write_config(Path(directory), vocab_size=512)
        settings |= {"model_path": str(directory), "load_format": "dummy", "dtype": "float32",
                     "context_length": 2048}  # fmt: skip
    with sgl.Runtime(**settings) as runtime:
        yield openai.OpenAI(base_url=runtime.url + "/v1", api_key="none", max_retries=0)


WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
PLAN: dict[str, Any] = {
    "type": "object",
    "properties": {"steps": {"type": "array", "items": {"$ref": "#/$defs/step"}, "maxItems": 3}},
    "required": ["steps"],
    "additionalProperties": False,
    "$defs": {"step": {"type": "object", "properties": {"n": {"type": "boolean"}},
                       "required": ["n"], "additionalProperties": False}},
}  # fmt: skip
SCHEMAS = {"get_weather": WEATHER, "make_plan": PLAN}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": f"{name} a::=b",
                                      "parameters": schema}}
    for name, schema in SCHEMAS.items()
]  # fmt: skip
NAMED: Any = {"type": "function", "function": {"name": "make_plan"}}
SEEDS = range(int(os.environ.get("TOOL_CASES", "6")))


def ask(client: openai.OpenAI, seed: int, **fields: Any) -> Any:
    question = {"role": "user", "content": "What is the weather in Paris? Make a plan."}
    return client.chat.completions.create(
        model="m", messages=[question], seed=seed,
        **{"temperature": 1.0, "max_tokens": 700, **fields},
    )  # fmt: skip


def check(calls: list[tuple[str, str]]) -> None:
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


def read(stream: Any) -> tuple[str | None, list[tuple[str, str]], str]:
    """Text, calls and finish reason of a stream."""
    text, calls, finish = "", list[list[str]](), ""
    for chunk in stream:
        (choice,) = chunk.choices
        text += choice.delta.content or ""
        for delta in choice.delta.tool_calls or ():
            if delta.index == len(calls):
                assert delta.id
                calls.append([delta.function.name, ""])
            calls[delta.index][1] += delta.function.arguments or ""
        finish = choice.finish_reason or finish
    return text or None, [(name, arguments) for name, arguments in calls], finish


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_that_must_be_is_valid(client: openai.OpenAI, choice: Any) -> None:
    for seed in SEEDS:
        answer = ask(client, seed, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
        (reply,) = answer.choices
        assert reply.finish_reason == "tool_calls"
        assert reply.message.content is None
        (call,) = reply.message.tool_calls
        calls = [(call.function.name, call.function.arguments)]
        check(calls)
        if choice is NAMED:
            assert call.function.name == "make_plan"
        stream = ask(
            client, seed, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, stream=True
        )
        assert read(stream) == (None, calls, "tool_calls")


def test_several_calls(client: openai.OpenAI) -> None:
    most = 0
    for seed in SEEDS:
        text, calls, finish = read(
            ask(client, seed, tools=TOOLS, tool_choice="required", stream=True)
        )
        assert text is None
        if finish == "length":  # the last one is cut
            calls.pop()
        else:
            assert finish == "tool_calls"
            assert calls
        check(calls)
        most = max(most, len(calls))
    assert most >= 1


def test_a_reply_or_a_call(client: openai.OpenAI) -> None:
    """A reply with a response format is a call, or a text that fits the format."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for seed in SEEDS:
        (reply,) = ask(client, seed, tools=TOOLS, response_format=form).choices
        calls = reply.message.tool_calls or []
        if reply.finish_reason == "length":
            continue
        assert bool(calls) != bool(reply.message.content)
        check([(call.function.name, call.function.arguments) for call in calls])
        if not calls:
            jsonschema.validate(json.loads(reply.message.content), schema)


class Person(BaseModel):
    name: str = Field(max_length=10)
    age: int = Field(ge=0, le=150)
    mood: Literal["good", "bad"]


def test_parsed_answers(client: openai.OpenAI) -> None:
    for seed in SEEDS:
        answer = client.chat.completions.parse(
            model="m", messages=[{"role": "user", "content": "Nora is 34. As JSON:"}],
            response_format=Person, seed=seed, max_tokens=300,
        )  # fmt: skip
        assert isinstance(answer.choices[0].message.parsed, Person)


def test_other_constraints(client: openai.OpenAI) -> None:
    def text(**extra: Any) -> str:
        answer = client.completions.create(
            model="m", prompt="17 + 25 =", max_tokens=40, seed=1, extra_body=extra
        )
        assert answer.choices[0].finish_reason == "stop"
        return answer.choices[0].text

    assert re.fullmatch(r" [0-9]{1,3}(\.[0-9])?", text(regex=r" [0-9]{1,3}(\.[0-9])?"))
    assert text(ebnf='root ::= "yes" | "no"') in ("yes", "no")
    assert text(choices=["alpha", "alphabet", "beta"]) in ("alpha", "alphabet", "beta")
    assert text(guided_choice=["Rom"], choices_scoring="whole") == "Rom"
    assert json.loads(text(json_schema={"type": "array", "items": {"type": "null"},
                                        "maxItems": 2})) in ([], [None], [None] * 2)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"extra_body": {"regex": "(a"}}, "regex"),
        ({"extra_body": {"ebnf": "root ::= x"}}, "ebnf"),
        ({"extra_body": {"json_schema": {"type": "strng"}}}, "json_schema"),
        ({"extra_body": {"regex": "a", "ebnf": "b"}}, "regex and ebnf exclude one another"),
    ],
)
def test_what_cannot_be_is_a_400(client: openai.OpenAI, fields: Any, words: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, 0, **fields)
    assert words in str(caught.value)


def test_a_tool_that_cannot_be_enforced_is_named(client: openai.OpenAI) -> None:
    lost = {"type": "object", "properties": {"a": {"$ref": "#/$defs/lost"}}, "required": ["a"]}
    bad: Any = {"type": "function", "function": {"name": "f", "parameters": lost}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, 0, tools=[*TOOLS, bad], tool_choice="required", stream=stream)
        assert "tools[2].function.parameters" in str(caught.value)
    answer = ask(client, 0, tools=TOOLS, max_tokens=5)  # the engine lives
    assert answer.usage.completion_tokens <= 5


def test_the_embedded_model_calls_a_tool_and_uses_its_result() -> None:
    """The model calls the tool as its chat template teaches, without being forced to."""
    parameters = {"type": "object", "properties": {"expression": {"type": "string"}}}
    calc: Any = {"type": "function", "function": {"name": "calc", "parameters": parameters}}
    talk: list[Any] = [{"role": "user", "content": "What is 371 * 18?"}]
    with sgl.Runtime(**SETTINGS, max_total_tokens=4000) as runtime:
        client = openai.OpenAI(base_url=runtime.url + "/v1", api_key="none", max_retries=0)

        def said() -> Any:
            answer = client.chat.completions.create(
                model="m", messages=talk, tools=[calc], temperature=0, max_tokens=40
            )
            return answer.choices[0].message

        (call,) = said().tool_calls
        assert json.loads(call.function.arguments) == {"expression": "371*18"}
        talk.append({"role": "assistant", "content": None, "tool_calls": [call.model_dump()]})
        talk.append({"role": "tool", "tool_call_id": call.id, "content": str(371 * 18)})
        assert said().content == "6678"
        # A call of a strict tool must fit the tool's schema.
        del talk[1:]
        only = {"type": "string", "enum": ["18*371"]}
        calc["function"] |= {"strict": True, "parameters": {
            "type": "object", "properties": {"expression": only}, "required": ["expression"],
            "additionalProperties": False,
        }}  # fmt: skip
        (call,) = said().tool_calls
        assert json.loads(call.function.arguments) == {"expression": "18*371"}
