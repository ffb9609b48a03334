"""Calls that a format enforces are those that its parser reads: texts sampled from its grammars."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from typing import Any

import jsonschema
import numpy as np
import pytest
from helpers.vocabularies import embedded
from sglang.semantics.tool_calls.deltas import joined
from sglang.semantics.tool_calls.tool_format import (
    Form,
    Tool,
    ToolFormat,
    constraint_of,
    either,
    schema,
)
from sglang.semantics.tool_calls.tool_formats import Hermes, Llama3, Mistral, Pythonic, Tiny
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.guidance import GuidanceGrammar, grammar_of
from sglang.srt.requests.replies.reasoning_parser import PARSERS, ThoughtParser, behind_thought

FORMS: dict[str, ToolFormat] = {
    "hermes": Hermes(), "llama3": Llama3(), "mistral": Mistral(), "mistral by name": Mistral(True),
    "pythonic": Pythonic(), "tiny": Tiny(),
}  # fmt: skip
SHORT = {"type": "string", "maxLength": 3}
SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": SHORT, "unit": {"enum": ["C", "F", None]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14}, "ok": {"$ref": "#/$defs/ok"},
        },
        "required": ["days", "city"], "additionalProperties": False,
        "$defs": {"ok": {"type": "boolean"}},
    },
    "optional": {
        "type": "object", "properties": {"a": SHORT, "b": {"const": True}, "c": {"type": "null"}},
        "additionalProperties": False,
    },
    "odd": {
        "type": "object", "properties": {"b c": {"type": "array", "items": SHORT, "maxItems": 2}},
        "required": ["b c"], "additionalProperties": False,
    },
    "none": {"type": "object", "properties": {}, "additionalProperties": False},
    "calc": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"],
             "additionalProperties": False},
}  # fmt: skip
TOOLS = tuple(Tool(i, name, value, True, {}) for i, (name, value) in enumerate(SCHEMAS.items()))
ANSWER = {"type": "object", "properties": {"x": SHORT}, "required": ["x"],
          "additionalProperties": False}  # fmt: skip
SEEDS = range(16)
CLOSERS = set(b'"<>()/]}tok')


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return embedded()


def drawn(
    form: Form, vocabulary: Vocabulary, seed: int, begun: str = "", most: int = 150
) -> tuple[str, bool]:
    """A random text of the form that begins as ``begun``, and whether it came to its end. Many
    tokens close something where they can: the end of a free text is one token of thousands."""
    matcher = compiled(json.dumps(form), vocabulary).matcher()
    rng, data = random.Random(seed), begun.encode()
    for token in vocabulary.encode([begun])[0]:
        assert matcher.advance(token), begun
    for _ in range(most):
        bits = np.unpackbits(np.frombuffer(matcher.mask(), np.uint8), bitorder="little")
        allowed = [int(token) for token in np.flatnonzero(bits)]
        assert allowed, data
        drawable = [token for token in allowed if token not in vocabulary.eos]
        if len(drawable) < len(allowed) and (not drawable or rng.random() < 0.3):
            return data.decode("utf-8", "replace"), True
        closing = [token for token in drawable if set(vocabulary.tokens[token]) & CLOSERS]
        token = rng.choice(closing if closing and rng.random() < 0.4 else drawable)
        assert matcher.advance(token)
        data += vocabulary.tokens[token]
    return data.decode("utf-8", "replace"), False


@lru_cache
def compiled(form: str, vocabulary: Vocabulary) -> GuidanceGrammar:
    return GuidanceGrammar(grammar_of(constraint_of(json.loads(form)), ""), vocabulary)


def read(form: ToolFormat, text: str) -> tuple[str, list[tuple[str, Any]]]:
    parser = form.parser(TOOLS)
    words, calls = joined([*parser.feed(text), *parser.finish()])
    return words, [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("many", [True, False])
def test_what_must_be_a_call_is_read_as_calls_that_fit(
    name: str, many: bool, vocabulary: Vocabulary
) -> None:
    seen = set()
    for seed in SEEDS:
        text, ended = drawn(FORMS[name].calls(TOOLS, many), vocabulary, seed)
        if not ended:
            continue
        words, calls = read(FORMS[name], text)
        assert words == "", text
        assert calls if many else len(calls) == 1
        for called, arguments in calls:
            jsonschema.validate(arguments, SCHEMAS[called])
            seen.add(called)
    assert len(seen) >= 3


BEGUN = {
    "hermes": 'So <tool_call>\n{"name": "weather", "arguments": {"',
    "llama3": '{"name": "weather", "parameters": {"', "pythonic": "[weather(",
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"',
    "mistral by name": 'So [TOOL_CALLS]weather[ARGS]{"', "tiny": "So <tool>weather(",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_in_free_text_a_call_of_a_strict_tool_fits(name: str, vocabulary: Vocabulary) -> None:
    seen = set()
    for seed in SEEDS:
        begun = BEGUN[name] if seed % 2 else ""
        text, ended = drawn(FORMS[name].tagged(TOOLS), vocabulary, seed, begun)
        if ended:
            calls = read(FORMS[name], text)[1]
            seen.add(bool(calls))
            assert calls or not begun
            for called, arguments in calls:
                jsonschema.validate(arguments, SCHEMAS[called])
    assert seen == {True, False}


@pytest.mark.parametrize("name", FORMS)
def test_a_call_or_an_answer(name: str, vocabulary: Vocabulary) -> None:
    kinds = set()
    for seed in SEEDS:
        form = either(FORMS[name].calls(TOOLS[:1], False), schema(ANSWER))
        text, ended = drawn(form, vocabulary, seed)
        if ended:
            words, calls = read(FORMS[name], text)
            kinds.add(bool(calls))
            assert bool(words) != bool(calls)
            if not calls:
                jsonschema.validate(json.loads(words), ANSWER)
    assert kinds == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, None, False])
@pytest.mark.parametrize("name", ["qwen3", "mistral", "kimi"])
def test_what_stands_behind_a_thought(
    name: str, inside: bool | None, vocabulary: Vocabulary
) -> None:
    marks, thoughts = PARSERS[name], set()
    form = behind_thought(marks, inside, schema(ANSWER))
    for seed in SEEDS:
        begin = f"{marks.begin}\n" if inside is None else ""
        begun = f"{begin}I see a <{marks.end[:3]} {{.{marks.end}" if inside or seed % 2 else ""
        text, ended = drawn(form, vocabulary, seed, "" if inside is False else begun)
        if ended:
            parser = ThoughtParser(marks, bool(inside))
            _, answer = (a + b for a, b in zip(parser.feed(text), parser.finish()))
            jsonschema.validate(json.loads(answer), ANSWER)
            thoughts.add(parser.chars > 0)
    assert thoughts == {True: {True}, None: {True, False}, False: {False}}[inside]
