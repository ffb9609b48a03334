"""Constraints: what is sent, what is accepted, and how a call is repeated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jsonschema
import pytest
import sglang as sgl
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from sglang.backend.base import Prompt
from sglang.backend.native.native_backend import NativeBackend
from sglang.backend.output_constraint import (
    JsonSchema,
    OutputConstraint,
    constrained,
    constraint_of,
)
from sglang.errors import InvalidOutput
from sglang.ir.chat_template import TEMPLATES, ChatTemplate, Message
from sglang.ir.params import GenParams, to_wire
from sglang.ir.prompt_media import medium
from sglang.run.retry import feedback


@dataclass
class Person:
    name: str
    age: int


PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


def made(**params: Any) -> OutputConstraint:
    constraint = constraint_of(GenParams(**params))
    assert constraint is not None
    return constraint


@pytest.mark.parametrize(
    ("params", "kind", "sent"),
    [
        ({"dtype": int}, "regex", {"regex": "[-+]?[0-9]{1,20}[ \n]?", "stop": ["!", " ", "\n"]}),
        ({"dtype": "bool"}, "regex", {"regex": "(True|False)", "stop": ["!"]}),
        ({"regex": "a+"}, "regex", {"regex": "a+", "stop": ["!"]}),
        ({"json_schema": PERSON}, "json_schema", {"json_schema": PERSON, "stop": ["!"]}),
        ({"schema": json.dumps(PERSON)}, "json_schema", {"json_schema": PERSON, "stop": ["!"]}),
        ({"json_schema": bool}, "json_schema", {"json_schema": {"type": "boolean"}, "stop": ["!"]}),
        ({"json_schema": bool, "whitespace_pattern": " ?"}, "json_schema",
         {"json_schema": {"type": "boolean"}, "whitespace_pattern": " ?", "stop": ["!"]}),
        ({"regex": "a+", "whitespace_pattern": " ?"}, "regex", {"regex": "a+", "stop": ["!"]}),
        ({"one_of": ("a", "b", "a")}, "choices", {"choices": ["a", "b"]}),
    ],
)  # fmt: skip
def test_what_the_backend_is_sent(params: Any, kind: str, sent: dict[str, Any]) -> None:
    given = GenParams(max_new_tokens=9, stop="!", **params)
    constraint = constraint_of(given)
    assert constraint is not None
    assert constraint.kind == kind
    body = to_wire(constraint.resolve(given))["sampling_params"]
    if "json_schema" in body:
        body["json_schema"] = json.loads(body["json_schema"])
    assert body == {"max_new_tokens": 9, **sent}
    assert constraint.free(given) == GenParams(max_new_tokens=9, stop="!")


def test_texts_are_cut_by_no_stop_and_no_inherited_limit() -> None:
    stops: dict[str, Any] = {"stop": ("b", "c"), "stop_regex": "a", "stop_token_ids": (1,)}
    own = GenParams(one_of=["ab", "ü" * 100], **stops)
    params, constraint = constrained(own, GenParams(max_new_tokens=128))
    assert constraint is not None
    assert to_wire(constraint.resolve(params))["sampling_params"] == {
        "max_new_tokens": 201, "choices": ["ab", "ü" * 100],
    }  # fmt: skip
    assert constraint.free(params).stop == ("c",)
    limited, _ = constrained(replace(own, max_new_tokens=3), GenParams())
    assert limited.max_new_tokens == 3
    generous, _ = constrained(own, GenParams(max_new_tokens=300))
    assert generous.max_new_tokens == 300


class Team(BaseModel):
    lead: Person
    notes: dict[str, int] = Field(default_factory=dict)
    properties: Person | None = None


def test_a_type_is_sent_closed() -> None:
    """Keys that a type does not declare would be dropped; JSON schemas are sent as they are."""
    constraint = made(schema=Team)
    sent = constraint.resolve(GenParams(schema=Team)).json_schema
    assert sent["additionalProperties"] is False
    assert sent["$defs"]["Person"]["additionalProperties"] is False
    assert sent["properties"]["notes"]["additionalProperties"] == {"type": "integer"}
    assert set(sent["properties"]) == {"lead", "notes", "properties"}
    jsonschema.Draft202012Validator.check_schema(sent)
    text = '{"lead": {"name": "a", "age": 3}, "notes": {"a": 1}}'
    jsonschema.validate(json.loads(text), sent)
    assert isinstance(constraint.parse(text), Team)
    assert made(schema=PERSON).resolve(GenParams(schema=PERSON)).json_schema == PERSON


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("error", "no text can follow 'so far': the grammar ends"),
        ("abort", "the request was aborted"),
    ],
)
def test_a_generation_that_the_runtime_gave_up(kind: str, words: str) -> None:
    class Stuck(NativeBackend):
        def call(self, body: dict[str, Any]) -> Any:
            reason = {"type": kind, "message": "the grammar ends"}
            return {"text": "so far", "meta_info": {"finish_reason": reason}}

    with pytest.raises(sgl.BackendError, match=words):
        Stuck().complete(Prompt("x"), GenParams())


def test_no_constraint() -> None:
    assert constraint_of(GenParams(max_new_tokens=3, stop="\n")) is None


EXCLUSIVE = {
    "dtype": int, "regex": "a", "json_schema": PERSON, "schema": Person, "ebnf": "root ::= [a]",
    "structural_tag": {"type": "structural_tag", "format": {"type": "any_text"}},
}  # fmt: skip


@pytest.mark.parametrize("name", ["ebnf", "structural_tag"])
def test_what_only_a_backend_can_enforce(name: str) -> None:
    exclusive: dict[str, Any] = {name: EXCLUSIVE[name]}
    given = GenParams(stop="!", **exclusive)
    constraint = constraint_of(given)
    assert constraint is not None
    assert (constraint.kind, constraint.parse("x")) == (name, "x")
    wire = to_wire(constraint.resolve(given))["sampling_params"]
    sent = wire[name]
    assert (json.loads(sent) if name == "structural_tag" else sent) == EXCLUSIVE[name]

    @sgl.function
    def program(s):
        s += sgl.gen("x", **exclusive)

    with pytest.raises(sgl.ProgramError, match=f"{name} needs a backend that enforces it: use Eng"):
        program.run(backend=sgl.Mock(["a"], constraints=["regex", "json_schema"]))["x"]
    mock = sgl.Mock(["a"], constraints=[name])
    state = program.run(backend=mock)
    assert (state["x"], state.value("x")) == ("a", "a")
    assert getattr(mock.calls[0].params, name) == EXCLUSIVE[name]


@pytest.mark.parametrize("first", EXCLUSIVE)
@pytest.mark.parametrize("second", EXCLUSIVE)
def test_constraints_exclude_one_another(first: str, second: str) -> None:
    if first == second:
        return
    with pytest.raises(ValueError, match="exclude one another") as caught:
        made(**{first: EXCLUSIVE[first], second: EXCLUSIVE[second]})
    assert f"'{first}'" in str(caught.value)
    assert f"'{second}'" in str(caught.value)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"dtype": complex}, ValueError, "<class 'complex'>; use int, float, str or bool"),
        ({"dtype": 3}, ValueError, "dtype is 3; use int, float, str or bool"),
        ({"regex": 3}, TypeError, "regex is 3; give a str"),
        ({"ebnf": {}}, TypeError, "ebnf is {}; give a str"),
        ({"structural_tag": 3}, TypeError, "structural_tag is 3; give a dict, or its JSON"),
        ({"schema": object()}, TypeError, "no JSON schema can be made of <object"),
        ({"json_schema": "{"}, ValueError, "json_schema is '{', not JSON"),
    ],
)
def test_a_wrong_constraint_is_refused_when_it_is_made(
    params: Any, error: type, message: str
) -> None:
    with pytest.raises(error) as caught:
        made(**params)
    assert message in str(caught.value)


VALID = [
    ({"dtype": int}, " -42\n", -42),
    ({"dtype": float}, "3.", 3.0),
    ({"dtype": "float"}, ".5", 0.5),
    ({"dtype": bool}, "False ", False),
    ({"dtype": str}, ' "a, b"', "a, b"),
    ({"regex": r"\d+|x"}, "12", "12"),
    ({"schema": Person}, '{"name": "Bo", "age": 3}', Person("Bo", 3)),
    ({"json_schema": PERSON}, '{"age": 3}', {"age": 3}),
]


@pytest.mark.parametrize(("params", "text", "value"), VALID)
def test_a_valid_text_is_parsed(params: Any, text: str, value: Any) -> None:
    constraint = made(**params)
    constraint.check(text)
    assert constraint.extract(text) == text
    parsed = constraint.parse(text)
    assert parsed == constraint.parse_partial(text) == value
    assert type(parsed) is type(value)


INVALID = [
    ({"dtype": int}, "4.5", "'4.5' is not an integer in digits"),
    ({"dtype": float}, "", "'' is not a number"),
    ({"dtype": bool}, "true", "'true' is not True or False"),
    ({"dtype": str}, '"cut off', "is not one line in double quotes"),
    ({"regex": "a|b"}, "ab", "'ab' does not match the regular expression a|b"),
    ({"schema": Person}, '{"name": "Bo"}', "age: Field required"),
    ({"json_schema": PERSON}, '{"age": "3"}', "age: '3' is not of type 'integer'"),
]


@pytest.mark.parametrize(("params", "text", "message"), INVALID)
def test_an_invalid_text_is_refused(params: Any, text: str, message: str) -> None:
    with pytest.raises(InvalidOutput) as caught:
        made(**params).check(text)
    assert message in str(caught.value)
    assert caught.value.text == text


def test_a_pattern_python_cannot_read_is_refused_when_needed() -> None:
    constraint = made(regex=r"\p{L}+")
    assert constraint.resolve(GenParams(regex=r"\p{L}+")).regex == r"\p{L}+"
    with pytest.raises(ValueError, match="which Python cannot read") as caught:
        constraint.check("a")
    assert not isinstance(caught.value, InvalidOutput)


def test_the_value_grows() -> None:
    assert made(dtype=int).parse_partial("-") is None
    assert made(dtype=int).parse_partial("-4") == -4
    assert made(schema=Person).parse_partial('{"name": "B').name == "B"
    assert made(schema=Person).parse_partial("") is None


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"dtype": int}, "an integer"),
        ({"regex": "a[bc]"}, "a[bc]"),
        ({"schema": {"const": "ü"}}, '{"const": "ü"}'),
        ({"schema": Person}, '"required": ["name", "age"]'),
    ],
)
def test_the_instruction_names_what_is_wanted(params: Any, words: str) -> None:
    instruction = made(**params).instruction()
    assert words in instruction
    assert "and with nothing else" in instruction


AGE = '{"age": 3}'
EXTRACTED = [
    (PERSON, f"Here you are:\n```json\n{AGE}\n```\nAnything else?", AGE),
    (PERSON, f'It\'s 5" long ]: {AGE} "', AGE),
    (PERSON, f"[see {AGE}", None),
    (PERSON, f"As [1] says of {{x}}: {AGE}.", AGE),
    (PERSON, 'Like {"age": "?"} it is {"age": 4}', '{"age": 4}'),
    (PERSON, 'It is {"age": "3"}!', '{"age": "3"}'),
    (PERSON, f"{AGE} {AGE}", AGE),
    ({"type": "string"}, '```\n"a ``b"\n```', '"a ``b"'),
    (PERSON, '{"a": {"age": 3}, "b": "}', None),
    (PERSON, '{"age": 3} or {"age": 4}', None),
    (PERSON, "I do not know.", None),
    (PERSON, "```\n```", None),
    (PERSON, "[" * 10_000 + "]" * 10_000, None),
    (int, "It is 42.", "42"),
    (float, "about -2.5 (or so)", "-2.5"),
    (int, " 3 or 4", "3"),
    (int, "42\nName: Bo, 7", "42"),
    (int, "either 3 or 4", None),
    (int, "1/2", None),
    (int, "on 2024-01-02, at 10:30, 1,000 or 3.5", None),
    (bool, "The answer is True.", "True"),
    (bool, "Falsehood", None),
    (str, 'It is "blue".', '"blue"'),
]


@pytest.mark.parametrize(("wanted", "text", "part"), EXTRACTED)
def test_the_one_part_that_can_be_meant(wanted: Any, text: str, part: str | None) -> None:
    constraint = made(dtype=wanted) if isinstance(wanted, type) else made(schema=wanted)
    assert constraint.extract(text) == (text if part is None else part)


def test_a_pattern_takes_no_part_of_a_reply() -> None:
    assert made(regex="[0-9]+").extract("It is 42.") == "It is 42."


DOCUMENTS = st.recursive(
    st.integers() | st.text('"\\{}[]`a\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('"{}[]`'), inner),
    max_leaves=5,
)


@settings(max_examples=50)
@given(DOCUMENTS.filter(lambda d: isinstance(d, (list, dict))), st.text("ab \n'`"), st.booleans())
def test_json_among_words_is_found(document: Any, words: str, indented: bool) -> None:
    text = json.dumps(document, indent=2 if indented else None)
    constraint = made(schema={"const": document})
    assert constraint.extract(f"{words}{text} {words}").strip() == text


# Asking again


def written(template: ChatTemplate, messages: Sequence[Message], begun: str | None) -> Prompt:
    """The prompt of a state after ``messages`` and ``begun``, the text of an open assistant
    turn."""
    text = ""
    for i, message in enumerate(messages):
        before, after = template.around(message["role"], messages[:i])
        text += before + message["content"] + after
    turns = list(messages)
    if begun is not None:
        text += template.around("assistant", messages)[0] + begun
        turns += [{"role": "assistant", "content": begun}] if begun else []
    return Prompt(text, tuple(turns))


@pytest.mark.parametrize("noise", ['\\"', '"', "{", "```", '{"', "```json\n{"])
def test_a_long_reply_without_json_is_read_once(noise: str) -> None:
    text = noise * 200_000  # read once for each quotation mark, it would take half an hour
    assert JsonSchema({"type": "array"}).extract(text) == text


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("begun", ["", "Age: "])
@pytest.mark.parametrize("system", [True, False])
def test_asking_again_is_a_turn_of_the_conversation(name: str, begun: str, system: bool) -> None:
    template = TEMPLATES[name]
    asked: list[Message] = [{"role": "system", "content": "Be brief."}] if system else []
    asked += [{"role": "user", "content": "How old?"}]
    picture = medium("image", b"\x89PNG\r\n\x1a\n")
    prompt = replace(written(template, asked, begun), media=(picture,))
    error = InvalidOutput("'old' is not an integer", "old")
    again = feedback(prompt, template, "old", error, made(dtype=int))
    note = "That is not valid: 'old' is not an integer. Answer with an integer in digits, such as"
    assert again.messages[len(asked)] == {"role": "assistant", "content": begun + "old"}
    assert again.messages[len(asked) + 1]["role"] == "user"
    assert again.messages[len(asked) + 1]["content"].startswith(note)
    assert again == replace(
        written(template, again.messages[: len(asked) + 2], begun), media=(picture,)
    )
    assert again.text.startswith(prompt.text + "old")


def test_asking_again_without_roles() -> None:
    again = feedback(
        Prompt("Age:"), TEMPLATES["default"], " old", InvalidOutput("bad"), made(dtype=int)
    )
    assert again.messages == ()
    assert again.text.startswith("Age: old\n\n(That is not valid: bad. Answer with an integer")


def test_media_of_the_assistant_s_turn_are_shown_once() -> None:
    picture = medium("image", b"\x89PNG\r\n\x1a\n")
    turn = {"role": "assistant", "content": ["See ", picture]}
    prompt = Prompt("ASSISTANT:See <image>", (turn,), (picture,))
    again = feedback(prompt, TEMPLATES["default"], "old", InvalidOutput("bad"), made(dtype=int))
    assert again.messages[0] == {"role": "assistant", "content": ["See ", picture, "old"]}
    assert [message["role"] for message in again.messages] == ["assistant", "user"]
    assert again.text.count("<image>") == len(again.media) == 1


@pytest.mark.parametrize(
    ("reply", "value"),
    [("red", "red"), (" red\n", "red"), ("It is red.", "red"), ("dark blue", " dark blue")],
)
def test_one_of_some_texts_is_found_in_a_reply(reply: str, value: str) -> None:
    constraint = made(one_of=["red", " dark blue", "blue"])
    assert constraint.parse(constraint.extract(reply)) == value
    assert constraint.free(GenParams(one_of=["red"])) == GenParams()
    assert '["red", " dark blue", "blue"]' in constraint.instruction()


def test_what_is_none_of_the_texts() -> None:
    constraint = made(one_of=list("abcdefgh"))
    with pytest.raises(InvalidOutput, match=r"'x' is none of 'a', 'b', 'c', 'd', 'e', \.\.\."):
        constraint.parse("x")
    assert constraint.extract("a or b") == "a or b"
    assert constraint.extract("b, I think", continues=True) == "b"
    for wrong, error in (("ab", TypeError), ([1], TypeError), ([], ValueError), ([""], ValueError)):
        with pytest.raises(error, match="one_of is"):
            constraint_of(GenParams(one_of=wrong))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="exclude one another"):
        constraint_of(GenParams(one_of=["a"], regex="a"))
