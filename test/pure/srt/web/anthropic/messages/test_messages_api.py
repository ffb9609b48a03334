"""/v1/messages through Anthropic's own client, over completions that are scripted."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from helpers.scripted_server import Paced, serve_scripted
from helpers.toy_tokenizer import byte_level
from pydantic import BaseModel, TypeAdapter
from sglang.srt.config import Config
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Finish, Output
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer

EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
HI: dict[str, Any] = {"role": "user", "content": "Hi"}
ASSISTANT = "<|im_start|>assistant\n"
# Shows what it is given: a message a line, then the variables.
SHOWING = (
    "{% for message in messages %}{{ message | tojson }}\n{% endfor %}"
    "{{ [tools | default([]), enable_thinking, thinking, reasoning_effort | default(none)]"
    " | tojson }}"
    "{# tool_calls #}"
)


class Turns(Paced):
    """Answers with ``texts``, one after the other; five tokens of every prompt were cached."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self.texts: list[str] = []

    async def run(self, request: CompletionRequest) -> AsyncGenerator[Output, None]:
        self.text = self.texts.pop(0) if self.texts else "Hello there."
        async with contextlib.aclosing(super().run(request)) as outputs:
            async for output in outputs:
                output.stats.cached_tokens = 5 if output.finish else 0
                yield output


@pytest.fixture
def model(tmp_path: Path) -> Turns:
    return Turns(Tokenizer(byte_level(tmp_path)))


@pytest.fixture
def showing(tmp_path: Path) -> Iterator[tuple[anthropic.Anthropic, Turns]]:
    """A client of a model whose template is ``SHOWING``."""
    directory = byte_level(tmp_path)
    (directory / "chat_template.jinja").write_text(SHOWING, encoding="utf-8")
    model = Turns(Tokenizer(directory))
    with (
        serve_scripted(model) as url,
        anthropic.Anthropic(base_url=url, api_key="any", max_retries=0, timeout=60) as client,
    ):
        yield client, model


def shown(model: Turns) -> list[Any]:
    """The messages of the last prompt, and the variables."""
    return [json.loads(line) for line in model.prompts[-1].splitlines()]


@pytest.fixture
def client(model: Turns) -> Iterator[anthropic.Anthropic]:
    with (
        serve_scripted(model) as url,
        anthropic.Anthropic(base_url=url, api_key="any", max_retries=0, timeout=60) as client,
    ):
        yield client


def address(client: anthropic.Anthropic) -> str:
    return str(client.base_url).rstrip("/") + "/v1/messages"


def create(client: anthropic.Anthropic, **fields: Any) -> anthropic.types.Message:
    body: dict[str, Any] = {"model": "m", "max_tokens": 4000, "messages": [HI], **fields}
    extra = {name: body.pop(name) for name in [*body] if name not in KNOWN}
    return client.messages.create(**body, extra_body=extra)


KNOWN = {"model", "max_tokens", "messages", "system", "tools", "tool_choice", "stop_sequences",
         "thinking", "metadata", "service_tier",
         "output_config"}  # fmt: skip


