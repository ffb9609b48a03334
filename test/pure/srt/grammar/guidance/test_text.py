"""Constraints as grammars: EBNF, structural tags, white space."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.json_acceptor import BYTES, accepts_text
from sglang.ir.constraint import Constraint
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.guidance import GuidanceGrammar, check, grammar_of
from sglang.srt.grammar.schema import whitespace_pattern

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": False}  # fmt: skip


def compiled(
    kind: str, text: Any, whitespace: str | None = None, server: str = ""
) -> GuidanceGrammar:
    text = text if isinstance(text, str) else json.dumps(text)
    grammar = grammar_of(Constraint(kind, text, whitespace), server)
    check(grammar)
    return GuidanceGrammar(grammar, BYTES)


def takes(grammar: GuidanceGrammar, text: str) -> bool:
    return accepts_text(grammar.matcher(), text)


# -- EBNF ----------------------------------------------------------------------------------------

GBNF = r"""
# a comment
root ::= item ("," item)* end?
item ::= [a-z]+ | "\"" [^"\\]* "\"" | "\u00e9\u0041" | nested-one
nested-one ::= "(" root ")"
end ::= "."{2,3}
"""


@pytest.mark.parametrize(
    ("text", "right"),
    [("a", True), ("a,b", True), ("a,", False), ('"x y"', True), ("(a,(b))", True), ("(a", False),
     ("éA", True), ("éa", False), ("a..", True), ("a....", False), ("a.", False), ("", False)],
)  # fmt: skip
def test_gbnf(text: str, right: bool) -> None:
    assert takes(compiled("ebnf", GBNF), text) is right


def test_lark() -> None:
    grammar = compiled(
        "ebnf", 'start: WORD (" " WORD)~1..2 sum\nWORD: /[a-z]+/ & ~"no"\nsum: "" | "+" sum "-"'
    )
    assert takes(grammar, "a b")
    assert takes(grammar, "a b c++--")
    assert not takes(grammar, "a no")
    assert not takes(grammar, "a b c+")


def test_a_schema_inside_a_grammar_is_checked_and_enforced() -> None:
    grammar = compiled("ebnf", f'start: "call " %json {json.dumps(CITY)} "!" | "no"')
    assert takes(grammar, 'call {"city":"x"}!')
    assert takes(grammar, "no")
    assert not takes(grammar, "call {}!")
    assert not takes(grammar, 'call {"city": "x"}!')
    with pytest.raises(GrammarError, match=r"ebnf at /%json\[1\]/not/\$ref"):
        compiled("ebnf", 'start: %json {} %json {"not": {"$ref": "http://x/y"}}')
    with pytest.raises(GrammarError, match="the JSON after %json is malformed"):
        compiled("ebnf", "start: %json {")


def test_a_schema_in_a_grammar_cannot_set_options_of_the_library() -> None:
    schema = {**CITY, "x-guidance": {"lenient": True, "whitespace_flexible": True}}
    grammar = compiled("ebnf", f"start: %json {json.dumps(schema)}")
    assert takes(grammar, '{"city":"x"}')
    assert not takes(grammar, '{"city" : "x"}')


BAD_EBNF = [
    ("root ::= foo", "line 1, column 10: there is no rule 'foo'"),
    ("word ::= [a-z]", "no rule named root"),
    ('root ::= "a\\', "this literal has no end"),
    ('root ::= "\\ud800"', "is not a character"),
    ("root ::= " + "(" * 3000 + '"a"' + ")" * 3000, "more than 64 levels deep"),
    ("start: " + "(" * 3000 + '"a"' + ")" * 3000, "too deeply nested"),
    ("\n".join(["start: r0\nr300: \"x\"", *(f"r{i}: \"a\" r{i + 1}" for i in range(300))]),
     "more than 200 levels deep"),
    ("\n".join(["start: T0\nT9000: \"x\"", *(f"T{i}: \"a\" T{i + 1}" for i in range(9000))]),
     "more than 200 levels deep"),
    ("start: foo", "foo"),
    ('start: "a"{5,2}', "range"),
    ("start: @other", "other"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD_EBNF, ids=range(len(BAD_EBNF)))
def test_a_malformed_grammar(text: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        compiled("ebnf", text)


def test_many_rules_that_are_not_deep() -> None:
    rules = [f'r{i}: "a{i}" r0?' for i in range(2000)]
    check(grammar_of(Constraint("ebnf", "\n".join(["start: " + " | ".join(
        f"r{i}" for i in range(2000)), *rules])), ""))  # fmt: skip


# -- structural tags -----------------------------------------------------------------------------

LEGACY = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<function=get>", "schema": CITY, "end": "</function>"},
        {"begin": "<function=add>", "schema": {"type": "integer"}, "end": "</function>"},
        {"begin": "[[", "schema": {"enum": ["x"]}, "end": "]]"},
    ],
    "triggers": ["<function=", "[["],
}
TAGS = [
    ("", True),
    ("free text", True),
    ("a < b, <func", True),
    ("x<function=", False),
    ('x<function=get>{"city":"Rome"}</function>', True),
    ('x<function=get>{"city":"Rome"}</function> and <function=add>12</function>[["x"]] <', True),
    ('<function=get>{"city":1}</function>', False),
    ('<function=get>{"city":"Rome"}', False),
    ("<function=put>1</function>", False),
    ('[["y"]]', False),
    ("[", True),
    ("line\nline \u65e5 \U0001f642\n[[\"x\"]]\n", True),
]  # fmt: skip


@pytest.mark.parametrize(("text", "right"), TAGS)
def test_legacy_tags(text: str, right: bool) -> None:
    assert takes(compiled("structural_tag", LEGACY), text) is right


def tag(begin: str, content: dict[str, Any], end: str) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


GET = tag("<get>", {"type": "json_schema", "json_schema": CITY}, "</get>")
ADD = tag("<add>", {"type": "regex", "pattern": "[0-9]+"}, "</add>")
ANY = {"type": "any_text"}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<get>", "<a"], "tags": [GET, ADD]}
JSON = {"type": "json_schema", "json_schema": {}}
WORD = {"type": "const_string", "value": "done"}
FORMATS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (TRIGGERED, ["", "x", 'x<get>{"city":""}</get>y<add>1</add>'],
     ["<get>", "<a>", "<add>x</add>"]),
    ({**TRIGGERED, "at_least_one": True}, ["<add>1</add>y", "<add>1</add>y<add>2</add>"],
     ["", "x", "x<add>1</add>y"]),
    ({**TRIGGERED, "at_least_one": True, "stop_after_first": True}, ["<add>1</add>"],
     ["x", "x<add>1</add>", "<add>1</add>y"]),
    (GET, ['<get>{"city":"x"}</get>'], ["", "x", '<get>{"city":"x"}</get>x']),
    ({"type": "sequence", "elements": [tag("<think>", ANY, "</think>"), TRIGGERED]},
     ["<think>a <add> b</think>", "<think></think>x<add>3</add>"], ["x", "<think>a"]),
    ({"type": "or", "elements": [WORD, ADD]}, ["done", "<add>1</add>"], ["", "done<add>1</add>"]),
    ({"type": "sequence", "elements": [WORD, ANY]}, ["done", "done x"], ["", "x"]),
    ({"type": "tags_with_separator", "tags": [GET, ADD], "separator": ","},
     ["", "<add>1</add>", "<add>1</add>,<add>2</add>"], ["<add>1</add>,", "x"]),
    ({"type": "tags_with_separator", "tags": [ADD], "separator": ",", "at_least_one": True,
      "stop_after_first": True}, ["<add>1</add>"], ["", "<add>1</add>,<add>2</add>"]),
    ({"type": "json_schema", "json_schema": {"enum": [1, 2]}}, ["1", "2"], ["3", ""]),
]  # fmt: skip


@pytest.mark.parametrize(("form", "right", "wrong"), FORMATS, ids=range(len(FORMATS)))
def test_formats(form: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    grammar = compiled("structural_tag", {"type": "structural_tag", "format": form})
    assert [text for text in right if not takes(grammar, text)] == []
    assert [text for text in wrong if takes(grammar, text)] == []


def structure(**fields: Any) -> dict[str, Any]:
    entry = {"begin": "<f>", "schema": {}, "end": "</f>", **fields}
    return {"type": "structural_tag", "structures": [entry], "triggers": ["<f"]}


BAD_TAGS = [
    ([], "at /: must be a JSON object"),
    ({"type": "tag"}, "'tag'; use 'structural_tag'"),
    ({"type": "structural_tag"}, "/structures: must be a list, not empty"),
    (structure(begin="<g>"), "at /structures/0/begin: '<g>' begins with none of the triggers"),
    (structure(begin=""), "at /structures/0/begin: must be a string, not empty"),
    (structure(end=1), "at /structures/0/end: must be a string"),
    (structure(color="red"), "at /structures/0/color: not supported"),
    (structure(schema={"properties": {"a": {"$dynamicRef": "#a"}}}),
     "structural_tag at /structures/0/schema/properties/a/\\$dynamicRef: "),
    ({**structure(), "triggers": []}, "at /triggers: must be a list, not empty"),
    ({"type": "structural_tag", "format": {"type": "token"}},
     "at /format/type: 'token' is not supported; use any_text, "),
    ({"type": "structural_tag", "format": {"type": "sequence", "elements": [ANY, JSON]}},
     "at /format/elements/0: free text must end at a literal"),
    ({"type": "structural_tag", "format": {"type": "sequence", "elements": [TRIGGERED, JSON]}},
     "at /format/elements/0: free text must end at a literal"),
    ({"type": "structural_tag", "format": {**TRIGGERED, "excludes": [""]}},
     "at /format/excludes/0: must be a string, not empty"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "message"), BAD_TAGS, ids=range(len(BAD_TAGS)))
def test_a_malformed_tag_is_named(value: Any, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        grammar_of(Constraint("structural_tag", json.dumps(value)), "")


def test_a_trigger_that_is_a_control_token() -> None:
    """Such a trigger is taken both as the token and as text."""
    known = Vocabulary((*BYTES.tokens[:256], b"<end>", b"<tool_call>", b"</tool_call>"), 259,
                       (256,), frozenset({256, 257, 258}), BYTES.encode)  # fmt: skip
    value = structure(begin="<tool_call>\n", schema={"enum": ["x", "y"]}, end="\n</tool_call>")
    text = grammar_of(Constraint("structural_tag", json.dumps(
        {**value, "triggers": ["<tool_call>"]})), "")  # fmt: skip
    check(text)
    grammar = GuidanceGrammar(text, known)

    def runs(*parts: str | int) -> bool:
        matcher = grammar.matcher()
        tokens = [t for part in parts for t in ([part] if isinstance(part, int) else part.encode())]
        return all(matcher.advance(token) for token in tokens) and matcher.accepting

    assert runs("free ", 257, '\n"x"\n', 258, " free")
    assert runs("free ", 257, '\n"x"\n</tool_call>', 257, '\n"y"\n', 258)
    assert runs('<tool_call>\n"x"\n', 258)
    assert not runs("free ", 257, '\n"z"\n', 258)
    assert not runs("free ", 258)
    assert not runs(257, "x")
    assert not runs(257)


# -- white space ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("", ['{"a":[1,2]}']),
        ("[ ]?", ['{"a":[1,2]}', '{"a": [1, 2]}', '{ "a" : [ 1 , 2 ] }']),
        (" ?\\n{0,2}", ['{"a": [1,\n2]}', '{\n\n"a" : [1, \n2\n]\n}']),
        ("[ \\n\\t]{0,8}", ['{\n  "a": [\n    1,\n    2\n  ]\n}', "{        \"a\":[1,2]}"]),
        ("\\s{0,3}", ['{"a":\r\n\t[1,2]}']),
    ],
)  # fmt: skip
def test_white_space(pattern: str, texts: list[str]) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}}},
    }
    inner = compiled("json_schema", schema, pattern)
    server = compiled("json_schema", schema, None, pattern)
    for text in texts:
        assert takes(inner, text)
        assert takes(server, text)
    for text in ('{"a":[1,2]} ', ' {"a":[1,2]}', '{"a":1 2}', '{"a":[1' + 9 * " " + ",2]}"):
        assert not takes(inner, text)
    assert not takes(compiled("json_schema", schema, "", "[ ]?"), '{"a": [1]}')
    assert takes(compiled("json_schema", {"type": "object"}, "[ ]?"), "{ }")
    assert not takes(compiled("json_schema", {"type": "object"}, "[ ]?"), "{  }")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("[ ]*", "more than 8"), (" +", "more than 8"), ("[ \\n]{0,9}", "more than 8"),
     ("\\s{3,}", "more than 8"), (" ?\\n{0,8}", "more than 8"), ("a?", "character 0"),
     (" ?|\\n", "character 2"), ("[^a]?", "character 0"), (" ", "demands"), ("[ ]{1,2}", "demands"),
     ("( )?", "character 0"), ("\\d?", "character 0")],
)  # fmt: skip
def test_white_space_that_is_endless_or_none(pattern: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        whitespace_pattern(pattern)
    with pytest.raises(GrammarError, match=message):
        grammar_of(Constraint("json_schema", "{}", pattern), "")
