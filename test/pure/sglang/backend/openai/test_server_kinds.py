"""Servers that speak like OpenAI: how their kind is found, and by which fields each is used."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sglang as sgl
from helpers.fake_openai import FakeOpenAI
from sglang.backend.openai import server_kinds
from sglang.backend.openai.server_kinds import KINDS, PLAIN, ServerAnswers, kind_of

PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"],
          "additionalProperties": False}  # fmt: skip
TOLD: dict[str, dict[str, Any]] = {
    "sglang": {
        "/get_model_info": {"model_path": "m", "constraints": ["regex"]},
        "/version": {"version": "1.0"}, "/props": {"default_generation_settings": {}},
    },
    "upstream": {"/get_model_info": {"model_path": "m", "is_generation": True}},
    "vllm": {"/version": {"version": "0.12.1"}},
    "vllm<0.11": {"/version": {"version": "0.9.2"}},
    "llama.cpp": {"/props": {"default_generation_settings": {"n_ctx": 4096}}},
    "ollama": {"/api/version": {"version": "0.9.0"}},
}  # fmt: skip
OWNED = {"vllm": "vllm", "llamacpp": "llama.cpp", "library": "ollama", "sglang": "upstream"}
GBNF = 'root ::= "red" | "dark \\"blue\\""'
COLOURS = ["red", 'dark "blue"']
REGEX: dict[str, dict[str, Any]] = {
    "sglang": {"regex": "[0-9]+"},
    "upstream": {"regex": "[0-9]+"},
    "vllm": {"structured_outputs": {"regex": "[0-9]+"}},
    "vllm<0.11": {"guided_regex": "[0-9]+"},
}
CHOICES: dict[str, dict[str, Any]] = {
    "sglang": {"choices": COLOURS},
    "upstream": {"regex": '(red|dark\\ "blue")'},
    "vllm": {"structured_outputs": {"choice": COLOURS}},
    "vllm<0.11": {"guided_choice": COLOURS},
    "llama.cpp": {"grammar": GBNF},
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "sglang": {"json_schema": PERSON},
    "upstream": {"json_schema": json.dumps(PERSON)},
    "vllm": {"structured_outputs": {"json": PERSON}},
    "vllm<0.11": {"guided_json": PERSON},
    "llama.cpp": {"json_schema": PERSON},
}
FIELDS = {"regex", "choices", "json_schema", "structured_outputs", "grammar", "response_format",
          *(f"guided_{name}" for name in ("regex", "choice", "json", "grammar"))}  # fmt: skip


@sgl.function
def program(s: Any, **params: Any) -> None:
    s += "A value: " + sgl.gen("x", 20, **params)


def sent(told: str | None, reply: str, chat: bool, **params: Any) -> tuple[dict[str, Any], Any]:
    """The fields that hold the text, of the last request, and the service."""
    known = {} if told is None else TOLD[told]
    with FakeOpenAI(reply, told=known) as service:
        backend = sgl.OpenAI("m", base_url=service.url, is_chat_model=chat)
        state = program.run(backend=backend, **params)
        assert state["x"] == reply
        assert program.run(backend=backend, **params)["x"] == reply
    return {name: v for name, v in service.bodies[-1].items() if name in FIELDS}, service


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completions"])
@pytest.mark.parametrize("kind", TOLD)
def test_a_kind_is_told_in_its_own_words(kind: str, chat: bool) -> None:
    """The kind is found out once. A constraint that it lacks is checked here."""
    fields, service = sent(kind, "42", chat, regex="[0-9]+")
    assert fields == REGEX.get(kind, {})
    assert len(set(service.questions)) == len(service.questions) <= 4
    fields, _ = sent(kind, "red", chat, one_of=COLOURS)
    assert fields == CHOICES.get(kind, {})
    fields, _ = sent(kind, '{"age": 3}', chat, json_schema=PERSON)
    if chat:
        assert fields["response_format"]["json_schema"]["schema"] == PERSON
    else:
        assert fields == SCHEMAS.get(kind, {})


@pytest.mark.parametrize("told", [None, "vllm"], ids=["unknown", "vllm"])
def test_options_have_room_and_no_stop_inside(told: str | None) -> None:
    options = ["word " * 50 + "\nend", "no"]

    @sgl.function
    def pick(s: Any, most: int | None) -> None:
        s += "A:" + sgl.gen("x", most, one_of=options, stop=["\n", "!"], max_retries=0)

    with FakeOpenAI([options[0], "wo"], told=TOLD.get(told or "", {})) as service:
        backend = sgl.OpenAI("m", base_url=service.url, is_chat_model=False)
        assert pick.run(None, backend=backend)["x"] == options[0]
        with pytest.raises(sgl.ProgramError, match="'wo' is none of 'word"):
            pick.run(1, backend=backend)["x"]
    whole, cut = service.bodies
    assert (whole["max_tokens"], cut["max_tokens"]) == (255, 1)
    assert whole.get("stop") == (["!"] if told is None else None)


def test_a_server_that_is_not_known_has_its_texts_checked() -> None:
    with FakeOpenAI(["none", "42"]) as service:
        backend = sgl.OpenAI("m", base_url=service.url)
        assert program.run(backend=backend, regex="[0-9]+")["x"] == "42"
    assert len(service.bodies) == 2
    assert service.questions == [
        "/get_model_info", "/version", "/props", "/api/version", "/v1/models",
    ]  # fmt: skip


def test_who_constrains_nothing_asks_nothing() -> None:
    with FakeOpenAI("a", told=TOLD["vllm"]) as service:
        program.run(backend=sgl.OpenAI("m", base_url=service.url))
    assert service.questions == []


def test_the_program_may_say_the_kind_and_more() -> None:
    with FakeOpenAI("42") as service:
        backend = sgl.OpenAI(
            "m", base_url=service.url, server="vllm", extra_body={"guided_decoding_backend": "x"}
        )
        assert program.run(backend=backend, regex="[0-9]+")["x"] == "42"
        plain = sgl.OpenAI("m", base_url=service.url, server="")
        assert plain.constraints == {"json_schema"}
    assert service.questions == []
    assert service.bodies[-1]["structured_outputs"] == {"regex": "[0-9]+"}
    assert service.bodies[-1]["guided_decoding_backend"] == "x"
    with pytest.raises(ValueError, match="server is 'tgi'; use one of"):
        sgl.OpenAI("m", base_url=service.url, server="tgi")


def test_grammars_go_where_they_are_enforced_and_else_say_how() -> None:
    with FakeOpenAI("a", told=TOLD["llama.cpp"]) as service:
        program.run(backend=sgl.OpenAI("m", base_url=service.url), ebnf='root ::= "a"')
        assert service.bodies[-1]["grammar"] == 'root ::= "a"'
        with pytest.raises(sgl.Unsupported, match=r"OpenAI\(base_url=...\).*server='vllm'"):
            program.run(backend=sgl.OpenAI("m", base_url=service.url), structural_tag={})


@pytest.mark.parametrize("owner", OWNED)
def test_the_owner_of_its_models_tells(owner: str) -> None:
    card = {"/v1/models": {"object": "list", "data": [{"id": "m", "owned_by": owner}]}}
    assert kind_of(card.get) is KINDS[OWNED[owner]]


ODD: list[dict[str, Any]] = [
    {}, {"/version": []}, {"/get_model_info": {}}, {"/v1/models": {"data": [None, {}]}},
    {"/v1/models": {"data": 3}}, {"/version": {"version": 3}}, {"/props": "x"},
]  # fmt: skip


@pytest.mark.parametrize("answers", ODD)
def test_odd_answers_tell_nothing(answers: dict[str, Any]) -> None:
    assert kind_of(answers.get) is PLAIN


def test_a_vllm_from_source_is_a_new_one() -> None:
    assert kind_of({"/version": {"version": "0.1.dev99+gabc"}}.get) is KINDS["vllm"]


def test_a_server_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_kinds, "SECONDS", 0.2)
    answers = ServerAnswers("http://127.0.0.1:9/v1", "key")
    assert kind_of(answers) is PLAIN
    assert not answers.reached
    with FakeOpenAI("42", told=TOLD["vllm"]) as service:
        backend = sgl.OpenAI("m", base_url=service.url)
        address, backend.address = backend.address, "http://127.0.0.1:9/v1"
        assert backend.constraints == {"json_schema"}
        backend.address = address
        assert "regex" in backend.constraints
