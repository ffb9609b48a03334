"""compile_regex: features, refusals, budgets, and the form of what they make."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import unicodedata
import warnings

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.patterns import all_texts
from sglang.srt.grammar.character_dfa import DEAD, CharacterDfa
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.regex import BeyondBudget, Budget, InvalidPattern, compile_regex
from sglang.srt.grammar.regex import minimal as minimal_module
from sglang.srt.grammar.regex.charset import LIMIT, CharSet, cases, category, shorthand
from sglang.srt.grammar.regex.parser import parse
from sglang.srt.grammar.regex.simplify import simplify

CHARACTER = r"""\{\n    "name": "[\w\d\s]{1,16}",\n    "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n    "blood status": "(Pure-blood|Half-blood|Muggle-born)",\n    "occupation": "(student|teacher|auror|ministry of magic|death eater|order of the phoenix)",\n    "wand": \{\n        "wood": "[\w\d\s]{1,16}",\n        "core": "[\w\d\s]{1,16}",\n        "length": [0-9]{1,2}\.[0-9]{0,2}\n    \},\n    "alive": "(Alive|Deceased)",\n    "patronus": "[\w\d\s]{1,16}",\n    "bogart": "[\w\d\s]{1,16}"\n\}"""  # noqa: E501  # SGLang paper, appendix
HARRY = """{
    "name": "Harry Potter",
    "house": "Gryffindor",
    "blood status": "Half-blood",
    "occupation": "auror",
    "wand": {
        "wood": "holly",
        "core": "phoenix feather",
        "length": 11.0
    },
    "alive": "Alive",
    "patronus": "stag",
    "bogart": "dementor"
}"""
EVERY = "".join(map(chr, range(LIMIT)))


def judge(pattern: str, texts: list[str]) -> None:
    """The automaton and ``re`` agree on ``texts``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = re.compile(pattern)
    automaton = compile_regex(pattern)
    for text in texts:
        assert automaton.accepts(text) == bool(expected.fullmatch(text)), (pattern, text)


# Pattern, texts that it matches, texts that it does not.
FEATURES = [
    ("", [""], ["a", "\n"]),
    (r"a\.b\*\\", ["a.b*\\"], ["aXb*\\"]),
    (r"\a\f\n\r\t\v", ["\a\f\n\r\t\v"], ["afnrtv"]),
    (r"\x41\u00e9\U0001F600", ["Aé\U0001f600"], ["A"]),
    (r"\N{GREEK SMALL LETTER ALPHA}", ["α"], ["a"]),
    (r"\0\07\101\377", ["\0\aA\xff"], ["0"]),
    (r"[\1\07\101]", ["\1", "\a", "A"], ["1", "0"]),
    (r"\08", ["\x008"], ["8"]),
    (".", ["a", "\r", "\x00", "\U0010ffff"], ["\n", "", "ab"]),
    ("(?s).", ["\n", "a"], [""]),
    ("(?s:.).", ["\na"], ["a\n"]),
    ("[]a]", ["]", "a"], ["["]),
    ("[^]a]", ["[", "\n"], ["]", "a"]),
    ("[a-c-e]", ["a", "b", "-", "e"], ["d"]),
    ("[-a]", ["-", "a"], ["b"]),
    ("[a-]", ["-", "a"], ["b"]),
    (r"[\w-]", ["-", "a", "é"], ["+"]),
    (r"[\b]", ["\b"], ["b"]),
    (r"[[a]", ["[", "a"], ["]"]),
    (r"[\]\-^]", ["]", "-", "^"], ["a"]),
    (r"[^\W\d_]", ["a", "é", "字"], ["_", "1", "-"]),
    (r"\d+", ["123", "٣٤"], ["a", "½", "²"]),
    (r"(?a)\d+", ["123"], ["٣٤"]),
    (r"(?a:\d)\d", ["1٣"], ["٣1"]),
    (r"(?a)(?u:\w)\w", ["éa"], ["aé"]),
    (r"\w", ["a", "_", "é", "字", "²", "9"], ["-", " ", "\u0300"]),
    (r"\s", [" ", "\u00a0", "\u2003", "\x1c", "\x85"], ["a", "\u200b"]),
    (r"(?a)\s", [" ", "\v"], ["\u00a0", "\x1c"]),
    (r"\S\D\W", ["ab-"], ["a1-", " b-"]),
    ("(a)(?:b)(?P<name>c)", ["abc"], ["ab"]),
    ("a|b|", ["a", "b", ""], ["c"]),
    ("(|a)b", ["b", "ab"], ["a"]),
    ("a*b+c?", ["b", "aabbc"], ["ac", "bcc"]),
    ("a*?b+?c??", ["b", "aabbc"], ["ac"]),
    ("a{2}", ["aa"], ["a", "aaa"]),
    ("a{2,}", ["aa", "a" * 9], ["a"]),
    ("a{,2}", ["", "a", "aa"], ["aaa", "a{,2}"]),
    ("a{,}", ["", "aaaa"], ["a{,}"]),
    ("a{1,2}", ["a", "aa"], ["", "aaa"]),
    ("a{1,2}?", ["a", "aa"], ["aaa"]),
    ("a{0}b", ["b"], ["ab"]),
    ("a{002}", ["aa"], ["a"]),
    ("a{}", ["a{}"], ["a"]),
    ("a{x", ["a{x"], ["a"]),
    ("a{1", ["a{1"], ["a"]),
    ("a{1, 2}", ["a{1, 2}"], ["a"]),
    ("{", ["{"], [""]),
    ("x{-1}", ["x{-1}"], ["x"]),
    ("(?:a{2}){3}", ["a" * 6], ["a" * 5, "aaa{2}"]),
    ("(?:a{2,3}){2}", ["a" * n for n in (4, 5, 6)], ["aaa", "a" * 7]),
    ("(?:a{3}){1,2}", ["aaa", "a" * 6], ["a" * 4, "a" * 5]),
    ("a++b", ["aab"], ["b"]),
    ("[ab]*+(?:b|c)", ["abc", "c"], ["abb", "b"]),
    ("a?+a", ["aa"], ["a"]),
    ("a{1,2}+a", ["aaa"], ["a", "aa"]),
    ("a{2}+a", ["aaa"], ["aa"]),
    (r'"[^"]*+"', ['""', '"a"'], ['"a""']),
    ("(a?){3}", ["", "aaa"], ["aaaa"]),
    ("(a*)*", ["", "aaa"], ["b"]),
    ("(?i)straße", ["STRAßE", "strAẞe", "ſtraße"], ["STRASSE"]),
    ("(?i)k", ["k", "K", "\u212a"], ["q"]),
    ("(?i)[h-j]", ["I", "i", "İ", "ı", "J"], ["k"]),
    ("(?i)[^a]", ["b"], ["a", "A"]),
    ("(?i:a)b", ["Ab"], ["AB"]),
    ("(?i)a(?-i:b)c", ["AbC"], ["ABC"]),
    ("(?ai)k[é]", ["Ké"], ["\u212aé", "kÉ"]),
    ("(?x) a b # c\n [ ]\\ #", ["ab  "], ["a b", "ab"]),
    ("(?x: a )b ", ["ab "], [" a b "]),
    ("(?x)a +", ["aaa"], ["a "]),
    ("a(?#comment)b", ["ab"], ["a"]),
    (r"a(?#com\)ment)b", ["ab"], ["ament)b"]),
    ("(?x)a#b\\\nc\nd", ["ad"], ["acd"]),
    ("a(?#comment)*b", ["b", "aab"], ["ac"]),
    (r"\p{L}+\P{L}", ["aé字1"], ["1a"]),
    (r"\pN[\p{Lu}\p{Ll}]", ["½a", "1Z"], ["aa", "1字"]),
    (r"[^\p{L}]\p{^L}", ["1-"], ["a1"]),
    ("^abc$", ["abc"], ["abc\n", "xabc"]),
    (r"\Aabc\Z", ["abc"], ["abc\n"]),
    ("a$\n", ["a\n"], ["a"]),
    ("a$\n?", ["a", "a\n"], ["a\n\n"]),
    ("a$(?s:.)*", ["a", "a\n"], ["ab", "a\n\n"]),
    ("(?m)a$\n^b", ["a\nb"], ["ab"]),
    ("(?m)(^a+$\n?)+", ["a", "aa\na\n", "a\naa"], ["a\n\na", ""]),
    ("(^a|b$|c)+", ["a", "acb", "cc"], ["ca", "bc"]),
    (r"\bfoo\b.*\bbar\b", ["foo bar", "foo-x-bar"], ["foobar", "foo xbar"]),
    (r"a\b.", ["a-", "a "], ["ab", "aé"]),
    (r"a(?a:\b).", ["aé", "a-"], ["ab"]),
    (r"a\B.", ["ab"], ["a-"]),
    (r"(?=.*[A-Z])(?=.*\d)\w{8,}", ["Abcdefg1"], ["abcdefg1", "Abcdefgh", "Abc1"]),
    (r"^(?!.*\.\.)(?!\.)[a-z.]+(?<!\.)$", ["a.b.c"], ["a..b", ".a", "a."]),
    ("(?:(?!-->).)*-->", ["a-b-->", "-->"], ["-->-->"]),
    ("(?!ab)..", ["aa", "bb"], ["ab"]),
    ("a(?=b)(?:b|c)", ["ab"], ["ac"]),
    ("(?:a(?!b)|b)*", ["ba", "bba"], ["ab", "aab"]),
    ("(?=(?!b).)(?:a|b)c?", ["a", "ac"], ["b"]),
    ("(?<=a)b|ab(?<=ab)", ["ab"], ["b"]),
    ("(?:a|(?<=a)b)*", ["ab", "aab", "abab"], ["b", "abb"]),
    ("(?<!a)b|c", ["b", "c"], ["ab"]),
    (".*(?<=foo|bar)x", ["foox", "barx"], ["bazx"]),
    (".*(?<!foo|bar)x", ["bazx", "x"], ["foox"]),
    ("(?:(?<!^)a|b)+", ["ba"], ["ab", "a"]),
    ("(?:(?=ab)|(?=a))a(?:b|c)", ["ab", "ac"], ["a"]),
    ("(?:(?!ab)|(?!ac))a(?:b|c)d", ["abd", "acd"], ["ab"]),
    (r"(?=a\b)\w+-", ["a-"], ["ab-"]),
    (r"((?:\b|x)*)a", ["a", "xa"], ["b"]),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "inside", "outside"), FEATURES)
def test_a_feature(pattern: str, inside: list[str], outside: list[str]) -> None:
    automaton = compile_regex(pattern)
    assert [text for text in inside if not automaton.accepts(text)] == []
    assert [text for text in outside if automaton.accepts(text)] == []
    if not re.search(r"\\[pP]", pattern):
        judge(pattern, inside + outside)


INVALID = [
    "(", ")", "a)", "(a", "[a", "[", "[]", "[^]", "a**", "a+++", "a++*", "a{2}{3}", "a+*", "*a",
    "+", "?", "{2}",
    "|*", "^*", r"\b+", "(*a)", "a{3,2}", "a{4294967295}", "\\", r"\q", r"[\q]", r"[\A]", r"[\Z]",
    r"\x4", r"\u12", r"\U00110000", r"\Uffffffff", r"\N", r"\N{}", r"\N{NO SUCH NAME}",
    r"\N{DIGIT ONE",
    r"\400", r"[\400]", r"[\8]", r"\1", r"(a)\2", "[b-a]", r"[\w-a]", r"[a-\d]", "[a", "(?", "(?P",
    "(?P<", "(?P<1a>b)", "(?P<a>b)(?P<a>c)", "(?P<a b>c)", "(?<a>b)", "(?'a'b)", "(?k)",
    "(?i", "(?i-",
    "(?i-)", "(?-:a)", "(?au)", "(?a)(?u)", "(?L)a", "(?-a:b)", "(?i-i:a)", "a(?i)b", "(a(?i)b)",
    "|(?i)a", "(?#abc", r"(?#abc\)", "(?x)a#\\", "(?<=a*)b", "(?<=a|bc)d", "(?<!a+)b", "(?i)*",
    "(?:a",
]  # fmt: skip


@pytest.mark.parametrize("pattern", INVALID)
def test_what_re_does_not_compile_is_invalid(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((re.error, OverflowError, ValueError)):
            re.compile(pattern)
    with pytest.raises(InvalidPattern):
        compile_regex(pattern)


NOT_CARRIED = [
    (r"(a|b)\1", "regex[5]: a back-reference is not supported"),
    (r"(?P<q>a)(?P=q)", "regex[8]: a back-reference is not supported"),
    (r"(a)?(?(1)b|c)", "regex[4]: a conditional group is not supported"),
    (r"(?>a|ab)c", "regex[0]: an atomic group is not supported"),
    (r"(?:ab)++", "regex[6]: a possessive repetition of more than one"),
    (r"(?<=^a)b", "an assertion inside a look-behind is not supported"),
    (r"\p{Greek}", "only general categories"),
]


@pytest.mark.parametrize(("pattern", "reason"), NOT_CARRIED)
def test_what_is_not_carried_is_left_to_another_engine(pattern: str, reason: str) -> None:
    with pytest.raises(BeyondBudget) as caught:
        compile_regex(pattern)
    assert reason in str(caught.value)


def test_a_lone_surrogate_is_no_pattern() -> None:
    with pytest.raises(InvalidPattern):
        compile_regex("a\ud800")


@pytest.mark.parametrize("pattern", ["a^b", r"a\bb", "[^\\s\\S]", "(?!)", "a(?!b)b", r"\ud800",
                                     r"\B", "(?=a)b", "a(?<=b)", "$a",
                                     "(?<!x|y)(?<=x)a"])  # fmt: skip
def test_an_empty_language_is_said_to_be_one(pattern: str) -> None:
    assert not any(re.fullmatch(pattern, text) for text in all_texts("ab\nx", 4))
    with pytest.raises(GrammarError) as caught:
        compile_regex(pattern)
    assert not isinstance(caught.value, InvalidPattern | BeyondBudget)
    assert "matches nothing" in str(caught.value)


# -- budgets -------------------------------------------------------------------------------------

BOMBS = [
    "(((.{1,30}){1,30}){1,30})",
    "(((a{1,30}){1,30}){1,30})",
    "((.{1,99}x?){1,99}y?){1,99}",
    ".*a.{25}",
    "(?:.*a){9}.*b.{20}c.{20}",
    "(a|a){100000}",
    "(a|a){1,1000000000}",
    "(?:a?b?){1,20000}",
    "((a*)*b*)*c.*d.{30}",
    "((((a{1,99}){1,99}b){1,99}c){1,99}d){1,99}",
    "(x+x+)+y.{2,40}x.{40}",
    r"(?:(?=.*a.{9})(?=.*b.{9})(?=.*c.{9}).){1,30}",
    r"(?=.*a.{9})(?=.*b.{9})(?=.*c.{9})\w{30}",
    r"(?:(?!.*a.{1,12}b)\w){1,30}",
    r"(?:.(?<=a.{14})|b(?<!b.{13}))*",
    r"(?:$|(?:(?=a{1,9}b)a)*){50}" + r"(?=.*b.{12}c)" * 20 + ".*",
    "(" * 65 + "a" + ")" * 65,
    "(?:" * 1300 + "a" + ")" * 1300,
    "a" * 4097,
    "é" * 2049,
]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", BOMBS)
def test_a_bomb_meets_a_limit_by_counting(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = []
    meter = compile_regex.__globals__["Meter"]

    class Counting(meter):  # type: ignore[misc, valid-type]
        def spend(self, steps: int) -> None:
            spent.append(steps)
            super().spend(steps)

    monkeypatch.setitem(compile_regex.__globals__, "Meter", Counting)
    with pytest.raises(BeyondBudget) as first:
        compile_regex(pattern)
    assert sum(spent) < Budget().steps + 1_000_000
    assert len(spent) < 3_000_000
    total = sum(spent)
    if total < Budget().steps:  # the quick ones: the same steps another time
        spent.clear()
        with pytest.raises(BeyondBudget) as second:
            compile_regex(pattern)
        assert (sum(spent), str(second.value)) == (total, str(first.value))


ENOUGH = [
    "(.*a){25}", "(a|a)*{", "(a?){1000}", ".{1,5000}", "((){9999}){9999}", "((a*)*)*", "(a*){9999}",
    "(((a?){9}){9}){9}", "(.{1,30}){1,30}", "(" * 64 + "a" + ")" * 64, "x" * 4096,
    "(?=.*a)(?=.*b)(?=.*c)(?=.*d).{8,64}", "(" + "|".join(f"w{n}" for n in range(800)) + ")*",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ENOUGH)
def test_what_only_looks_like_a_bomb_compiles(pattern: str) -> None:
    assert compile_regex(pattern).states <= 5001


@pytest.mark.parametrize("name", ["nfa", "dfa", "cells", "steps"])
def test_each_limit_is_met(name: str) -> None:
    pattern = "(?:foo|bar|[a-z]{20}x){2}"
    compile_regex(pattern)
    with pytest.raises(BeyondBudget, match=r"regex (needs|takes)"):
        compile_regex(pattern, Budget(**{name: 20}))


def test_an_unknown_front_is_named() -> None:
    with pytest.raises(GrammarError, match=r"'re'.*own, interegular"):
        compile_regex("a", front="re")


# -- the automaton -------------------------------------------------------------------------------


@pytest.mark.parametrize(("pattern", "expected"), [
    ("yes|no|maybe", ("maybe", "no", "yes")),
    ("", ("",)),
    ("a{0,3}", ("", "a", "aa", "aaa")),
    ("[ab][01]?", ("a", "a0", "a1", "b", "b0", "b1")),
    ("(?i)ok", ("OK", "Ok", "oK", "ok", "O\u212a", "o\u212a")),
    ("a+", None),
    (r"\d\d\d", None),
    ("[a-z]{3}", None),
    ("é" * 2000 + "[a-z]{0,1}[0-9]{0,1}", None),
    ("^a$\n?", ("a", "a\n")),
])  # fmt: skip
def test_the_strings_of_a_finite_language(pattern: str, expected: tuple[str, ...] | None) -> None:
    strings = compile_regex(pattern).strings
    assert strings == (None if expected is None else tuple(sorted(expected)))


def test_as_many_strings_as_the_budget_allows() -> None:
    strings = compile_regex("[0-7]{4}").strings
    assert strings == tuple(f"{n:04o}" for n in range(4096))
    assert compile_regex("[0-7]{4}|x").strings is None
    assert compile_regex("[0-7]{4}", Budget(strings=4095)).strings is None
    assert compile_regex("[0-7]{4}", Budget(string_bytes=4 * 4096 - 1)).strings is None
    assert compile_regex("é", Budget(string_bytes=1)).strings is None


def test_the_papers_regex() -> None:
    automaton = compile_regex(CHARACTER)
    assert automaton.accepts(HARRY)
    assert re.fullmatch(CHARACTER, HARRY)
    assert (automaton.states, automaton.classes) == (431, 41)
    for at in range(len(HARRY)):
        other = HARRY[:at] + HARRY[at + 1 :]
        assert automaton.accepts(other) == bool(re.fullmatch(CHARACTER, other))


def test_many_sets_share_one_partition() -> None:
    """More than fit the key that tells classes apart, overlapping and not."""
    words = tuple(chr(0x4E00 + n) + chr(0x4E00 + 7 * n % 301) for n in range(300))
    assert compile_regex("|".join(words)).strings == tuple(sorted(words))
    ranges = [(n, 400 - n) for n in range(150)]
    pattern = "|".join(
        f"{chr(0x3400 + n)}[{chr(0x4E00 + n)}-{chr(0x4E00 + top)}]" for n, top in ranges
    )
    automaton = compile_regex(pattern)
    for n, top in ranges:
        for at in (n - 1, n, top, top + 1):
            assert automaton.accepts(chr(0x3400 + n) + chr(0x4E00 + at)) == (n <= at <= top)


def test_classes_that_no_state_tells_apart_are_merged() -> None:
    assert compile_regex("[a-z]+|[a-fA-F]+|[A-Z]+|[0-9a-f]+").classes == 5
    assert compile_regex(r"(\w|\d|[a-z]|é)*").classes == 1


def test_the_minimum_survives_packing_and_has_no_surrogates() -> None:
    automaton = compile_regex(r"[^a]\W|x{")
    other = CharacterDfa.unpack(automaton.pack())
    assert (other.next == automaton.next).all()
    labels = automaton.labels[np.searchsorted(automaton.edges, [0xD7FF, 0xD800, 0xDFFF, 0xE000],
                                              side="right") - 1]  # fmt: skip
    assert (labels[1:3] == DEAD).all()
    assert (labels[[0, 3]] != DEAD).all()


def test_minimising_does_not_depend_on_the_order_of_equal_states() -> None:
    """Refinement where every round splits one state off, and where all states are one."""
    assert compile_regex("a{0,300}b*").states == 302 - 1
    assert compile_regex("(?:a|b)*(?:a|b)*").states == 1
    assert compile_regex("(?:aa|bb|ab|ba)*").states == 2


@pytest.mark.slow
def test_a_pattern_gives_the_same_bytes_in_another_process() -> None:
    pattern = r"(?i)(?=.*\d)(?:foo|b[aä]r|\b\w{2,5}(?<!x)){1,3}"
    code = (
        "import sys, hashlib\n"
        "from sglang.srt.grammar.regex import compile_regex\n"
        "print(hashlib.sha256(compile_regex(sys.argv[1]).pack()).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code, pattern], capture_output=True, text=True, check=True,
            env={"PYTHONPATH": str(ROOT / "python"), "PYTHONHASHSEED": seed, "PATH": "/usr/bin"},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


# -- Unicode classes -----------------------------------------------------------------------------


@pytest.mark.parametrize("flags", ["", "(?a)"])
@pytest.mark.parametrize("letter", "dswDSW")
def test_the_shorthands_are_those_of_re(letter: str, flags: str) -> None:
    spans = re.finditer(f"{flags}\\{letter}+", EVERY)
    expected = CharSet.of(span.span() for span in spans)
    assert shorthand(letter, bool(flags)) == expected


@pytest.mark.slow
def test_the_categories_are_those_of_unicodedata() -> None:
    found: dict[str, list[tuple[int, int]]] = {}
    for point, char in enumerate(EVERY):
        found.setdefault(unicodedata.category(char), []).append((point, point + 1))
    for name, pairs in found.items():
        assert category(name) == CharSet.of(pairs)
    letters = [pair for name, pairs in found.items() if name[0] == "L" for pair in pairs]
    assert category("L") == CharSet.of(letters)
    assert category("Xx") is None
    assert category("") is None


def test_ignoring_case_is_what_re_does() -> None:
    """Each character that has another case, against all of them."""
    variants = cases().variants
    changed = [c for c in EVERY if (c.lower() != c or c.upper() != c)]
    pool = "".join(sorted({*changed, *map(chr, variants)}))
    for char in pool[::7] + "kKſsSßẞİıiIµμΩωθϴǅΐΐﬅﬆᾳᾼ\u0345ιͅ":
        expected = re.findall(f"(?i){re.escape(char)}", pool)
        found = variants.get(ord(char), (ord(char),))
        assert list(map(chr, found)) == expected, char


@pytest.mark.parametrize("members", ["k-\U0010ffff", "K-\U0010ffff", "Z-\U00010410", "à-þ",
                                     "\U00010410-\U00010500", "ßa", "\u0390\U0001f600",
                                     "Ā-ſ"])  # fmt: skip
@pytest.mark.parametrize("negated", ["", "^"])
def test_a_class_ignoring_case_is_what_re_makes_of_it(members: str, negated: str) -> None:
    pattern = f"(?i)[{negated}{members}]"
    automaton = compile_regex(pattern)
    labels = np.repeat(automaton.labels, np.diff([*automaton.edges.tolist(), LIMIT]))
    inside = np.zeros(LIMIT, dtype=bool)
    for span in re.finditer(f"{pattern}+", EVERY):
        inside[span.start() : span.end()] = True
    inside[0xD800:0xE000] = False
    assert ((labels != DEAD) == inside).all()


# -- interegular ---------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["abc|abd", "[a-c]{2,4}x*", "(?i)abc[^d]", r"\d+\.\d*", ".*a"])
def test_the_other_front_makes_the_same_automaton(pattern: str) -> None:
    own = compile_regex(f"(?a){pattern}")
    other = compile_regex(pattern, front="interegular")
    if "(?i)" in pattern:  # interegular does not know the Kelvin sign and its like
        own = compile_regex(pattern)
    assert (other.states, other.strings) == (own.states, own.strings)
    for text in all_texts("abx1.\n", 4):
        assert own.accepts(text) == other.accepts(text)


@pytest.mark.parametrize("pattern", ["^a", r"a\b", "a(?=b)b", "[]a]", "[^]a]", "a(?#x)b", "(?x)a",
                                     r"\u0041", r"\p{L}", "(?i)ß", "a{1,2000}", ".*a.{12}",
                                     "(" + "|".join(f"a{n}b{n}" for n in range(400)) + ")*",
                                     ])  # fmt: skip
def test_what_the_other_front_cannot_do_is_refused(pattern: str) -> None:
    with pytest.raises(BeyondBudget, match="regex"):
        compile_regex(pattern, front="interegular")
    assert sys.getprofile() is None


# -- mutants -------------------------------------------------------------------------------------


def test_a_minimiser_that_joins_too_much_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above rest on ``accepts``; it must not forgive."""

    def joined(grid: object, final: list[bool], meter: object) -> np.ndarray:
        return np.array(final, dtype=np.int32)

    monkeypatch.setattr(minimal_module, "blocks", joined)
    with pytest.raises(AssertionError):
        judge("abc", all_texts("abc", 3))


@pytest.mark.slow
def test_repetitions_add_up_only_where_no_number_is_left_out() -> None:
    for inner in range(5):
        for outer in range(4):
            for spread in range(4):
                for more in range(4):
                    pattern = f"(?:a{{{inner},{inner + spread}}}){{{outer},{outer + more}}}"
                    judge(pattern, ["a" * n for n in range(60)])
    nested = simplify(parse("(?:(?:a{1,3}){2,4}){1,5}", Budget()))
    assert repr(nested).count("Repeat") == 1


# -- real patterns -------------------------------------------------------------------------------

CORPUS = ROOT / "test" / "data" / "regexes.jsonl"


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.exists(), reason="the corpus of real patterns is not there")
def test_real_patterns_mean_what_re_makes_of_them() -> None:
    refused, wrong, count = [], [], 0
    for line in CORPUS.read_text(encoding="utf-8").split("\n")[:-1]:
        row = json.loads(line)
        count += 1
        try:
            automaton = compile_regex(row["pattern"])
        except GrammarError as error:
            refused.append((row["pattern"], str(error)))
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = re.compile(row["pattern"])
        for match in row["matches"][:4]:
            for text in (match, match[:-1], match + "\n", match + match[-1:], match.swapcase()):
                if automaton.accepts(text) != bool(expected.fullmatch(text)):
                    wrong.append((row["pattern"], text))
    assert wrong == []
    assert len(refused) <= count * 0.02, refused
