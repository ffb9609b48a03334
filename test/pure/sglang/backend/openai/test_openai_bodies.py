"""Requests of the OpenAI backend: the exact body of every kind of call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sglang as sgl
from helpers.fake_openai import FakeOpenAI
from sglang.backend.base import Choose, Commit, Complete, Prompt, StreamCall
from sglang.backend.openai.openai_backend import OpenAI
from sglang.backend.openai.strict_schema import response_format
from sglang.backend.output_constraint import JsonSchema, Regex
from sglang.errors import AuthenticationFailed, Unsupported
from sglang.ir.choices import token_length_normalized
from sglang.ir.params import DEFAULTS, GenParams
from sglang.ir.prompt_media import Media

PLAIN = Prompt("Once upon")
TURNS = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"})
CHAT = Prompt("SYSTEM:Be brief.\nUSER:Hello?\nASSISTANT:", TURNS)
OPEN = Prompt(CHAT.text + "Name:", (*TURNS, {"role": "assistant", "content": "Name:"}))
CAT, DOG = Media("image", b"cat", "image/png"), Media("image", url="https://x.test/dog.jpg")
OFFICIAL: dict[str, Any] = {"api_key": "k"}
LOCAL: dict[str, Any] = {"base_url": "http://localhost:1/v1"}


def body(model: str, prompt: Prompt, where: dict[str, Any], **params: Any) -> dict[str, Any]:
    backend = OpenAI(model, **where)
    return backend.request(Complete(prompt, GenParams(**params).over(DEFAULTS)))


def test_a_chat_model_of_openai_is_told_only_what_is_not_neutral() -> None:
    messages = [dict(turn) for turn in TURNS]
    expected = {"model": "gpt-4o", "messages": messages, "max_tokens": 128}
    assert body("gpt-4o", CHAT, OFFICIAL) == expected
    options = {
        "temperature": 0.0, "top_p": 0.5, "frequency_penalty": 1.0, "presence_penalty": -1.0,
        "n": 3, "seed": 0, "stop": "\n", "logit_bias": {5: -100},
    }  # fmt: skip
    changed = {"stop": ["\n"], "logit_bias": {"5": -100}, "max_tokens": 7}
    sent = body("gpt-4o", CHAT, OFFICIAL, **options, max_new_tokens=7)
    assert sent == {**expected, **options, **changed}
    sent = body("gpt-4o", CHAT, OFFICIAL, return_logprob=True, top_logprobs_num=2)
    assert sent == {**expected, "logprobs": True, "top_logprobs": 2}


def test_another_server_gets_neutral_and_extended_fields() -> None:
    user = [{"role": "user", "content": "Once upon"}]
    neutral = {"temperature": 1.0, "top_p": 1.0}
    expected = {"model": "qwen", "messages": user, "max_tokens": 128, **neutral}
    assert body("qwen", PLAIN, LOCAL) == expected
    extra = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "ignore_eos": True}
    lists = {"stop_regex": ["[.]"], "stop_token_ids": [3], "stop": list("abcde")}
    sent = body("qwen", PLAIN, LOCAL, **extra, **{**lists, "stop_regex": "[.]"}, min_new_tokens=2)
    assert sent == {**expected, **extra, **lists, "min_tokens": 2}


@pytest.mark.parametrize("api", ["chat", "completions", "responses"])
@pytest.mark.parametrize(
    "option",
    [{"top_k": 5}, {"min_p": 0.1}, {"repetition_penalty": 1.1}, {"ignore_eos": True},
     {"stop_regex": "x"}, {"stop_token_ids": [1]}, {"min_new_tokens": 1}, {"logprob_start_len": 0}],
    ids=lambda option: next(iter(option)),
)  # fmt: skip
def test_openai_itself_refuses_what_it_lacks_by_name(api: str, option: dict[str, Any]) -> None:
    name = {"min_new_tokens": "min_tokens"}.get(*[*option] * 2)
    with pytest.raises(Unsupported, match=f"OpenAI backend has no {name}, which is .*leave it out"):
        body("gpt-4o", CHAT, {**OFFICIAL, "api": api}, **option)


def test_five_stops_are_too_many() -> None:
    with pytest.raises(ValueError, match="stop has 5 strings, OpenAI takes 4"):
        body("gpt-4o", CHAT, OFFICIAL, stop=list("abcde"))


@pytest.mark.parametrize("model", ["o1", "o3-mini", "gpt-5", "gpt-5.1-mini", "ft:o4-mini:me"])
def test_reasoning_models_get_their_own_limit_and_no_stop(model: str) -> None:
    sent = body(model, CHAT, OFFICIAL, stop="\n", max_new_tokens=9)
    assert sent == {"model": model, "messages": list(TURNS), "max_completion_tokens": 9}


@pytest.mark.parametrize("model", ["gpt-3.5-turbo-instruct", "davinci-002", "babbage-002"])
def test_completion_models_continue_the_text(model: str) -> None:
    sent = body(model, CHAT, OFFICIAL, stop="\n", return_logprob=True)
    limits = {"max_tokens": 128, "stop": ["\n"], "logprobs": 1}
    assert sent == {"model": model, "prompt": CHAT.text, **limits}


def test_responses() -> None:
    where: dict[str, Any] = {**OFFICIAL, "api": "responses"}
    expected = {"model": "gpt-4o", "input": list(TURNS), "store": False, "max_output_tokens": 128}
    assert body("gpt-4o", CHAT, where, stop="\n") == expected
    assert body("o3-pro", CHAT, OFFICIAL) == {**expected, "model": "o3-pro"}
    logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "temperature": 0.5}
    sent = body("gpt-4o", CHAT, where, top_logprobs_num=2, temperature=0.5)
    assert sent == {**expected, **logprobs}
    with pytest.raises(Unsupported, match=r"no seed, which is 1; .* OpenAI\(..., api='chat'\)"):
        body("gpt-4o", CHAT, where, seed=1)


def test_the_kind_of_model_can_be_said() -> None:
    assert "prompt" in OpenAI("qwen", False, **LOCAL).request(Complete(PLAIN, DEFAULTS))
    assert "messages" in OpenAI("davinci-002", True, **LOCAL).request(Complete(PLAIN, DEFAULTS))
    chat, text = OpenAI("gpt-4o", **OFFICIAL), OpenAI("davinci-002", **OFFICIAL)
    assert (chat.speculates, chat.constraints) == ("chat", frozenset({"json_schema"}))
    assert (text.speculates, text.constraints) == ("text", frozenset())
    with pytest.raises(ValueError, match="api is 'x'; use one of"):
        OpenAI("gpt-4o", api="x", **OFFICIAL)
    with pytest.raises(ValueError, match="exclude one another"):
        OpenAI("gpt-4o", is_chat_model=True, api="completions", **OFFICIAL)


def test_the_begun_turn_is_the_last_message() -> None:
    assert body("gpt-4o", OPEN, OFFICIAL)["messages"] == list(OPEN.messages)
    going_on = {"continue_final_message": True, "add_generation_prompt": False}
    where: dict[str, Any] = {**LOCAL, "continue_final_message": True}
    assert going_on.items() <= body("qwen", OPEN, where).items()
    assert not going_on.keys() & body("qwen", CHAT, where).keys()


def test_images() -> None:
    turn = {"role": "user", "content": ["Which?", CAT, DOG]}
    prompt = Prompt("USER:Which?<image><image>\n", (turn,), (CAT, DOG))
    urls = ["data:image/png;base64,Y2F0", "https://x.test/dog.jpg"]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [{"type": "text", "text": "Which?"}, *parts]
    assert body("gpt-4o", prompt, OFFICIAL)["messages"] == [{"role": "user", "content": content}]
    alone = Prompt("Which?<image><image>", (), (CAT, DOG))
    assert body("gpt-4o", alone, OFFICIAL)["messages"] == [{"role": "user", "content": content}]
    parts = [{"type": "input_image", "image_url": url} for url in urls]
    content = [{"type": "input_text", "text": "Which?"}, *parts]
    sent = body("gpt-4o", prompt, {**OFFICIAL, "api": "responses"})["input"]
    assert sent == [{"role": "user", "content": content}]
    with pytest.raises(Unsupported, match="no image for a completion model; use a chat model"):
        body("davinci-002", prompt, OFFICIAL)
    with pytest.raises(Unsupported, match="has '<image>' of its own beside 1 images; use roles"):
        body("gpt-4o", replace(alone, media=(CAT,)), OFFICIAL)
    film = Media("video", b"x", "video/mp4", num_frames=4)
    with pytest.raises(Unsupported, match="no video; append frames of it"):
        body("gpt-4o", Prompt("<image>", (), (film,)), OFFICIAL)


def test_a_schema_is_made_strict_where_that_only_narrows_it() -> None:
    inner = {"type": "object", "properties": {"x": {"type": "integer", "default": 3}}}
    schema = {"title": "A b", "type": "object", "properties": {"default": inner}, "required": []}
    closed = {"additionalProperties": False}
    strict = {
        **schema, "required": ["default"], **closed, "properties": {"default": {
            "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], **closed,
        }},
    }  # fmt: skip
    sent = body("gpt-4o", CHAT, OFFICIAL, json_schema=schema)["response_format"]
    whole = {"name": "A_b", "schema": strict, "strict": True}
    assert sent == {"type": "json_schema", "json_schema": whole}
    where: dict[str, Any] = {**OFFICIAL, "api": "responses"}
    sent = body("gpt-4o", CHAT, where, json_schema=schema)["text"]
    assert sent == {"format": {"type": "json_schema", **whole}}
    free = {"type": "object", "additionalProperties": {"type": "integer"}}
    sent = body("gpt-4o", CHAT, OFFICIAL, json_schema=free)["response_format"]["json_schema"]
    assert sent == {"name": "output", "schema": free, "strict": False}
    with pytest.raises(Unsupported, match=r"no json_schema.*a chat model"):
        body("davinci-002", CHAT, OFFICIAL, json_schema=schema)


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/N", "title": "Next"}}}
FREE = {"type": "object", "additionalProperties": {"type": "integer"}}
CITY = {"type": "string", "description": "A city.", "minLength": 1}


@pytest.mark.parametrize(
    ("definition", "use", "sent"),
    [
        (CITY, {}, {"$ref": "#/$defs/N"}),
        (CITY, {"default": "Rome"}, {"$ref": "#/$defs/N"}),
        (CITY, {"description": "Home."}, {**CITY, "description": "Home."}),
        (CITY, {"title": "Home"}, {**CITY, "title": "Home"}),
        (CITY, {"minLength": 2}, None),  # both would hold
        (NODE, {"title": "First"}, None),  # would never end
        (FREE, {"title": "Counts"}, None),
    ],
)
def test_a_reference_stands_alone_in_a_strict_schema(
    definition: Any, use: dict[str, Any], sent: Any
) -> None:
    reference = {"$ref": "#/$defs/N", **use}
    schema = {"type": "object", "properties": {"x": reference}, "$defs": {"N": definition}}
    made = response_format(schema)
    assert made["strict"] is (sent is not None)
    assert made["schema"]["properties"]["x"] == (reference if sent is None else sent)


def test_a_schema_that_is_not_strict_is_not_enforced() -> None:
    closed = JsonSchema({"type": "object", "properties": {"x": {"type": "integer"}}})
    chat, text = OpenAI("gpt-4o", **OFFICIAL), OpenAI("davinci-002", **OFFICIAL)
    assert [chat.enforces(c) for c in (closed, JsonSchema(FREE), Regex("a"))] == [
        True,
        False,
        False,
    ]
    assert not text.enforces(closed)


@sgl.function
def counting(s: Any) -> None:
    s += sgl.user("Count.")
    s += sgl.assistant(sgl.gen("counts", json_schema=FREE))


def test_what_the_service_does_not_enforce_is_checked() -> None:
    with FakeOpenAI(['{"a": "one"}', '{"a": 1}']) as service:
        backend = OpenAI("gpt-4o", base_url=service.url)
        assert counting.run(backend=backend)["counts"] == '{"a": 1}'
        assert len(service.bodies) == 2
        formats = [body["response_format"]["json_schema"] for body in service.bodies]
        assert [form["strict"] for form in formats] == [False, False]
        backend.shutdown()


def test_what_is_no_object_is_wrapped_in_one() -> None:
    item = {"type": "array", "items": {"$ref": "#/$defs/I"}, "$defs": {"I": {"type": "integer"}}}
    sent = body("gpt-4o", CHAT, OFFICIAL, json_schema=item)["response_format"]["json_schema"]
    assert sent["schema"] == {
        "type": "object",
        "properties": {"value": {"type": "array", "items": {"$ref": "#/$defs/I"}}},
        "required": ["value"],
        "additionalProperties": False,
        "$defs": {"I": {"type": "integer"}},
    }


def test_the_request_is_the_body_that_is_sent() -> None:
    calls: list[Any] = [
        Complete(CHAT, DEFAULTS),
        StreamCall(CHAT, DEFAULTS, lambda _: None),
        Choose(CHAT, ("ok",), token_length_normalized),
        Commit(CHAT),
    ]
    with FakeOpenAI(["ok", "ok", '{"value": "ok"}']) as service:
        backend = OpenAI("gpt-4o", base_url=service.url, api_key="secret")
        bodies = [backend.request(call) for call in calls]
        for call in calls:
            call.do(backend)
        backend.shutdown()
    assert [*service.bodies, {}] == bodies
    assert bodies[1]["stream_options"] == {"include_usage": True}
    assert service.paths == ["/v1/chat/completions"] * 3
    assert {headers["authorization"] for headers in service.headers} == {"Bearer secret"}


def test_azure_names_the_deployment_in_the_path() -> None:
    with FakeOpenAI("yes") as service:
        where: dict[str, Any] = {
            "azure_endpoint": service.url.removesuffix("/v1"),
            "api_version": "2024-10-21",
        }
        backend = OpenAI("gpt-4o", is_azure=True, api_key="k", **where)
        assert backend.complete(CHAT, DEFAULTS)[0].text == "yes"
        backend.shutdown()
    path = "/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21"
    assert service.paths == [path]
    assert service.headers[0]["api-key"] == "k"
    assert "temperature" not in service.bodies[0]


def test_a_key_is_needed_for_openai_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(AuthenticationFailed, match="OPENAI_API_KEY"):
        OpenAI("gpt-4o")
    OpenAI("qwen", **LOCAL).shutdown()
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    OpenAI("gpt-4o").shutdown()


@pytest.mark.parametrize(
    "program",
    [
        lambda s: s.user("q") or s.__iadd__("outside" + sgl.gen("x")),
        lambda s: s.user("q") or s.__iadd__(sgl.gen("x")),
        lambda s: s.__iadd__("before" + sgl.user("q") + sgl.assistant(sgl.gen("x"))),
        lambda s: s.user("q") or s.__iadd__(sgl.select("x", ["a", "b"])),
    ],
)
def test_what_stands_outside_of_the_turns_is_refused(program: Any) -> None:
    with FakeOpenAI() as service:
        backend = sgl.OpenAI("gpt-4o", base_url=service.url, api_key="k")
        run = sgl.function(lambda s: [program(s), None][1])
        with pytest.raises(sgl.ProgramError, match=r"is sent the turns alone; append it inside"):
            run.run(backend=backend)
        assert service.bodies == []
        backend.shutdown()
