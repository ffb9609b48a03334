"""Watches against a naive search of the whole text, fed in every chunking."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest
from helpers.seeds import seeds
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.core.work import TooMuchWork
from sglang.srt.grammar import stop_watch
from sglang.srt.grammar.stop_automaton import (
    MAX_ATOMS,
    MAX_MOVES,
    MAX_OPERATIONS,
    MAX_POSITIONS,
    StopAutomaton,
)
from sglang.srt.grammar.stop_watch import (
    PATTERN_HOLD,
    PROGRAM_LIMIT,
    FoundStop,
    Patterns,
    StopWatch,
    compile_pattern,
)

LETTERS = "abé€😀"  # characters of 1 to 4 bytes
words = st.text(LETTERS, min_size=1, max_size=4)


def first_stop(text: bytes, stops: list[str]) -> FoundStop | None:
    """The stop that ends first; among those that end there, the longest."""
    found = []
    for stop in stops:
        at = text.find(stop.encode())
        if at >= 0:
            end = at + len(stop.encode())
            found.append((end, -len(stop.encode()), stop))
    if not found:
        return None
    end, length, stop = min(found)
    return FoundStop(end + length, end, stop)


def longest_hold(text: bytes, stops: list[str]) -> int:
    """Bytes at the end of ``text`` that begin a stop."""
    heads = {stop.encode()[:n] for stop in stops for n in range(1, len(stop.encode()) + 1)}
    return max((n for n in range(1, len(text) + 1) if text[-n:] in heads), default=0)


@st.composite
def chunked(draw: st.DrawFn) -> list[bytes]:
    """A text cut anywhere, inside characters too."""
    text = draw(st.text(LETTERS, max_size=24)).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]


@pytest.mark.slow
@settings(max_examples=len(seeds(500, 1500)), deadline=None, derandomize=True)
@given(stops=st.lists(words, min_size=1, max_size=5), chunks=chunked())
def test_stop_strings_are_found_where_a_search_finds_them(
    stops: list[str], chunks: list[bytes]
) -> None:
    watch, text = StopWatch(stops), b""
    for chunk in chunks:
        hit = watch.feed(chunk)
        text += chunk
        assert hit == first_stop(text, stops)
        if hit is not None:
            return
        assert watch.held == longest_hold(text, stops), "held is exact"
        assert watch.length == len(text)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(stops=st.lists(words, min_size=1, max_size=5), chunks=chunked())
def test_what_a_stream_has_shown_never_belongs_to_a_stop(
    stops: list[str], chunks: list[bytes]
) -> None:
    watch, shown, text = StopWatch(stops), 0, b""
    for chunk in chunks:
        hit = watch.feed(chunk)
        text += chunk
        if hit is not None:
            assert shown <= hit.cut
            assert text[hit.cut : hit.end] == hit.matched.encode()
            return
        assert len(text) - watch.held >= shown, "text once shown is not taken back"
        shown = len(text) - watch.held


def test_a_character_split_over_tokens() -> None:
    watch = StopWatch(["€"])
    euro = "€".encode()
    assert watch.feed(b"a" + euro[:1]) is None
    assert watch.held == 1
    assert watch.feed(euro[1:2]) is None
    assert watch.held == 2
    assert watch.feed(euro[2:] + b"rest") == FoundStop(1, 4, "€")


def test_a_stop_inside_a_longer_one_wins_by_ending_first() -> None:
    assert StopWatch(["abcd", "bc"]).feed(b"abcd") == FoundStop(1, 3, "bc")
    assert StopWatch(["abc", "bc", "c"]).feed(b"abc") == FoundStop(0, 3, "abc")


PATTERNS = [r"[0-9]+", r"a{2,3}", r"x|yz", r"é\.", r"(?i)end"]


@pytest.mark.slow
@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    patterns=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3),
    chunks=st.lists(st.text("a0xyzé.eEnNdD", max_size=3).map(str.encode), max_size=10),
)
def test_patterns_are_found_where_a_search_finds_them(
    patterns: list[str], chunks: list[bytes]
) -> None:
    watch, text = StopWatch((), patterns), b""
    for chunk in chunks:
        hit = watch.feed(chunk)
        text += chunk
        found = [m for p in patterns if (m := re.search(p.encode(), text))]
        if not found:
            assert hit is None
            assert watch.held == min(len(text), PATTERN_HOLD)
            continue
        assert hit is not None
        assert (hit.cut, hit.end) in {m.span() for m in found}
        assert hit.end == min(m.end() for m in found)
        assert hit.matched.encode() == text[hit.cut : hit.end]
        return


def test_the_earlier_of_string_and_pattern_wins() -> None:
    assert StopWatch(["stop"], ["[0-9]"]).feed(b"a1stop") == FoundStop(1, 2, "1")
    assert StopWatch(["stop"], ["[0-9]"]).feed(b"stop1") == FoundStop(0, 4, "stop")


def test_patterns_take_linear_time() -> None:
    """RE2 does not backtrack: this pattern takes a backtracking engine for ever."""
    watch = StopWatch((), ["(a+)+$b"])
    for _ in range(200):
        assert watch.feed(b"aaaaaaaaaa") is None


@pytest.mark.parametrize("text", ["(", "[z-a]", "a{2,1}", r"\1", "(?=a)", "a**"])
def test_invalid_patterns_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid RE2 pattern"):
        StopWatch((), [text])


@pytest.mark.parametrize("text", ["", "a*", "(x)?", "^"])
def test_patterns_that_match_nothing_at_all_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="matches the empty text"):
        StopWatch((), [text])


def test_a_watch_without_stops_holds_nothing() -> None:
    watch = StopWatch()
    assert watch.feed(b"abc") is None
    assert watch.held == 0


ATOMS = [
    "a", "b", "Z", "k", "s", "K", "é", "€", "😀", "_", "]", "}", "{", "-", " ", ".", r"\d", r"\w",
    r"\W", r"\s", r"\n", r"\.", r"\pL", r"\PL", r"\p{Greek}", "[ab]", "[^a]", r"[^\n]", "[]a]",
    "[^]a]", r"[\]b]", "[[:alpha:]]", "[a-cé€]", r"\x{20ac}", r"\x61", r"\141", r"\Qa.b\E",
    r"\Q*\E", "٣", "a{٣}", "a{01}", "a{1,02}", "a{1234567890}", "{,2}",
    "[!-[:alpha:]]", "[+--[:digit:]]", r"[\d-[:alpha:]]", r"[\x{21}-[:alpha:]]",
]  # fmt: skip
ASSERTIONS = ["^", "$", r"\b", r"\B", r"\A", r"\z", "(?m:^)", "(?m:$)"]
REPEATS = ["*", "+", "?", "{2}", "{1,}", "{0,2}", "{1,3}", "*?", "+?", "??", "{2,4}?", "{0}"]
FLAGS = ["(?i)", "(?i:", "(?s:", "(?m)", "(?im:", "(?s-i:", "(?U:", "(?P<name>", "("]
FLAGS += ["(?P<é>", "(?P<a\u0301>", "(?<n٣>"]  # letters, marks and digits beyond ASCII
leaves = st.sampled_from([*ATOMS, *ASSERTIONS])


def _wrapped(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def flagged(flags: str, part: str) -> str:
        return f"(?:{flags}{part})" if flags.endswith(")") else f"{flags}{part})"

    return st.one_of(
        st.lists(parts, min_size=2, max_size=3).map("".join),
        st.lists(parts, min_size=2, max_size=3).map(lambda some: f"(?:{'|'.join(some)})"),
        st.builds(lambda part, repeat: f"(?:{part}){repeat}", parts, st.sampled_from(REPEATS)),
        st.builds(flagged, st.sampled_from(FLAGS), parts),
    )


re2_patterns = st.recursive(leaves, _wrapped, max_leaves=8)
STRAY = [b"\x80", b"\xc3", b"\xe2\x82", b"\xf0", b"\xff", b"\xe0\x80\x80", b"\xed\xa0\x80"]
pieces = st.one_of(
    st.sampled_from("abZkKsSſKé€😀α \n.1_-{}]*").map(str.encode), st.sampled_from(STRAY)
)


@st.composite
def tokens(draw: st.DrawFn) -> list[bytes]:
    """A text that need not be UTF-8, cut anywhere."""
    text = b"".join(draw(st.lists(pieces, max_size=24)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]


def usable(texts: list[str]) -> list[Any]:
    """RE2 objects of the patterns, none where one of them is refused."""
    try:
        StopWatch((), texts)
    except ValueError:
        return []
    return [compile_pattern(text) for text in texts]


@pytest.mark.slow
@settings(max_examples=len(seeds(250, 500)), deadline=None, derandomize=True)
@given(
    texts=st.lists(re2_patterns, min_size=1, max_size=3),
    chunks=st.lists(tokens(), min_size=2, max_size=2),
)
def test_patterns_stop_where_re2_finds_them_in_all_the_text(
    texts: list[str], chunks: list[list[bytes]]
) -> None:
    """RE2 searches the whole text anew after every token."""
    found = usable(texts)
    for each in chunks if found else []:
        watch, text = StopWatch((), texts), b""
        for chunk in each:
            text += chunk
            spans = [match.span() for one in found if (match := one.search(text))]
            hit = watch.feed(chunk)
            if not spans:
                assert hit is None
                continue
            assert hit is not None
            assert (hit.cut, hit.end) == min(spans, key=lambda span: span[1])
            break


def random_pattern(r: random.Random, depth: int) -> str:
    """A pattern, mostly between two letters, so that matches stay open for a while."""
    kind = r.random()
    if depth == 0 or kind < 0.25:
        return r.choice(ATOMS)
    if kind < 0.35:
        return r.choice(ASSERTIONS)
    if kind < 0.6:
        return "".join(random_pattern(r, depth - 1) for _ in range(r.randint(2, 3)))
    if kind < 0.7:
        return "(?:" + "|".join(random_pattern(r, depth - 1) for _ in range(2)) + ")"
    if kind < 0.78:
        flags, inner = r.choice(FLAGS), random_pattern(r, depth - 1)
        after = random_pattern(r, depth - 1)
        return f"(?:{flags}{inner}){after}" if flags.endswith(")") else f"{flags}{inner}){after}"
    return f"(?:{random_pattern(r, depth - 1)}){r.choice(REPEATS)}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(2, 8))
def test_random_patterns_stop_where_re2_finds_them(seed: int) -> None:
    """The same with many more and longer matches: few letters, between which all else happens."""
    r, hits = random.Random(seed), 0
    for _ in range(2500):
        ends = r.choice("abZké"), r.choice("abZ1. \n")
        body = random_pattern(r, r.randint(1, 4))
        texts = [ends[0] + body + ends[1] if r.random() < 0.7 else body]
        texts += [random_pattern(r, 2) + "Z"] * (r.random() < 0.2)
        found = usable(texts)
        few = [*"".join(ends), *r.sample("abZkKsS_1. \n-é€😀ſα٣{}!:]", 3)]
        for _ in range(3 if found else 0):
            parts = [r.choice(few).encode() for _ in range(r.randint(1, 16))]
            if r.random() < 0.3:
                parts.insert(r.randrange(len(parts)), r.choice(STRAY))
            text, at, watch = b"".join(parts), 0, StopWatch((), texts)
            while at < len(text):
                chunk = text[at : at + r.randint(1, 4)]
                at += len(chunk)
                hit = watch.feed(chunk)
                spans = [match.span() for one in found if (match := one.search(text[:at]))]
                want = min(spans, key=lambda span: span[1]) if spans else None
                assert (hit and (hit.cut, hit.end)) == want, (texts, text[:at])
                if hit:
                    hits += hit.end - hit.cut > 2
                    break
    assert hits > 200, "matches of some length"


SYNTAX = [
    *"ab1٣é{}[]()|*+?.^$-,:!<>P \\", "{1}", "{٢}", "{1,2}", "{1,٣}", "{02}", "{1,}", "(?:", "(?i)",
    "(?P<", "(?", "[^", "[[:", ":]", "[:alpha:]", "[:^digit:]", r"\d", r"\pL", r"\x{", r"\x41",
    r"\Q", r"\E", r"\b", r"\]", r"\[", "a-", "!-", "x]",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_random_syntax_is_read_as_re2_reads_it(seed: int) -> None:
    """A random pattern that RE2 takes has a match where RE2 has one."""
    r, used = random.Random(seed), 0
    for _ in range(10_000):
        text = "".join(r.choice(SYNTAX) for _ in range(r.randint(1, 7)))
        found = usable([text])
        used += bool(found)
        for _ in range(2 if found else 0):
            data = "".join(r.choices("ab1٣éx {}[]!:-,", k=6)).encode()
            match = found[0].search(data)
            hit = StopWatch((), [text]).feed(data)
            assert (hit and (hit.cut, hit.end)) == (match and match.span()), (text, data)
    assert used > 300


@pytest.mark.parametrize("text", ["[a-z ]{٣}", "(?s){٢}x", "a{01}b", "a{1,02}", "a{1234567890}"])
def test_braces_that_re2_takes_literally(text: str) -> None:
    """A count has ASCII digits, no leading zero, and at most nine digits."""
    (literal,) = usable([text])
    example = {"[": "x{٣}", "(": "{٢}x"}.get(text[0], text).encode()
    assert literal.search(example).span() == (0, len(example))
    assert StopWatch((), [text]).feed(example) == FoundStop(0, len(example), example.decode())
    assert StopWatch((), [text]).feed(b"aaa xxx b") is None


@pytest.mark.slow
def test_random_patterns_are_mostly_usable() -> None:
    """Otherwise the test above would test nothing."""
    seen: Counter[str] = Counter()

    @settings(max_examples=300, deadline=None, derandomize=True, database=None)
    @given(text=re2_patterns)
    def count(text: str) -> None:
        seen["used" if usable([text]) else "refused"] += 1

    count()
    assert seen["used"] > 100


class Counting:
    """A stop automaton that counts its calls."""

    def __init__(self, automaton: StopAutomaton) -> None:
        self.moves, self.cost, self._taken = automaton.moves, automaton.cost, automaton.taken
        self.read = 0

    def taken(self, character: bytes) -> int:
        self.read += 1
        return self._taken(character)


@pytest.mark.parametrize("text", [r"(?s)<a>.*</a>", r"x.*y$", r"[a-m][^Z]{900}Z1", r"\bno\b"])
def test_no_character_is_read_twice(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tokens the text comes in, and however long a match has been open."""
    patterns = Patterns((text,))
    automaton = Counting(patterns._automaton)
    monkeypatch.setattr(patterns, "_automaton", automaton)
    monkeypatch.setattr(patterns, "_search", lambda: pytest.fail("RE2 searches without a match"))
    for _ in range(2000):
        assert patterns.feed(b"<a>x") is None
    assert automaton.read == 2000 * 4


