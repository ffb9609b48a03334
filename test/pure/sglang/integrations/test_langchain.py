"""LangChain's templates and parsers as programs. The classes here have the attributes of its own;
with ``langchain-core`` installed they are its own (``test_real_*``)."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace

import pytest
from helpers.fake_program_server import FakeProgramServer
from sglang.integrations.langchain import PARSERS, program_of


class PromptTemplate:
    template_format = "f-string"

    def __init__(self, template, **partial_variables):
        self.template, self.partial_variables = template, partial_variables


def parser(kind, **attributes):
    return type(kind, (), attributes)()


def _both(program, reply, **inputs):
    """The result of a program, after a run and on a server."""
    server = FakeProgramServer([reply, reply])
    plain = program.run(**inputs, backend=server)
    state = program.run(**inputs, backend=server, on="server")
    assert state.text() == plain.text()
    assert state.ret_value == plain.ret_value == plain["output"]
    return plain


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@pytest.mark.parametrize(
    ("given", "reply", "made"),
    [
        (None, " red", " red"),
        (parser("StrOutputParser"), " red", " red"),
        (parser("JsonOutputParser", pydantic_object=None), 'It is {"a": 1}', {"a": 1}),
        (parser("CommaSeparatedListOutputParser"), "red, blue", ["red", "blue"]),
        (parser("NumberedListOutputParser"), "1. red\n2. blue", ["red", "blue"]),
        (parser("MarkdownListOutputParser"), "- red\n- blue", ["red", "blue"]),
        (parser("EnumOutputParser", enum=Colour), " red\n", "red"),
        (parser("BooleanOutputParser", true_val="YES", false_val="NO"), "YES.", True),
        (parser("DatetimeOutputParser", format="%d/%m/%Y"), "1/2/2024", "2024-02-01"),
        (parser("XMLOutputParser", tags=["a"]), "<a>x</a>", "x"),
        (parser("RegexParser", regex=r"n: (\d+)", output_keys=["n"]), "n: 12", "12"),
    ],
)
def test_parser_becomes_a_transform(given, reply, made):
    program = program_of(PromptTemplate("{{Five}} {adj} colours of {thing}: ", adj="blue"), given)
    state = _both(program, reply, thing="the sea")
    assert state.text() == "{Five} blue colours of the sea: " + reply
    assert state["text"] == reply
    assert state.ret_value == made


def test_chat_template_becomes_turns():
    system = type("SystemMessagePromptTemplate", (), {"prompt": PromptTemplate("You are {who}.")})()
    human = type("HumanMessagePromptTemplate", (), {"prompt": PromptTemplate("{q} of {who}?")})()
    fixed = SimpleNamespace(type="ai", content="Yes.")
    chat = SimpleNamespace(messages=[system, human, fixed, human], partial_variables={})
    state = _both(program_of(chat, max_tokens=3), "no more", who="Ann", q="what")
    assert [message["role"] for message in state.messages()] == [
        "system", "user", "assistant", "user", "assistant"]  # fmt: skip
    assert state.messages()[1]["content"] == "what of Ann?"


def test_chain_is_taken_apart():
    chain = SimpleNamespace(
        first=PromptTemplate("{x}: "), middle=[object()],
        last=parser("CommaSeparatedListOutputParser"),
    )  # fmt: skip
    assert _both(program_of(chain), "a, b", x="y").ret_value == ["a", "b"]
    assert program_of(chain).arg_names == ["x"]


def test_unknown_pieces_are_named():
    jinja = PromptTemplate("{x}")
    jinja.template_format = "jinja2"
    for prompt, given, message in [
        (PromptTemplate("{x}"), parser("MyParser"), "MyParser has no transform"),
        (PromptTemplate("{x}"), parser("JsonOutputParser", pydantic_object=int), "pydantic model"),
        (PromptTemplate("{x}"), parser("XMLOutputParser", tags=["a", "b"]), "one tag"),
        (PromptTemplate("{x:>9}"), None, "with a format"),
        (PromptTemplate("{x.y}"), None, "with a format"),
        (PromptTemplate("{x}", x=str), None, "partial variable 'x'"),
        (jinja, None, "format 'jinja2'"),
        (SimpleNamespace(messages=[object()]), None, "a message is object"),
        ("{x}", None, "str with format None"),
    ]:
        with pytest.raises(TypeError, match=message):
            program_of(prompt, given)


def test_real_templates_and_parsers_make_the_same():
    prompts = pytest.importorskip("langchain_core.prompts", reason="needs langchain-core")
    from langchain_core import output_parsers

    for kind, reply in [
        ("StrOutputParser", " red"),
        ("JsonOutputParser", 'So:\n```json\n{"a": [1, null]}\n```'),
        ("CommaSeparatedListOutputParser", 'red, "green, dark",blue'),
        ("NumberedListOutputParser", "1. red\n2. dark blue"),
        ("MarkdownListOutputParser", "- red\n- dark blue"),
    ]:
        own = getattr(output_parsers, kind)()
        assert kind in PARSERS
        chain = prompts.PromptTemplate.from_template("{n} of {thing}: ") | own
        state = _both(program_of(chain), reply, n="two", thing="sea")
        assert state.text() == chain.first.format(n="two", thing="sea") + reply
        assert state.ret_value == own.parse(reply)
    chat = prompts.ChatPromptTemplate.from_messages([("system", "Be {x}."), ("human", "{q}")])
    state = _both(program_of(chat), "ok", x="kind", q="why")
    rendered = [message.content for message in chat.format_messages(x="kind", q="why")]
    assert [message["content"] for message in state.messages()[:2]] == rendered
    with pytest.raises(TypeError, match="MessagesPlaceholder"):
        program_of(prompts.ChatPromptTemplate.from_messages([("placeholder", "{h}")]))


def test_a_step_that_a_program_has_not_is_named():
    model, other = SimpleNamespace(), SimpleNamespace()
    colours = PromptTemplate("Colours of {thing}: ")
    chain = SimpleNamespace(first=colours, middle=[model, other], last=parser("StrOutputParser"))
    with pytest.raises(TypeError, match="2 steps between its prompt and its end"):
        program_of(chain)
    chain.middle.pop()
    assert _both(program_of(chain), "blue", thing="sky")["output"] == "blue"


def test_an_input_named_as_the_state_is_refused():
    with pytest.raises(TypeError, match=r"the template has \{s\}, .* rename it"):
        program_of(PromptTemplate("Colours of {s}: "))