def events_of(client: anthropic.Anthropic, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream as they are sent, each validated by the client's own types."""
    body = {"model": "m", "max_tokens": 4000, "messages": [HI], "stream": True, **fields}
    reply = httpx.post(address(client), json=body, timeout=60)
    assert reply.headers["content-type"].startswith("text/event-stream")
    found = []
    for frame in reply.text.strip().split("\n\n"):
        parts = re.fullmatch(r"event: (\w+)\ndata: (.+)", frame)
        assert parts is not None, frame
        name, data = parts.groups()
        event = json.loads(data)
        assert event["type"] == name
        if name == "error":
            ErrorResponse.model_validate(event)
        elif name != "ping":
            EVENTS.validate_python(event)
        found.append(event)
    return found


# -- replies --------------------------------------------------------------------------------------


def test_a_message(client: anthropic.Anthropic, model: Turns) -> None:
    message = create(client, system="Be kind.", metadata={"user_id": "u"}, service_tier="auto")
    assert model.prompts[-1] == (
        f"<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n{ASSISTANT}"
    )
    (block,) = message.content
    assert block.type == "text"
    assert block.text == "Hello there."
    assert (message.type, message.role, message.model) == ("message", "assistant", "m")
    assert re.fullmatch(r"msg_[0-9a-f]{24}", message.id)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert usage.input_tokens == len(model.requests[-1].prompt) - 5
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (5, 0)
    assert usage.output_tokens == len("Hello there.")


def test_sampling_reaches_the_engine(client: anthropic.Anthropic, model: Turns) -> None:
    create(client, temperature=0.5, stop_sequences=["\n\n", "END"], max_tokens=7, top_k=3,
           top_p=0.9, rid="mine", priority=2, cache_salt="s", seed=4, min_p=0.1)  # fmt: skip
    request = model.requests[-1]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 3)
    assert (sampling.stop, sampling.max_new_tokens, sampling.seed) == (("\n\n", "END"), 7, 4)
    assert (request.rid, request.priority, request.namespace, sampling.min_p) == (
        "mine",
        2,
        "s",
        0.1,
    )


@pytest.mark.parametrize(
    ("finish", "reason", "sequence"),
    [
        (Finish("stop", 2), "end_turn", None),
        (Finish("stop", "END"), "stop_sequence", "END"),
        (Finish("length"), "max_tokens", None),
        (Finish("abort"), "refusal", None),
        (Finish("error", message="dead end"), "refusal", None),
    ],
)
def test_why_it_stopped(
    client: anthropic.Anthropic, model: Turns, finish: Finish, reason: str, sequence: str | None
) -> None:
    model.finish, limit = finish, len("Hello there.")
    message = create(client, max_tokens=limit)
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
    (last,) = (
        event for event in events_of(client, max_tokens=limit) if event["type"] == "message_delta"
    )
    assert (last["delta"]["stop_reason"], last["delta"]["stop_sequence"]) == (reason, sequence)
    if reason == "refusal":
        assert message.stop_details is not None
        assert "dead end" in str(message.stop_details) or "abort" in str(message.stop_details)


