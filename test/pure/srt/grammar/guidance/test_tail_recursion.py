"""Recursion at the ends of rules: written as repetition, of the same language, at a steady cost."""

from __future__ import annotations

import json
import os
from itertools import product

import pytest
from helpers.vocabularies import embedded
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.ir.constraint import Constraint
from sglang.srt.grammar.guidance import GuidanceGrammar, grammar_of
from sglang.srt.grammar.guidance.gbnf import (
    GbnfChars,
    GbnfEither,
    GbnfNode,
    GbnfRef,
    GbnfRepeat,
    GbnfSequence,
    GbnfText,
    either,
    parse,
    repeat,
    sequence,
)
from sglang.srt.grammar.guidance.guidance_tokenizer import TOKENIZERS
from sglang.srt.grammar.guidance.lark_recursion import lark_without_tail_recursion
from sglang.srt.grammar.guidance.tail_recursion import without_tail_recursion
from sglang.srt.grammar.guidance.trial_text import byte_vocabulary
from sglang.srt.grammar.guidance.work_limits import limits
from sglang.srt.grammar.regex.charset import single

CASES = int(os.environ.get("GRAMMAR_CASES", "150"))
LONGEST = 5  # characters of the texts that are enumerated
NAMES = ("root", "one", "two")
Bodies = dict[str, GbnfNode]


def texts(bodies: Bodies) -> dict[str, set[str]]:
    """Texts of at most LONGEST characters by rule: the least fixed point."""
    known: dict[str, set[str]] = {name: set() for name in bodies}
    while True:
        new = {name: expand(body, known) for name, body in bodies.items()}
        if new == known:
            return known
        known = new


def expand(node: GbnfNode, known: dict[str, set[str]]) -> set[str]:
    if isinstance(node, GbnfRef):
        return known[node.name]
    if isinstance(node, GbnfChars):
        return {chr(one) for low, end in node.members.ranges() for one in range(low, end)}
    if isinstance(node, GbnfText):
        return {node.text}
    if isinstance(node, GbnfEither):
        return set().union(*(expand(part, known) for part in node.parts))
    if isinstance(node, GbnfRepeat):
        part, power, found = expand(node.part, known), {""}, set[str]()
        for count in range(LONGEST + node.low + 1 if node.high is None else node.high + 1):
            found |= power if count >= node.low else set()
            power = joined(power, part)
        return found
    assert isinstance(node, GbnfSequence)
    found = {""}
    for child in node.parts:
        found = joined(found, expand(child, known))
    return found


def joined(left: set[str], right: set[str]) -> set[str]:
    return {a + b for a, b in product(left, right) if len(a + b) <= LONGEST}


def mixed(inner: st.SearchStrategy[GbnfNode]) -> st.SearchStrategy[GbnfNode]:
    several = st.lists(inner, min_size=1, max_size=3)
    counts = st.sampled_from([(0, 1), (0, 1), (0, None), (1, None), (2, 2)])
    return st.one_of(
        several.map(sequence),
        several.map(either),
        st.tuples(inner, counts).map(lambda found: repeat(found[0], *found[1])),
    )


letters = st.sampled_from("abc").map(lambda char: GbnfChars(single(ord(char))))
leaves: st.SearchStrategy[GbnfNode] = st.one_of(
    letters, st.sampled_from(NAMES).map(lambda name: GbnfRef(name, 0))
)
trees = st.recursive(leaves, mixed, max_leaves=8)


@pytest.mark.slow
@settings(max_examples=4 * CASES, deadline=None)
@given(trees, trees, trees)
def test_the_language_stays_the_same(root: GbnfNode, one: GbnfNode, two: GbnfNode) -> None:
    bodies: Bodies = {
        "root": GbnfEither((root, GbnfChars(single(ord("a"))))),
        "one": GbnfEither((sequence([GbnfChars(single(ord("b"))), GbnfRef("root", 0)]), one)),
        "two": GbnfEither((two, sequence([GbnfRef("two", 0), GbnfChars(single(ord("c")))]))),
    }
    after = without_tail_recursion(bodies)
    assert texts(after) == texts(bodies)


@pytest.mark.parametrize(
    "rule",
    [
        '"" | [a-c] root',
        '"a" | "b" root | "c" root',
        '"a" | root "b"',
        '"a" | root "+" root',
        'root root root | root root | [a-z ]',
        '("a" root)?',
        '"a" ("b" | "c" root)',
        '"a" other\nother ::= "" | "b" root',
        '"x" one | "y"\none ::= "a" two | ""\ntwo ::= "b" root | "c" one',
    ],
)  # fmt: skip
def test_recursion_at_an_end_is_gone(rule: str) -> None:
    rules = {name: one.body for name, one in parse(f"root ::= {rule}").items()}
    after = without_tail_recursion(rules)
    assert "GbnfRef(name='root'" not in repr(after["root"])


def test_recursion_in_the_middle_stays() -> None:
    rules = {name: one.body for name, one in parse('root ::= "(" root ")" | "x"').items()}
    assert without_tail_recursion(rules) == rules


