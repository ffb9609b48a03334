"""GBNF: what a grammar allows is what it says, character by character; errors name the position."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import lru_cache, reduce
from itertools import product

import numpy as np
import pytest
from helpers.json_acceptor import BYTES, accepts_text
from helpers.vocabularies import embedded
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.ir.constraint import Constraint
from sglang.srt.grammar.compile_plan import make_plan
from sglang.srt.grammar.grammar_protocol import GrammarError, Matcher
from sglang.srt.grammar.guidance import GuidanceGrammar, grammar_of

CASES = int(os.environ.get("GRAMMAR_CASES", "150"))
HARD = '"abab"'
TEXTS = [""] + ["".join(text) for size in range(1, 5) for text in product("abé", repeat=size)]
NESTED = ' | "~" root "~"'  # makes any grammar a recursive one


@lru_cache(maxsize=256)
def compiled(text: str) -> GuidanceGrammar:
    return GuidanceGrammar(grammar_of(Constraint("ebnf", text), ""), BYTES)


def takes(grammar: str, text: str) -> bool:
    return accepts_text(compiled(grammar).matcher(), text)


def language(grammar: str) -> set[str]:
    """Return the TEXTS that a grammar accepts, found by walking it once."""
    found: set[str] = set()

    def walk(matcher: Matcher, text: str) -> None:
        if matcher.accepting:
            found.add(text)
        for char in "abé" if len(text) < 4 else "":
            after = matcher.fork()
            if all(after.advance(byte) for byte in char.encode()):
                walk(after, text + char)

    walk(compiled(grammar).matcher(), "")
    return found


JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""

RIGHT: list[tuple[str, list[str], list[str]]] = [
    ('root ::= word " " word\nword ::= [a-z] [a-z ]*', ["a b", "a b c", "a  b"], ["a", "a ", " a"]),
    ('root ::= ("a" ("ab" | "a") "b")', ["aab", "aabb"], ["ab", "aaab"]),
    ('root ::= "<t>" thought "</t>"\nthought ::= ([^<] | "<" [^/])*',
     ["<t>ab</t>", "<t></t>", "<t><b></t>", "<t>日</t>"], ["<t>a", "<t></b></t>", "<t></t></t>"]),
    ('root ::= ("b"{2})?', ["", "bb"], ["b", "bbb"]),
    ('root ::= (("a")*)*', ["", "a", "aaa"], ["b"]),
    ('root ::= "a"{0} "b"', ["b"], ["ab"]),
    ('root ::= "a"{0}', [""], ["a"]),
    ('root ::= ""', [""], ["a"]),
    ('root ::=\nother ::= "a"', [""], ["a"]),
    ('root ::= start\nstart ::= "a" end\nend ::= "b"', ["ab"], ["a"]),
    ('root ::= Ab ab r-1 r_1\nAb ::= "1"\nab ::= "2"\nr-1 ::= "3"\nr_1 ::= "4"',
     ["1234"], ["1134", "1233"]),
    ('root ::= "a"\n  | "b" # and\n  # more\n  | "c"\n', ["a", "b", "c"], ["ab", ""]),
    ('root ::= "%json {}" x\nx ::= "//@ \\"x\\""', ['%json {}//@ "x"'], ["{}"]),
    ('root ::= "a"{2,} "b"{,2} "c"{1,2} "ab"{2}', ["aacabab", "aaabbccabab"], ["acabab", "aacab"]),
    (r'root ::= "\n\r\t\\\"\x41\u00e9\U0001F642\[\]"', ['\n\r\t\\"Aé🙂[]'], ["A"]),
    (r'root ::= [\n\]\x41-\x43é-ë\U0001F642-] [-a] [^\]] [a^]',
     ["\n-xa", "]ax^", "Ba\n^", "ê-éa", "🙂a🙂a", "--xa"], ["Da]a", "\naab"]),
    (r'root ::= [^a-z\u00e9] . .', ["A\n🙂", "è\0a", "\u2028aa"], ["aaa", "éaa", "Aa"]),
    ('root ::= "日本" | "日曜" | [é] | [è] "x"', ["日本", "日曜", "é", "èx"], ["日", "è", "éx"]),
    ('root ::= a a | "abab"\na ::= "ab"', ["abab"], ["ab"]),
    ('root ::= [xy] a a | "xabab" | "xab" a\na ::= "ab"', ["xabab", "yabab"], ["xab"]),
    ('root ::= a{2} | "abab" | a "a" [b]\na ::= "ab"', ["abab"], ["ab", "ababab"]),
    ('root ::= "a";\r\nother ::= "b"', ["a"], ["b"]),
    ('root ::= "a"\n  "b"', ["ab"], ["a"]),
    ('root ::= "<|im_end|>" "/" "//x"', ["<|im_end|>///x"], ["//x"]),
    ('root ::= "(" root ")" root | ""', ["", "()", "(())()"], ["(", ")(", "())"]),
    ('root ::= root "a" | "b"', ["b", "baa"], ["a", "ab"]),
    ('root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= num | "(" expr ")"\nnum ::= [0-9]+ ',
     ["1", "12+(3*45)", "((1))"], ["", "1+", "(1", "1 "]),
    ('root ::= [a-z]+ [a-m]+ "." root | "!"', ["ab.!", "zzz" + "a.!"], ["a.!", "az.!"]),
    ('root ::= "ab" "c" root | "a" "bd" root | "abc" "d"', ["abcd", "abcabcd", "abdabcd"], ["abc"]),
    ('root ::= "é"+ "è" root | "é" "ê" | "x"', ["ééèx", "éê", "x"], ["éè", "éêx"]),
]  # fmt: skip


@pytest.mark.parametrize(("grammar", "right", "wrong"), RIGHT, ids=range(len(RIGHT)))
def test_what_a_grammar_allows(grammar: str, right: list[str], wrong: list[str]) -> None:
    for text in right:
        assert takes(grammar, text), text
    for text in wrong:
        assert not takes(grammar, text), text
    plan = make_plan(Constraint("ebnf", grammar), "auto", "")
    assert (plan.path, plan.error) == ("llguidance", "")


DOCUMENTS = [
    {}, {"a": 1}, {"a": [1, 2.5, -3, "x\n\"y\\", {"é🙂": None, "b": [True, False, []]}], "c": {}},
    {"": "", "e": 1e22, "deep": [[[[{}]]]]},
]  # fmt: skip


@pytest.mark.parametrize("document", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_json(document: object) -> None:
    for ascii_only in (True, False):
        text = json.dumps(document, ensure_ascii=ascii_only, separators=(", ", ": "))
        assert takes(JSON, text)
        matcher = compiled(JSON).matcher()
        for byte in text.encode()[:-1]:
            assert matcher.advance(byte)
            assert not matcher.accepting
        assert not takes(JSON, text + "}")
    for text in [
        '{"a":}',
        "[]",
        '{ "a":1} }',
        '{"a":01}',
        '{"a":"\\x"}',
        '{"a":"\t"}',
        '{"a":tru}',
    ]:
        assert not takes(JSON, text)


def test_json_is_planned() -> None:
    plan = make_plan(Constraint("ebnf", JSON), "auto", "")
    assert (plan.path, plan.error) == ("llguidance", "")


@pytest.mark.parametrize(
    "grammar", [JSON, 'root ::= [a-z ]+ ". "', 'root ::= "say " [a-z ]+ "!" root | "."']
)
def test_masks_are_what_may_be_taken(grammar: str) -> None:
    known = embedded()
    made = GuidanceGrammar(grammar_of(Constraint("ebnf", grammar), ""), known, canonical=False)
    for text in ("", '{"a b', '{"a": 12', "some words", "say it!"):
        matcher = made.matcher()
        if all(matcher.advance(token) for token in known.encode([text])[0]):
            mask = np.unpackbits(np.frombuffer(matcher.mask(), np.uint8), bitorder="little")
            for token in range(known.size):
                if token not in known.eos:
                    assert matcher.fork().advance(token) == bool(mask[token]), (text, token)


# -- random grammars -------------------------------------------------------------------------------

Pair = tuple[str, str]  # GBNF, and a pattern of re

atoms = st.sampled_from([
    ('"a"', "a"), ('"b"', "b"), ('"ab"', "ab"), ('"aba"', "aba"), ('"éa"', "éa"), ('""', ""),
    ("[ab]", "[ab]"), ("[^a]", "[^a]"), (".", "."), ("[é]", "é"), (r"[\u00e8-\u00ea]", "[è-ê]"),
    (r'"\x62\u00E9"', "bé"),
])  # fmt: skip
counts = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,3}", "{2,}", "{0}", "{,1}"])


def larger(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    several = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        several.map(lambda parts: (" ".join(f"({one})" for one, _ in parts),
                                   "".join(f"(?:{one})" for _, one in parts))),
        several.map(lambda parts: (" |\n ".join(one for one, _ in parts),
                                   "|".join(one for _, one in parts))),
        st.tuples(inner, counts).map(
            lambda found: (f"({found[0][0]}){found[1]}",
                           f"(?:{found[0][1]}){found[1].replace('{,', '{0,')}")
        ),
    )  # fmt: skip


trees = st.recursive(atoms, larger, max_leaves=9)


def wanted(pattern: str) -> set[str]:
    rule = re.compile(pattern, re.DOTALL)
    return {text for text in TEXTS if rule.fullmatch(text)}


@pytest.mark.slow
@settings(max_examples=CASES, deadline=None)
@given(trees)
def test_random_grammars(tree: Pair) -> None:
    right = wanted(tree[1])
    assert language("root ::= " + tree[0]) == right
    assert language("root ::= " + tree[0] + NESTED) == right


@pytest.mark.slow
@settings(max_examples=CASES, deadline=None)
@given(trees, trees, trees)
def test_random_rules(one: Pair, two: Pair, three: Pair) -> None:
    rules = f"one ::= {one[0]}\ntwo ::= one | ({two[0]}) one?\nroot ::= ({three[0]}) two one"
    second = f"(?:{one[1]}|(?:{two[1]})(?:{one[1]})?)"
    right = wanted(f"(?:{three[1]}){second}(?:{one[1]})")
    assert language(rules) == right
    assert language(rules + NESTED) == right


# Recursion: rules as functions from the languages of all rules (their texts of at most 4
# characters) to their own, of which the least fixed point is what the grammar means.

Languages = dict[str, frozenset[str]]
Expression = tuple[str, Callable[[Languages], frozenset[str]]]


def joined(left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    return frozenset(a + b for a in left for b in right if len(a + b) <= 4)


def plain(pair: Pair) -> Expression:
    texts = frozenset(wanted(pair[1]))
    return pair[0], lambda known: texts


def named(name: str) -> Expression:
    return name, lambda known: known[name]


def times(one: Expression, low: int, high: int | None, sign: str) -> Expression:
    def texts(known: Languages) -> frozenset[str]:
        base, power, found = one[1](known), frozenset([""]), frozenset[str]()
        for count in range((low + 5 if high is None else high) + 1):
            found |= power if count >= low else frozenset()
            power = joined(power, base)
        return found

    return f"({one[0]}){sign}", texts


def chained(parts: list[Expression]) -> Expression:
    return " ".join(f"({text})" for text, _ in parts), lambda known: reduce(
        joined, (texts(known) for _, texts in parts)
    )


def any_of(parts: list[Expression]) -> Expression:
    return " | ".join(text for text, _ in parts), lambda known: frozenset[str]().union(
        *(texts(known) for _, texts in parts)
    )


def mixed(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    several = st.lists(inner, min_size=1, max_size=4)
    ways = [(0, None, "*"), (1, None, "+"), (0, 1, "?"), (2, 2, "{2}"), (1, 3, "{1,3}"),
            (2, None, "{2,}")]  # fmt: skip
    return st.one_of(
        several.map(chained),
        several.map(any_of),
        st.tuples(inner, st.sampled_from(ways)).map(lambda found: times(found[0], *found[1])),
    )


leaves = st.one_of(atoms.map(plain), atoms.map(plain), st.sampled_from(["root", "one"]).map(named))
bodies = st.recursive(leaves, mixed, max_leaves=7)


@pytest.mark.slow
@settings(max_examples=2 * CASES, deadline=None)
@given(bodies, bodies)
def test_random_recursion(root: Expression, one: Expression) -> None:
    grammar = f"root ::= {root[0]} | {HARD}\none ::= {one[0]} | [^b] root"
    known: Languages = {"root": frozenset(), "one": frozenset()}
    while True:
        new = {
            "root": root[1](known) | {"abab"},
            "one": one[1](known) | joined(frozenset("aé"), known["root"]),
        }
        if new == known:
            break
        known = new
    assert language(grammar) == known["root"]


# -- errors ----------------------------------------------------------------------------------------

WRONG = [
    ("root ::= foo", 1, 10, "no rule 'foo'"),
    ('root ::= "a"\nb ::= "x"\n  | c-d', 3, 5, "no rule 'c-d'"),
    ('root ::= "a"\nroot ::= "b"', 2, 1, "two rules 'root'"),
    ('root ::= a\na ::= "x"\na ::= "y"', 3, 1, "two rules 'a'"),
    ('root ::= "abc', 1, 10, "this literal has no end"),
    ('root ::= "abc\\', 1, 10, "this literal has no end"),
    ("root ::= [a-z", 1, 10, "this class has no end"),
    ("root ::= [a-", 1, 10, "this class has no end"),
    ("root ::= []", 1, 10, "class is empty"),
    ("root ::= [z-a]", 1, 11, "range z-a"),
    (r"root ::= [^\x00-\U0010FFFF]", 1, 10, "no character"),
    ('root ::= "é"{3,2}', 1, 13, "{3,2} ends before"),
    ('root ::= "a"{5000}', 1, 13, "at most 2000"),
    ('root ::= "a"{99999999999999999999999}', 1, 13, "at most 2000"),
    ('root ::= "a"{}', 1, 13, "a repetition is"),
    ('root ::= "a"{,}', 1, 13, "a repetition is"),
    ('root ::= "a"{x}', 1, 13, "a repetition is"),
    ('root ::= "a"{2', 1, 13, "a repetition is"),
    ('root ::= "a"' + "*" * 3000, 1, 15, "2 repetitions"),
    ("root ::= * ", 1, 10, "'*' where a rule, or a part"),
    ('root ::= ("a"\nb ::= "c"', 1, 10, "this ( has no )"),
    ('root ::= ("a"', 1, 10, "this ( has no )"),
    ("root ::= (", 1, 10, "this ( has no )"),
    ('root ::= ("a" = "b")', 1, 15, "'=' where a part or )"),
    ('root ::= "a")', 1, 13, "')' where"),
    ('root ::= "a"\nb : "c"', 2, 3, "':' where"),
    ('a root ::= "a"', 1, 3, "'r' where ::= is due"),
    ('root ::= "a" ; b', 1, 17, "the end where ::= is due"),
    ('"a" ::= b', 1, 1, "the name of a rule"),
    (r'root ::= "ab\q"', 1, 13, r"unknown escape \q"),
    (r'root ::= "\x4"', 1, 11, r'unknown escape \x4"'),
    (r'root ::= "\u12"', 1, 11, "unknown escape"),
    (r'root ::= "\ud800"', 1, 11, "is not a character"),
    (r'root ::= "\UFFFFFFFF"', 1, 11, "is not a character"),
    ('root ::= "\ud800"', 1, 11, "lone surrogate"),
    ("root ::= " + "(" * 65 + '"a"' + ")" * 65, 1, 74, "64 levels"),
    ("root ::= root", 1, 1, "no text satisfies rule 'root'"),
    ('root ::= "a" | b\nb ::= "c" b', 2, 1, "no text satisfies rule 'b'"),
    ("root ::= <think>", 1, 10, "'<' where"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "reason"), WRONG, ids=range(len(WRONG)))
def test_an_error_names_the_place(text: str, line: int, column: int, reason: str) -> None:
    place = f"ebnf at line {line}, column {column}: "
    with pytest.raises(GrammarError, match=re.escape(place) + ".*" + re.escape(reason)):
        grammar_of(Constraint("ebnf", text), "")


def test_a_grammar_without_root() -> None:
    with pytest.raises(GrammarError, match="no rule named root"):
        grammar_of(Constraint("ebnf", 'word ::= "a"'), "")


@pytest.mark.parametrize("more", ["", NESTED])
def test_nesting_within_the_limit(more: str) -> None:
    grammar = "root ::= " + '("a" "b" | ' * 24 + '"x"' + ")*?" * 24 + more
    assert takes(grammar, "abxab")
    assert not takes(grammar, "abxa")
    assert takes("root ::= " + '("a" | ' * 64 + '"x"' + ")" * 64 + more, "x")


@pytest.mark.slow
def test_chains_of_rules() -> None:
    def chain(size: int, end: str) -> str:
        rules = [f'a{one} ::= "x" a{one + 1} | "y"' for one in range(size)]
        return "\n".join(["root ::= a0", *rules, f"a{size} ::= {end}"])

    assert takes(chain(100, '"."'), "x" * 100 + ".")
    assert takes(chain(100, '"." root?'), "x" * 100 + ".y")
    for end in ('"."', "root"):
        with pytest.raises(GrammarError, match="more than 200 levels deep"):
            grammar_of(Constraint("ebnf", chain(5000, end)), "")