@pytest.mark.parametrize(
    ("texts", "size", "limit"),
    [
        ([r"[a-m][^Z]{900}Z1"] * 16, "21621 RE2 instructions", PROGRAM_LIMIT),
        ([chr(0x4E00 + i) + "a{130}" for i in range(16)], "2096 characters", MAX_POSITIONS),
        (["(a?){100}b"], "102 operations", MAX_OPERATIONS),
        ([r"(?m)(?:^a|b$|\bc|\Bd){250}x"], "7 cases of its assertions", MAX_MOVES),
        (["".join(f"[{chr(c)}x]" for c in range(256, 512)), "[yz]"], "257 different", MAX_ATOMS),
        (["(" * 65 + "a" + ")" * 65], "nests more than 64 groups", 64),
    ],
)
def test_patterns_beyond_a_limit_are_refused(texts: list[str], size: str, limit: int) -> None:
    with pytest.raises(ValueError, match="stop_regex") as caught:
        StopWatch((), texts)
    assert size in str(caught.value)
    assert str(limit) in str(caught.value)


def test_patterns_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal ones, also where they are refused after all the work."""
    made = []
    monkeypatch.setattr(
        "sglang.srt.grammar.stop_watch.compile_pattern",
        lambda text: made.append(text) or compile_pattern(text),
    )
    for _ in range(3):
        with pytest.raises(ValueError, match="103 operations"):
            StopWatch((), ["(a?){100}bb?c"])
        assert StopWatch((), ["(a?){3}bb?c"]).feed(b"abc") == FoundStop(0, 3, "abc")
    assert made == ["(a?){100}bb?c", "(a?){3}bb?c"]


def test_a_byte_of_a_character_is_no_pattern() -> None:
    with pytest.raises(ValueError, match=r"stop_regex has \\C"):
        StopWatch((), [r"a\Cb"])


def test_repeats_of_nothing_cost_nothing() -> None:
    patterns = Patterns(("x" + r"(?:(?:\b){1000})?" * 50 + "y",))
    assert patterns.cost < 10
    assert patterns.feed(b"x.y") is None
    assert patterns.feed(b"xy") == FoundStop(3, 5, "xy")


def test_a_search_that_costs_too_much_is_not_made() -> None:
    """Each letter begins a match of 900 characters, which are all open when one ends."""
    watch = StopWatch((), [r"[a-m][^Z]{900}Z1"])
    watch.feed(b"abcdefghijklm" * 300)
    with pytest.raises(TooMuchWork, match="at most"):
        watch.feed(b"Z1")


def test_a_stop_string_is_kept_where_a_search_costs_too_much() -> None:
    """The pattern ends in the same token, and where it begins is too much work to find."""
    watch = StopWatch(["Z1"], [r"[a-m][^Z]{900}Z1"])
    watch.feed(b"abcdefghijklm" * 300)
    assert watch.feed(b"Z1") == FoundStop(3900, 3902, "Z1")


def test_classes_that_re2_does_not_take_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is left out: the numbers of the others would be wrong."""
    text = r"[ab][cd]\pL"
    assert StopWatch((), [text]).feed("xadλ".encode()) == FoundStop(1, 5, "adλ")
    stop_watch._stop_patterns.cache_clear()
    monkeypatch.setattr("sglang.srt.grammar.stop_watch.ATOMS_MEMORY", 1000)
    with pytest.raises(ValueError, match=r"3 different classes.* 1000 bytes .*Use fewer"):
        StopWatch((), [text])


@pytest.mark.parametrize(
    ("text", "end"), [(r"(?s)<a>.*</a>", b"</a>"), (r"(?s)[b-d].+x.*END", b"xEND")]
)
def test_long_matches_of_few_beginnings_are_found(text: str, end: bytes) -> None:
    watch = StopWatch((), [text])
    for _ in range(20_000):
        assert watch.feed(b"<a>b") is None
    hit = watch.feed(end)
    assert hit is not None
    assert (hit.cut, hit.end) == (0 if text[4] == "<" else 3, 80_000 + len(end))