def test_what_would_grow_too_large_stays() -> None:
    many = "\n".join(f'r{i} ::= "a" r{i + 1} | "b" r{(i * 7 + 1) % 30}' for i in range(30))
    text = f'root ::= r0\n{many}\nr30 ::= "" | "c" r0'
    rules = {name: one.body for name, one in parse(text).items()}
    assert without_tail_recursion(rules) == rules


# -- Lark ------------------------------------------------------------------------------------------

LARK = [
    'start: s "."\ns: "" | "a" s',
    'start: list\nlist: NUM | NUM "," list // numbers\nNUM: /[01]+/',
    '?start: a\na: "a" b |\nb: "b" [a]',
    'start: (A | B start)\nA: "a"\nB: "b"',
    'start: s\ns: s "a" | s "b" s | "c" | "a".."b"',
    'start: s\ns: "a" s{1} | "b"?\n   | /[ab]/ s\n%ignore "c"',
    "start: s\ns: <[97]> s | <[98-99]>",
]


@pytest.mark.parametrize("text", LARK)
def test_lark_is_rewritten_and_means_the_same(text: str) -> None:
    after = lark_without_tail_recursion(text)
    assert after != text
    assert accepted(after) == accepted(text)


@pytest.mark.parametrize(
    "text",
    [
        'start: s\ns[capture="x"]: "a" s | "b"',
        'start: s\ns: "a" s -> more | "b"',
        'start: s\ns: "a" s | "b"\ns: "c"',
        'start: "a" start | other{x}',
        'start: "(" start ")" | "x" // start: "a" start',
        'start: T\nT: "a" "b" | "c"',
        'start: "a" start | "unclosed',
        'start: @x start | "b"',
    ],
)
def test_what_is_not_plain_stays_as_written(text: str) -> None:
    assert lark_without_tail_recursion(text) == text


@pytest.mark.slow
@settings(max_examples=CASES, deadline=None)
@given(trees, trees)
def test_random_lark_means_the_same(root: GbnfNode, one: GbnfNode) -> None:
    text = f'start: {lark(root)} | "a"\none: {lark(one)} | "b" start\n'
    assert accepted(lark_without_tail_recursion(text)) == accepted(text)


def lark(node: GbnfNode) -> str:
    """A tree in Lark's notation; ``two`` is left out, and ``root`` is the start."""
    if isinstance(node, GbnfRef):
        return {"root": "start", "one": "one", "two": '"c"'}[node.name]
    if isinstance(node, GbnfChars):
        return json.dumps(chr(node.members.points[0]))
    if isinstance(node, GbnfText):
        return json.dumps(node.text)
    if isinstance(node, GbnfEither):
        return f"({' | '.join(map(lark, node.parts))})"
    if isinstance(node, GbnfRepeat):
        return f"({lark(node.part)}){{{node.low},{'' if node.high is None else node.high}}}"
    assert isinstance(node, GbnfSequence)
    return f"({' '.join(map(lark, node.parts))})" if node.parts else '""'


def accepted(text: str) -> set[str]:
    """Texts of at most three of a few characters that a grammar of llguidance accepts."""
    grammar = GuidanceGrammar(text, byte_vocabulary())
    found: set[str] = set()
    todo = [(grammar.matcher(), "")]
    while todo:
        matcher, written = todo.pop()
        if matcher.accepting:
            found.add(written)
        for char in "abc01,." if len(written) < 3 else "":
            after = matcher.fork()
            if after.advance(ord(char)):
                todo.append((after, written + char))
    return found


# -- cost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "\\"" s "\\""\ns ::= "" | [^"\\\\\\x00-\\x1F] s',
        'root ::= "[" list "]"\nlist ::= item | item "," list\nitem ::= [a-z ]+ | "[" list "]"',
        'root ::= a | "(" root ")"\na ::= "(" a | b\nb ::= [a-z ] a | ""',
        'start: "(" s ")"\ns: "" | /[a-z ]/ s',
    ],
)
def test_a_step_costs_the_same_after_1000_characters(text: str) -> None:
    """Counted in the parser items of one mask."""
    from llguidance import LLInterpreter

    vocabulary = embedded()
    tokenizer, _ = TOKENIZERS.get(vocabulary)
    grammar = grammar_of(Constraint("ebnf", text), "")
    walker = LLInterpreter(tokenizer, grammar, enable_backtrack=False, enable_ff_tokens=False,
                           log_level=0, limits=limits())  # fmt: skip
    walker.start_without_prompt()
    begin = {'root ::= "\\': '"', 'root ::= "[': "["}.get(text[:11], "(")
    items = []
    for token in vocabulary.encode([begin + 50 * "the quick brown fox "])[0]:
        mask, report = walker.compute_mask()
        assert mask is not None, report
        assert mask[token]
        stats = [part["stats"] for part in json.loads(report)["progress"] if "stats" in part]
        items.append(max((one["all_items"] for one in stats), default=0))
        walker.commit_token(token)
    assert len(items) > 300
    assert max(items[-50:]) <= max(items[:50])