def test_a_prompt_too_long_is_told_in_their_words(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: The prompt has"):
        create(client, messages=[{"role": "user", "content": "x " * 9000}])
    counted = client.messages.count_tokens(
        model="m", messages=[{"role": "user", "content": "x " * 9000}]
    )
    assert counted.input_tokens > 9000


def test_a_full_context_is_told_from_max_tokens(client: anthropic.Anthropic, model: Turns) -> None:
    model.finish = Finish("length")
    assert create(client, max_tokens=5000).stop_reason == "model_context_window_exceeded"


def test_no_tokens_fill_the_cache(client: anthropic.Anthropic, model: Turns) -> None:
    create(client, max_tokens=0)
    assert model.requests[-1].sampling.max_new_tokens == 0


def test_a_stream(client: anthropic.Anthropic, model: Turns) -> None:
    kinds = [event["type"] for event in events_of(client)]
    assert kinds == ["message_start", "ping", "content_block_start", "content_block_delta",
                     "content_block_delta", "content_block_delta", "content_block_stop",
                     "message_delta", "message_stop"]  # fmt: skip
    with client.messages.stream(model="m", max_tokens=99, messages=[HI]) as stream:
        assert "".join(stream.text_stream) == "Hello there."
        streamed = stream.get_final_message()
    whole = create(client)
    assert streamed.content[0].to_dict() == whole.content[0].to_dict()
    assert streamed.usage == whole.usage
    assert streamed.stop_reason == whole.stop_reason


def test_an_empty_reply_has_no_content(client: anthropic.Anthropic, model: Turns) -> None:
    model.texts = ["", ""]
    assert create(client).content == []
    kinds = [event["type"] for event in events_of(client)]
    assert kinds == ["message_start", "ping", "message_delta", "message_stop"]


# -- tools ----------------------------------------------------------------------------------------


def test_tools_round_trip(showing: tuple[anthropic.Anthropic, Turns]) -> None:
    client, model = showing
    model.texts = [f"I look.\n{CALL}\n{CALL}", "Sunny."]
    first = create(client, tools=[WEATHER])
    assert [block.type for block in first.content] == ["text", "tool_use", "tool_use"]
    assert first.stop_reason == "tool_use"
    one, two = (block for block in first.content if block.type == "tool_use")
    assert [(use.name, use.input) for use in (one, two)] == [("get_weather", {"city": "Köln"})] * 2
    assert one.id != two.id
    results = [
        {"type": "tool_result", "tool_use_id": two.id, "content": "rain", "is_error": True},
        {"type": "tool_result", "tool_use_id": one.id,
         "content": [{"type": "text", "text": "18"}, {"type": "text", "text": "dry"}]},
        {"type": "text", "text": "And?"},
    ]  # fmt: skip
    turns = [HI, {"role": "assistant", "content": first.content}]
    second = create(
        client, tools=[WEATHER], messages=[*turns, {"role": "user", "content": results}]
    )
    assert second.content[0].to_dict()["text"] == "Sunny."
    function = {"name": "get_weather", "arguments": {"city": "Köln"}}
    calls = [{"id": use.id, "type": "function", "function": function} for use in (one, two)]
    tool = {"name": "get_weather", "description": "Weather", "parameters": WEATHER["input_schema"]}
    *messages, variables = shown(model)
    assert messages == [
        HI,
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": one.id, "name": "get_weather", "content": "18\ndry"},
        {"role": "tool", "tool_call_id": two.id, "name": "get_weather", "content": "Error: rain"},
        {"role": "user", "content": "And?"},
    ]
    assert variables[0] == [{"type": "function", "function": tool}]


def test_tools_streamed(client: anthropic.Anthropic, model: Turns) -> None:
    model.texts = [f"Look: {CALL}"] * 2
    tools: Any = [WEATHER]
    with client.messages.stream(model="m", max_tokens=99, messages=[HI], tools=tools) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["text", "tool_use"]
    assert final.content[1].to_dict()["input"] == {"city": "Köln"}
    assert final.stop_reason == "tool_use"
    indices = [event["index"] for event in events_of(client, tools=tools) if "index" in event]
    assert indices == sorted(indices)


def test_the_client_runs_tools(client: anthropic.Anthropic, model: Turns) -> None:
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Weather.

        Args:
            city: where.
        """
        return f"sun over {city}"

    model.texts = [CALL, "It is sunny."]
    runner = client.beta.messages.tool_runner(
        model="m", max_tokens=99, messages=[HI], tools=[get_weather]
    )  # fmt: skip
    assert runner.until_done().content[0].to_dict()["text"] == "It is sunny."
    assert "sun over Köln" in model.prompts[-1]


@pytest.mark.parametrize(
    ("choice", "kind", "told"),
    [
        ({"type": "auto"}, None, True),
        ({"type": "any"}, "structural_tag", True),
        ({"type": "tool", "name": "get_weather"}, "structural_tag", True),
        ({"type": "none"}, None, False),
    ],
)
def test_tool_choice(
    client: anthropic.Anthropic, model: Turns, choice: dict[str, Any], kind: str | None, told: bool
) -> None:
    create(client, tools=[WEATHER], tool_choice=choice)
    constraint = model.requests[-1].sampling.constraint
    assert (constraint and constraint.kind) == kind
    assert ("get_weather" in model.prompts[-1]) == told


def test_one_call_at_most(client: anthropic.Anthropic, model: Turns) -> None:
    model.texts = [f"{CALL}\n{CALL} done", f"{CALL}\n{CALL} done"]
    one: Any = {"type": "auto", "disable_parallel_tool_use": True}
    message = create(client, tools=[WEATHER], tool_choice=one)
    assert [block.type for block in message.content] == ["tool_use"]
    events = events_of(client, tools=[WEATHER], tool_choice=one)
    assert {event["index"] for event in events if "index" in event} == {0}
    for disabled in (True, False):
        choice: Any = {"type": "any", "disable_parallel_tool_use": disabled}
        create(client, tools=[WEATHER], tool_choice=choice)
    first, second = (request.sampling.constraint for request in model.requests[-2:])
    assert first != second


def test_a_strict_tool_is_enforced(client: anthropic.Anthropic, model: Turns) -> None:
    create(client, tools=[{**WEATHER, "strict": True, "type": "custom", "input_examples": []}])
    constraint = model.requests[-1].sampling.constraint
    assert constraint is not None
    assert '"required": ["city"]' in constraint.text


# -- prompts and parameters -----------------------------------------------------------------------


def test_turns_of_one_role_are_one(client: anthropic.Anthropic, model: Turns) -> None:
    blocks = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
              for text in "ab"]  # fmt: skip
    create(client, system=blocks, messages=[
        {"role": "user", "content": "one"},
        {"role": "user", "content": blocks},
        {"role": "assistant", "content": blocks},
        {"role": "system", "content": "Now in verse."},
        {"role": "user", "content": "two"},
    ])  # fmt: skip
    assert model.prompts[-1] == (
        "<|im_start|>system\na\nb<|im_end|>\n<|im_start|>user\none\na\nb<|im_end|>\n"
        f"{ASSISTANT}ab<|im_end|>\n<|im_start|>system\nNow in verse.<|im_end|>\n"
        f"<|im_start|>user\ntwo<|im_end|>\n{ASSISTANT}"
    )


def test_what_is_written_for_billing_is_not_in_the_prompt(
    client: anthropic.Anthropic, model: Turns
) -> None:
    for number in ("1f", "2e"):
        line = f"x-anthropic-billing-header: cc_version=2.1; cch={number};"
        create(client, system=[{"type": "text", "text": line}, TEXT])
        create(client, system=f"{line}\nx")
    assert len(set(model.prompts)) == 1
    assert "<|im_start|>system\nx<|im_end|>" in model.prompts[0]


def test_a_begun_reply_is_gone_on_with(client: anthropic.Anthropic, model: Turns) -> None:
    begun = {"role": "assistant", "content": [{"type": "text", "text": "The answer is ("}]}
    create(client, messages=[HI, begun])
    assert model.prompts[-1].endswith(f"{ASSISTANT}The answer is (")
    create(client, messages=[HI, {"role": "assistant", "content": []}])
    assert model.prompts[-1].endswith(f"<|im_end|>\n{ASSISTANT}")


def test_thinking_goes_to_the_template(showing: tuple[anthropic.Anthropic, Turns]) -> None:
    client, model = showing
    thoughts = [
        {"type": "thinking", "thinking": "Hm.", "signature": "any"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Hello."},
    ]
    create(client, messages=[HI, {"role": "assistant", "content": thoughts}, HI])
    told = {"role": "assistant", "content": "Hello.", "reasoning_content": "Hm."}
    assert shown(model) == [HI, told, HI, [[], False, False, None]]
    for fields, wanted in (
        ({"thinking": {"type": "disabled"}}, [False, False, None]),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, [True, True, None]),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
         [True, True, "low"]),
        ({"output_config": {"effort": "max"}}, [False, False, "max"]),
        ({"chat_template_kwargs": {"enable_thinking": True}}, [True, False, None]),
    ):  # fmt: skip
        create(client, **fields)
        assert shown(model)[-1][1:] == wanted


THOUGHT = "<think>\nLet me see.\n</think>\n\n"


@pytest.fixture
def thinker(model: Turns) -> Iterator[anthropic.Anthropic]:
    """A client of a server that tells thoughts from answers."""
    with (
        serve_scripted(model, Config.of(reasoning_parser="qwen3")) as url,
        anthropic.Anthropic(base_url=url, api_key="any", max_retries=0, timeout=60) as client,
    ):
        yield client


def test_thinking_is_a_block_of_its_own(thinker: anthropic.Anthropic, model: Turns) -> None:
    model.texts = [f"{THOUGHT}I look. {CALL}"] * 3
    enabled: Any = {"type": "enabled", "budget_tokens": 1024}
    whole = create(thinker, tools=[WEATHER], thinking=enabled)
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    thought = whole.content[0].to_dict()
    assert thought["thinking"] == "Let me see."
    assert thought["signature"]
    assert whole.usage.output_tokens_details is not None
    assert whole.usage.output_tokens_details.thinking_tokens > 0
    tools: Any = [WEATHER]
    with thinker.messages.stream(
        model="m", max_tokens=4000, messages=[HI], tools=tools, thinking=enabled
    ) as stream:
        streamed = stream.get_final_message()
    assert [block.to_dict() for block in streamed.content[:2]] == [
        block.to_dict() for block in whole.content[:2]
    ]
    assert streamed.usage == whole.usage
    assert "signature_delta" in str(events_of(thinker, tools=tools, thinking=enabled))


def test_thinking_nobody_asked_for_is_not_told(thinker: anthropic.Anthropic, model: Turns) -> None:
    omitted = {"type": "adaptive", "display": "omitted"}
    for fields in ({}, {"thinking": {"type": "disabled"}}, {"thinking": omitted}):
        model.texts = [f"{THOUGHT}Hello."] * 2
        assert [block.type for block in create(thinker, **fields).content] == ["text"]
        assert "Let me see" not in str(events_of(thinker, **fields))


class Person(BaseModel):
    name: str


def test_structured_output(client: anthropic.Anthropic, model: Turns) -> None:
    model.texts = ['{"name": "Nora"}', "{}", "{}"]
    parsed = client.messages.parse(model="m", max_tokens=99, messages=[HI], output_format=Person)
    assert parsed.parsed_output == Person(name="Nora")
    given = model.requests[-1].sampling.constraint
    assert given is not None
    assert given.kind == "json_schema"
    assert '"name"' in given.text
    schema = {"type": "object", "properties": {"a": {"type": "null"}}}
    create(client, output_format={"type": "json_schema", "schema": schema})
    create(client, regex="[ab]+")
    constraints = [request.sampling.constraint for request in model.requests[-2:]]
    assert [constraint and constraint.kind for constraint in constraints] == [
        "json_schema",
        "regex",
    ]


def test_tokens_are_counted_exactly(client: anthropic.Anthropic, model: Turns) -> None:
    for fields in ({}, {"system": "S"}, {"tools": [WEATHER]}):
        counted = client.messages.count_tokens(model="m", messages=[HI], **fields)
        assert len(model.requests) == 0
        usage = create(client, **fields).usage
        assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
        model.requests.clear()


# -- errors ---------------------------------------------------------------------------------------

TEXT = {"type": "text", "text": "x"}
USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages is empty"),
    ({"messages": [{"role": "assistant", "content": ""}]}, "messages is empty"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [HI, {"role": "user", "content": [TEXT, {"type": "image", "source": {}}]}]},
     "required field `type` - at `$.messages[1].content[1].source`"),
    ({"messages": [{"role": "user", "content": [TEXT, {"type": "image"}]}]},
     "messages[0].content[1].source is missing"),
    ({"messages": [{"role": "user", "content": [TEXT, {"type": "image", "source": {
        "type": "base64", "media_type": "image/png", "data": "aa"}}]}]}, "reads text only"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "'document'"),
    ({"messages": [{"role": "user", "content": [{"type": "server_tool_use"}]}]},
     "'server_tool_use' - at `$.messages[0].content[0].type`"),
    ({"messages": [{"role": "user", "content": [USE]}]}, "'tool_use', which has no place there"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "missing required field"),
    ({"messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t9", "content": "x"}]}]},
     "messages[0].content[0].tool_use_id is 't9', which no tool_use before it has"),
    ({"messages": [HI, {"role": "assistant", "content": [USE]}]}, "messages ends with a tool_use"),
    ({"messages": [HI, {"role": "assistant", "content": [USE, USE]}]}, "content[1].id is 't'"),
    ({"messages": [HI, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}]}]},
     "messages[2].content[0].content[0] is of type 'image'"),
    ({"max_tokens": -1}, "max_tokens is -1"),
    ({"max_tokens": None}, "max_tokens is missing"),
    ({"temperature": -1.0}, "temperature is -1"),
    ({"stop_sequences": [""]}, "stop_sequences contains an empty string"),
    ({"stop": "x"}, "stop_sequences"),
    ({"n": 2}, "n is 2"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
     "tools[0].type is 'web_search_20250305'"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema is missing"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name is 'a b'"),
    ({"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, "tools[0].input_schema: /type"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "rm"}}, "names 'rm'"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name is missing"),
    ({"tool_choice": {"type": "any"}}, "tool_choice is given without tools"),
    ({"thinking": {"type": "some"}}, "$.thinking.type"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {}}},
      "output_format": {"type": "json_schema", "schema": {}}}, "exclude one another"),
    ({"output_config": {"format": {"type": "xml", "schema": {}}}}, "$.output_config.format.type"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_what_is_wrong_is_named(
    client: anthropic.Anthropic, model: Turns, fields: dict[str, Any], message: str
) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [HI], **fields}
    for stream in (False, True):
        reply = httpx.post(address(client), json={**body, "stream": stream}, timeout=60)
        assert reply.status_code == 400, reply.text
        error = ErrorResponse.model_validate(reply.json()).error
        assert error.type == "invalid_request_error"
        assert message in error.message
    assert model.requests == []


@pytest.mark.parametrize(
    ("error", "kind", "name"),
    [
        (RequestError("no", code="queue_full"), anthropic.RateLimitError, "rate_limit_error"),
        (RequestError("no", code="forbidden"), anthropic.PermissionDeniedError, "permission_error"),
        (RuntimeError("secret"), anthropic.InternalServerError, "api_error"),
    ],
)
def test_errors_of_the_engine(
    client: anthropic.Anthropic,
    model: Turns,
    error: Any,
    kind: type[anthropic.APIStatusError],
    name: str,
) -> None:
    model.refuse = error
    for stream in (False, True):
        with pytest.raises(kind) as caught:
            create(client, stream=stream)
        body = caught.value.body
        assert (body["type"], body["error"]["type"]) == ("error", name)
        assert body["request_id"] == caught.value.request_id
        assert body["request_id"]
        assert "secret" not in str(body)


def test_a_failure_within_a_stream_is_an_event(client: anthropic.Anthropic, model: Turns) -> None:
    model.fault = 2, RuntimeError("secret")
    *_, last = events_of(client)
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    with (
        pytest.raises(anthropic.APIStatusError, match="internal error"),
        client.messages.stream(model="m", max_tokens=99, messages=[HI]) as stream,
    ):
        stream.get_final_message()


def test_errors_before_the_route(model: Turns) -> None:
    with serve_scripted(model, Config.of(api_key="secret", max_body_bytes=4000)) as url:
        wrong = anthropic.Anthropic(base_url=url, auth_token="no", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError) as caught:
            create(wrong)
        assert caught.value.body["error"]["type"] == "authentication_error"
        assert caught.value.body["request_id"] == caught.value.request_id
        assert create(anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0)).content
        right = anthropic.Anthropic(base_url=url, auth_token="secret", max_retries=0)
        assert create(right).content
        with pytest.raises(anthropic.ContentTooLargeError) as large:
            create(right, system="x" * 5000)
        assert large.value.body["error"]["type"] == "request_too_large"
        headers = {"Authorization": "Bearer secret"}
        for method, path, status, kind in (
            ("GET", "/v1/messages", 405, "invalid_request_error"),
            ("POST", "/v1/messages/batches", 404, "not_found_error"),
            ("POST", "/v1/messages", 415, "invalid_request_error"),
        ):
            reply = httpx.request(method, url + path, headers=headers, timeout=60)
            assert reply.status_code == status
            assert ErrorResponse.model_validate(reply.json()).error.type == kind
        assert "type" not in httpx.get(f"{url}/v1/nothing", headers=headers, timeout=60).json()


def test_a_client_that_leaves_ends_the_completion(
    client: anthropic.Anthropic, model: Turns
) -> None:
    model.seconds, model.texts = 0.05, ["x" * 4000]
    with client.messages.stream(model="m", max_tokens=4000, messages=[HI]) as stream:
        assert next(iter(stream.text_stream))
    deadline = time.monotonic() + 60
    while not model.closed:
        assert time.monotonic() < deadline
        time.sleep(0.01)
