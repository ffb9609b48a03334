"""Constraints made to be slow, large or deep: a grammar or a clear error, and service goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.vocabularies import embedded
from sglang.ir.constraint import Constraint
from sglang.srt.config import GrammarConfig
from sglang.srt.grammar.grammar_compiler import GrammarCompiler
from sglang.srt.grammar.grammar_protocol import CompiledGrammar, GrammarError

pytestmark = pytest.mark.slow  # starts processes

SECONDS = 20.0  # a busy machine must not turn a good constraint into a late one
MESSAGE = 600  # characters: an error does not repeat a constraint of 256 KB


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(embedded, GrammarConfig(), seconds=SECONDS)
    yield made
    made.close()


def end(compiler: GrammarCompiler, constraint: Constraint) -> CompiledGrammar | None:
    """The grammar, with its first mask made, or None after a GrammarError that says something."""
    message = ""
    try:
        grammar = compiler.submit(constraint).result(120)
        assert len(grammar.matcher().mask()) == 4 * embedded().words
        return grammar
    except GrammarError as error:
        message = str(error)
    assert 5 < len(message) < MESSAGE, message
    return None


def serves(compiler: GrammarCompiler) -> None:
    """A constraint of every path still becomes a grammar."""
    compiler._cache._grammars.clear()
    for kind, text in GOOD:
        grammar = end(compiler, Constraint(kind, text))
        assert grammar is not None, kind
        assert any(grammar.matcher().mask()), kind


GOOD = [
    ("regex", r"[a-z]+@\w{1,10}"),
    ("choices", '["yes", "no"]'),
    ("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}'),
    ("ebnf", 'start: "a" start | "b"'),
]

REGEXES = {
    "product": "(((.{1,30}){1,30}){1,30})",
    "determinising": "(a|b)*a(a|b){40}",
    "alternatives": "|".join(f"{number:b}.*" for number in range(300)),
    "nested stars": "((((a*)*)*)*)*b",
    "same alternatives": "(a|a|a|a|a|a|a|a)*" * 50 + "b",
    "counted": "(x{1,1000}){1,1000}",
    "huge count": "a{99999999999}",
    "count overflow": "a{1," + "9" * 4000 + "}",
    "deep groups": "(" * 1900 + "a" + ")" * 1900,
    "deep optional": "(a" * 800 + ")?" * 800,
    "unclosed": "(" * 4000,
    "brackets": "[" * 4000,
    "bars": "|" * 4000,
    "backslash": "\\",
    "unicode words": r"(\w{1,300}\s){1,300}",
    "planes": "[\U00010000-\U0010ffff]{1,900}",
    "every set": "".join(f"[{chr(0x400 + n)}-{chr(0x800 + n)}]*" for n in range(300)),
    "ignoring case": "(?i)" + "[a-zà-ÿа-я]{1,99}" * 100,
    "look ahead": "".join(f"(?=.*{chr(97 + n)})" for n in range(26)) + ".*",
    "look behind": "(?<=" * 500 + "a" + ")" * 500,
    "back reference": r"(a+)(b+)\1\2" * 100,
    "nul": "a\0b" * 1000,
    "flags": "(?i)" * 1000,
    "classes": r"\p{L}" * 800,
    "nothing": r"[^\s\S]",
}


@pytest.mark.parametrize("name", REGEXES)
def test_regexes(compiler: GrammarCompiler, name: str) -> None:
    end(compiler, Constraint("regex", REGEXES[name]))
    serves(compiler)


def nest(depth: int, before: str, middle: str, after: str) -> str:
    return before * depth + middle + after * depth


def doubling(depth: int) -> str:
    """2^depth ways through nested oneOfs."""
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"oneOf": [{"type": "array", "items": schema}, {"type": "array", "items": schema},
                            {"type": "null"}]}  # fmt: skip
    return json.dumps(schema)


SCHEMAS = {
    "deep arrays": nest(9000, '{"type":"array","items":', "true", "}"),
    "deep objects": nest(4000, '{"properties":{"a":', "true", "}}"),
    "deep brackets": "[" * 200_000,
    "deep allOf": nest(3000, '{"allOf":[', "true", "]}"),
    "doubling": doubling(9),
    "enum": json.dumps({"enum": [f"value {number}" for number in range(9_000)]}),
    "enum beyond": json.dumps({"enum": list(range(30_000))}),
    "ref to itself": '{"$ref": "#"}',
    "ref in a circle": '{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},'
    '"$ref":"#/$defs/a"}',
    "ref to all": '{"allOf": [{"$ref": "#"}, {"$ref": "#"}]}',
    "ref to any": '{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}',
    "ref to nowhere": '{"$ref": "#/$defs/nothing"}',
    "ref away": '{"$ref": "https://example.com/schema.json"}',
    "ref doubling": json.dumps({
        "$ref": "#/$defs/d0",
        "$defs": {f"d{n}": {"type": "object", "required": ["a", "b"], "properties": {
            "a": {"$ref": f"#/$defs/d{n + 1}"}, "b": {"$ref": f"#/$defs/d{n + 1}"}}}
            for n in range(40)} | {"d40": {"type": "null"}},
    }),
    "infinite": '{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}',
    "properties": json.dumps({"type": "object", "properties": {
        f"property {number}": {"type": "string"} for number in range(5000)}}),
    "required": json.dumps({"type": "object", "required": [f"r{n}" for n in range(5000)]}),
    "lengths": '{"type":"string","minLength":1000000000}',
    "items": '{"type":"array","minItems":100000000,"items":{"type":"integer"}}',
    "properties counted": '{"type":"object","minProperties":1000000000}',
    "multiples": '{"type":"number","multipleOf":1e-300}',
    "range": '{"type":"number","minimum":-1e308,"maximum":1e308}',
    "large integer": '{"type":"integer","minimum":' + "9" * 4000 + "}",
    "pattern": '{"type":"string","pattern":"(((.{1,90}){1,90}){1,90})"}',
    "pattern unclosed": '{"type":"string","pattern":"((("}',
    "pattern types": '{"type":"string","pattern":5}',
    "pattern properties": json.dumps({"type": "object", "patternProperties": {
        f"(a|b)*a(a|b){{{n}}}": {"type": "integer"} for n in range(40)}}),
    "type": '{"type":"gibberish"}',
    "types": '{"type":5,"properties":[],"items":"a","enum":{}}',
    "false": "false",
    "null": "null",
    "not a number": '{"minimum":NaN}',
    "not JSON": "{'a': 1}",
    "empty": "",
    "nul": '{"const":"\\u0000"}',
    "surrogate": '{"const":"\\ud800"}',
    "long": json.dumps({"const": "x" * 250_000}),
    "unsatisfiable": '{"type":"integer","minimum":5,"maximum":4}',
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(compiler: GrammarCompiler, name: str) -> None:
    end(compiler, Constraint("json_schema", SCHEMAS[name]))
    serves(compiler)


def recursive(count: int) -> dict[str, str]:
    """Schemas of ``count`` alternatives that refer back to the whole."""
    texts = range(count)
    members = {f"a{n}": {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"const": n}]}
               for n in texts}  # fmt: skip
    arrays = [{"type": "array", "items": {"$ref": f"#/$defs/a{n}"}} for n in texts]
    objects = [
        {"type": "object", "additionalProperties": False,
         "properties": {f"k{n}": {"$ref": "#"}, "v": {"type": "integer"}}}
        for n in texts
    ]  # fmt: skip
    return {
        "arrays": json.dumps({"anyOf": arrays, "$defs": members}),
        "objects": json.dumps({"anyOf": objects}),
    }


@pytest.mark.parametrize("name", recursive(1))
def test_recursive_alternatives_name_their_limit(compiler: GrammarCompiler, name: str) -> None:
    """More symbols than llguidance can number make it panic. The request with them is refused
    with the reason; a grammar in use goes on, and the compile process lives."""
    neighbour = compiler.submit(Constraint(*GOOD[2])).result(120).matcher()
    before, killed = neighbour.mask(), compiler.killed
    with pytest.raises(GrammarError, match="rules have more than 65,524 symbols; make it smaller"):
        compiler.submit(Constraint("json_schema", recursive(100)[name])).result(120)
    assert neighbour.mask() == before
    assert compiler.killed == killed
    assert end(compiler, Constraint("json_schema", recursive(10)[name])) is not None
    with pytest.raises(GrammarError, match="too much work to compile; simplify it"):
        compiler.submit(Constraint("json_schema", recursive(200)[name])).result(120)
    serves(compiler)


GRAMMARS = {
    "left": 'start: start "a" | "a"',
    "ambiguous": 'start: start start | "a" | ""',
    "circle": "start: other\nother: start",
    "undefined": "start: nothing",
    "no start": 'other: "a"',
    "empty": "",
    "deep": "start: " + nest(20_000, "(", '"a"', ")"),
    "deep stars": "start: " + nest(20_000, "(", '"a"', ")*"),
    "alternatives": "start: " + " | ".join(f'"word {number}"' for number in range(9_000)),
    "rules": "\n".join(["start: r0"] + [f"r{n}: r{n + 1} r{n + 1} | \"a\"" for n in range(3000)]
                       + ['r3000: "a"']),
    "pattern": "start: /(((.{1,90}){1,90}){1,90})/",
    "not Lark": "start: } { ] [",
    "GBNF": 'root ::= "a" root | "b"',
    "GBNF circle": "root ::= root",
    "GBNF deep": "root ::= " + nest(20_000, "(", '"a"', ")"),
    "directive": "%import common.NUMBER\nstart: NUMBER",
    "unknown directive": "%gibberish\nstart: \"a\"",
    "nul": 'start: "\0"',
    "repeats": 'start: "a"{1000000000}',
    "special": "start: <|im_start|>",
}  # fmt: skip


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars(compiler: GrammarCompiler, name: str) -> None:
    end(compiler, Constraint("ebnf", GRAMMARS[name]))
    serves(compiler)


TAGS = {
    "empty": "",
    "list": "[]",
    "null": "null",
    "nothing": "{}",
    "wrong types": '{"structures": 5, "triggers": [5]}',
    "no trigger": '{"structures": [{"begin":"<a>","schema":{},"end":"</a>"}], "triggers": []}',
    "many": json.dumps({
        "structures": [{"begin": f"<f{n}>", "schema": {"type": "object"}, "end": "</f>"}
                       for n in range(2000)],
        "triggers": ["<f"]}),
    "evil schema": json.dumps({
        "structures": [{"begin": "<a>", "schema": {"$ref": "#"}, "end": "</a>"}],
        "triggers": ["<a>"]}),
    "deep": nest(50_000, '{"structures":[', "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", TAGS)
def test_structural_tags(compiler: GrammarCompiler, name: str) -> None:
    end(compiler, Constraint("structural_tag", TAGS[name]))
    serves(compiler)


CHOICES = {
    "ten thousand": json.dumps([f"choice number {number}" for number in range(10_000)]),
    "one of a megabyte": json.dumps(["x" * (1 << 20)])[: 1 << 20][:-2] + '"]',
    "long prefixes": json.dumps(["a" * length for length in range(1, 1400)]),
    "binary": json.dumps([f"{number:016b}" for number in range(10_000)]),
    "emoji": json.dumps(["🙂" * length for length in range(1, 400)], ensure_ascii=False),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_choices(compiler: GrammarCompiler, name: str) -> None:
    end(compiler, Constraint("choices", CHOICES[name]))
    serves(compiler)


def test_none_of_these_was_late(compiler: GrammarCompiler) -> None:
    """Runs last in this file: limits that count have stopped them, not the clock. Chains of
    thousands of rules are more than llguidance's stack: two children may have ended so."""
    assert compiler.killed == 0
    assert sum(process.started - 1 for process in compiler._processes) <= 2
