"""Requests of the Anthropic backend: exact bodies, and calls that it refuses to send."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from helpers.fake_anthropic import FakeAnthropic
from sglang.backend.anthropic.anthropic_backend import Anthropic
from sglang.backend.base import Call, Choose, Commit, Complete, Prompt, StreamCall
from sglang.errors import AuthenticationFailed, BadRequest, Unsupported
from sglang.ir.choices import token_length_normalized, unconditional_likelihood_normalized
from sglang.ir.params import DEFAULTS, GenParams
from sglang.ir.prompt_media import Media

Way = Callable[[Anthropic, Call], Any]
PNG = Media("image", b"\x89PNG\r\n\x1a\n", "image/png")
OLD, NEW = "claude-sonnet-4-5", "claude-opus-5"


@pytest.fixture(params=["threads", "event loop"])
def do(request: pytest.FixtureRequest) -> Way:
    """A call of a thread, or the same in an event loop."""
    if request.param == "threads":
        return lambda backend, call: call.do(backend)
    return lambda backend, call: asyncio.run(call.ado(backend))


def backend(service: FakeAnthropic | None = None, model: str = NEW, **options: Any) -> Anthropic:
    url = service.url if service else "http://127.0.0.1:1"
    return Anthropic(model, base_url=url, api_key="key", **{"max_retries": 0, **options})


def chat(*turns: tuple[str, Any]) -> Prompt:
    return Prompt("", tuple({"role": role, "content": content} for role, content in turns))


HI = chat(("user", "Hi"))


def body(prompt: Prompt, **params: Any) -> dict[str, Any]:
    """The body of a gen, without the fields that are always the same."""
    whole = backend().request(Complete(prompt, GenParams(**params).over(DEFAULTS)))
    assert (whole.pop("model"), whole.pop("max_tokens")) == (NEW, 128)
    return whole


def test_a_call_sends_what_request_shows(do: Way) -> None:
    prompt = chat(("system", "Be brief."), ("user", "Hi"), ("assistant", "Well: "))
    params = GenParams(max_new_tokens=7, stop=("END",)).over(DEFAULTS)
    calls: list[Call] = [
        Complete(prompt, params),
        StreamCall(prompt, params, lambda _: None),
        Choose(prompt, ("a", "b"), token_length_normalized),
    ]
    with FakeAnthropic("yes", "yes", '{"choice": "b"}') as service:
        for call in calls:
            model = backend(service)
            do(model, call)
            assert model.request(call) == service.body
    assert service.bodies[0] == {
        "model": NEW,
        "max_tokens": 7,
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Well:"},
        ],
        "stop_sequences": ["END"],
    }
    assert backend().request(Commit(prompt)) == {}


def test_system_turns_stay_in_calls_and_the_prompt_is_unchanged() -> None:
    one = chat(("system", "A"), ("user", "1"))
    two = Prompt("", (*one.messages, *chat(("assistant", "x"), ("user", "2")).messages))
    late = Prompt("", (*two.messages, {"role": "system", "content": "B"}))
    assert [body(prompt)["system"] for prompt in (one, two, one, late)] == [
        "A", "A", "A", [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    ]  # fmt: skip
    assert [message["content"] for message in body(late)["messages"]] == ["1", "x", "2"]
    assert one.messages[0] == {"role": "system", "content": "A"}


def test_a_program_of_several_turns_keeps_its_system_message() -> None:
    @sgl.function
    def talk(s: Any) -> None:
        s += sgl.system("Be brief.")
        s += sgl.user("One?") + sgl.assistant(sgl.gen("one", max_tokens=9))
        s += sgl.user("Two?") + sgl.assistant(sgl.gen("two", stop="\n"))

    with FakeAnthropic("first", "second\nthird") as service:
        state = talk.run(backend=backend(service))
    assert (state["one"], state["two"]) == ("first", "second")
    assert state.messages()[0] == {"role": "system", "content": "Be brief."}
    turns = ["One?", "first", "Two?"]
    roles = ["user", "assistant", "user"]
    messages = [{"role": role, "content": text} for role, text in zip(roles, turns)]
    fixed = {"model": NEW, "system": "Be brief."}
    assert service.bodies == [
        {**fixed, "max_tokens": 9, "messages": messages[:1]},
        {**fixed, "max_tokens": 128, "messages": messages},
    ]


def test_turns_of_one_role_are_merged_and_blank_texts_left_out() -> None:
    prompt = chat(("user", "1"), ("assistant", " \n"), ("user", "2"), ("assistant", "begun \n"))
    texts = [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]
    assert body(prompt)["messages"] == [
        {"role": "user", "content": texts},
        {"role": "assistant", "content": "begun"},
    ]
    assert prompt.messages[-1]["content"] == "begun \n"


def test_a_program_without_roles_is_one_user_message() -> None:
    assert body(Prompt("Once upon")) == {"messages": [{"role": "user", "content": "Once upon"}]}
    (message,) = body(Prompt("see <image>!", media=(PNG,)))["messages"]
    assert [block["type"] for block in message["content"]] == ["text", "image", "text"]
    with pytest.raises(Unsupported, match="put them into"):
        body(Prompt("<image> and <image>", media=(PNG,)))


def test_images_by_their_bytes_and_by_url_and_no_video() -> None:
    url = Media("image", url="https://example.org/a.png")
    (message,) = body(chat(("user", ["both:", PNG, url])))["messages"]
    source = {"type": "base64", "media_type": "image/png", "data": PNG.base64}
    assert message["content"] == [
        {"type": "text", "text": "both:"},
        {"type": "image", "source": source},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
    ]
    with pytest.raises(Unsupported, match=r"no video; give frames of it by image\(\)"):
        body(chat(("user", [Media("video", b"x", "video/mp4")])))
    with pytest.raises(Unsupported, match="system turn"):
        body(chat(("system", [PNG]), ("user", "?")))


def test_the_system_turns_can_be_cached() -> None:
    prompt = chat(("system", "A"), ("user", "1"))
    assert backend(cache_prompt=True).request(Complete(prompt, DEFAULTS))["system"] == [
        {"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}
    ]
    assert "system" not in backend(cache_prompt=True).request(Complete(HI, DEFAULTS))


def test_fields_of_every_request() -> None:
    thinking = {"type": "adaptive"}
    model = backend(extra_body={"thinking": thinking, "output_config": {"effort": "low"}})
    asked = model.request(Complete(HI, GenParams(json_schema={"type": "integer"})))
    assert asked["thinking"] == thinking
    assert asked["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": {"type": "integer"}},
    }


def test_only_what_asks_for_something_is_sent() -> None:
    assert set(body(HI)) == {"messages"}
    given = body(HI, temperature=0.0, top_p=0.5, top_k=4, stop="x", ignore_eos=False)
    del given["messages"]
    assert given == {"temperature": 0.0, "top_p": 0.5, "top_k": 4, "stop_sequences": ["x"]}


def test_sampling_parameters_go_out_by_the_version_that_has_them(do: Way) -> None:
    with FakeAnthropic("a") as service:
        do(backend(service), Complete(HI, GenParams(temperature=0.5).over(DEFAULTS)))
    assert service.body["temperature"] == 0.5
    assert service.headers[0]["anthropic-version"] == "2023-06-01"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 0), ("regex", "a+"), ("min_new_tokens", 3), ("stop_regex", "a"), ("min_p", 0.1),
        ("stop_token_ids", [3]), ("frequency_penalty", 0.5), ("presence_penalty", 0.5),
        ("repetition_penalty", 1.1), ("logit_bias", {1: 2.0}), ("ignore_eos", True),
        ("return_logprob", True), ("top_logprobs_num", 2),
    ],
)  # fmt: skip
def test_what_the_api_lacks_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(Unsupported, match=f"Anthropic API has no {name}, and it is"):
        body(HI, **{name: value})


def test_a_temperature_above_one_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"temperature is 1\.5; .* takes 0 to 1, give at most 1"):
        body(HI, temperature=1.5)


@pytest.mark.parametrize("as_text", [True, False])
def test_a_schema_is_sent_with_its_objects_closed(as_text: bool) -> None:
    inner = {"type": "object", "properties": {"properties": {"type": "string"}}}
    schema = {"type": "object", "properties": {"a": inner, "b": {"type": "array", "items": inner}}}
    asked = body(HI, json_schema=json.dumps(schema) if as_text else schema)["output_config"][
        "format"
    ]
    closed = {**inner, "additionalProperties": False}
    assert asked == {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {"a": closed, "b": {"type": "array", "items": closed}},
            "additionalProperties": False,
        },
    }
    assert "additionalProperties" not in inner


def test_a_select_is_a_structured_output_behind_the_prompt(do: Way) -> None:
    prompt = chat(("user", "Sky?"), ("assistant", "It is "))
    call = Choose(prompt, ("blue", "green"), token_length_normalized)
    with FakeAnthropic('{"choice": "green"}', '{"choice": "red"}', prefill=False) as service:
        model = backend(service)
        decision = do(model, call)
        with pytest.raises(Exception, match=r"red.* is none of the choices \['blue', 'green'\]"):
            do(model, call)
    asked = service.bodies[0]
    assert asked["messages"][:2] == list(prompt.messages)
    assert asked["messages"][2] == {
        "role": "user",
        "content": 'Which of these choices goes on best from the text above? ["blue", "green"]',
    }
    assert asked["output_config"]["format"]["schema"]["properties"] == {
        "choice": {"type": "string", "enum": ["blue", "green"]}
    }
    assert decision.text == "green"
    assert decision.meta["decided_by"] == "structured output"
    assert decision.meta["usage"]["prompt_tokens"] == decision.meta["prompt_tokens"] > 0


@pytest.mark.parametrize(
    ("model", "cool"),
    [
        ("claude-3-5-haiku-20241022", True), ("claude-opus-4-20250514", True), (OLD, True),
        ("claude-sonnet-4-5-20250929", True), ("claude-opus-4-6", True),
        ("claude-opus-4-7", False), ("claude-opus-4-8", False), (NEW, False),
        ("claude-haiku-5-5", False), ("another", False),
    ],
)  # fmt: skip
def test_a_select_is_cool_where_the_model_has_a_temperature(model: str, cool: bool) -> None:
    call = Choose(Prompt("Sky is "), ("blue", "green"), token_length_normalized)
    assert (backend(model=model).request(call).get("temperature") == 0.0) is cool


def test_a_select_by_likelihood_is_refused() -> None:
    call = Choose(Prompt("Sky is "), ("blue",), unconditional_likelihood_normalized)
    with pytest.raises(Unsupported, match="unconditional_likelihood_normalized; use token_length"):
        backend().request(call)


def test_the_advice_for_what_newer_models_refuse(do: Way) -> None:
    begun = chat(("user", "Hi"), ("assistant", "Well"))
    with FakeAnthropic("a", prefill=False, sampling=False) as service:
        with pytest.raises(BadRequest, match=r"begin the gen right .* or use num_api"):
            do(backend(service), Complete(begun, DEFAULTS))
        with pytest.raises(BadRequest, match="at most one of temperature") as caught:
            do(backend(service), Complete(HI, GenParams(temperature=0.0)))
    assert (caught.value.status, caught.value.request_id) == (400, "req_fake")


def test_the_key_comes_from_the_environment(do: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "from-the-environment")
    with FakeAnthropic("a") as service:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", service.url)
        do(Anthropic(NEW), Complete(Prompt("Hi"), DEFAULTS))
    (headers,) = service.headers
    sent = headers.get("x-api-key") or headers["authorization"]
    assert sent.endswith("from-the-environment")


@pytest.mark.parametrize("place", ["HOME", "ANTHROPIC_CONFIG_DIR"])
def test_no_key_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setenv(place, str(tmp_path))
    with pytest.raises(AuthenticationFailed, match="set ANTHROPIC_API_KEY or give api_key="):
        Anthropic(NEW).complete(Prompt("Hi"), DEFAULTS)


def test_the_package_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(Unsupported, match=r"pip install -e '.\[anthropic\]'"):
        Anthropic(NEW)
