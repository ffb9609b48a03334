"""Watches against a naive search of the whole text, fed in every chunking."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from srt.grammar.watch import PATTERN_HOLD, Hit, Watch

LETTERS = "abé€😀"  # of 1 to 4 bytes
words = st.text(LETTERS, min_size=1, max_size=4)


def first_stop(text: bytes, stops: list[str]) -> Hit | None:
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
    return Hit(end + length, end, stop)


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


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(stops=st.lists(words, min_size=1, max_size=5), chunks=chunked())
def test_stop_strings_are_found_where_a_search_finds_them(
    stops: list[str], chunks: list[bytes]
) -> None:
    watch, text = Watch(stops), b""
    for chunk in chunks:
        hit = watch.feed(chunk)
        text += chunk
        assert hit == first_stop(text, stops)
        if hit is not None:
            return
        assert watch.held == longest_hold(text, stops), "held is exact"
        assert watch.length == len(text)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(stops=st.lists(words, min_size=1, max_size=5), chunks=chunked())
def test_what_a_stream_has_shown_never_belongs_to_a_stop(
    stops: list[str], chunks: list[bytes]
) -> None:
    watch, shown, text = Watch(stops), 0, b""
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
    watch = Watch(["€"])
    euro = "€".encode()
    assert watch.feed(b"a" + euro[:1]) is None
    assert watch.held == 1
    assert watch.feed(euro[1:2]) is None
    assert watch.held == 2
    assert watch.feed(euro[2:] + b"rest") == Hit(1, 4, "€")


def test_a_stop_inside_a_longer_one_wins_by_ending_first() -> None:
    assert Watch(["abcd", "bc"]).feed(b"abcd") == Hit(1, 3, "bc")
    assert Watch(["abc", "bc", "c"]).feed(b"abc") == Hit(0, 3, "abc")


PATTERNS = [r"[0-9]+", r"a{2,3}", r"x|yz", r"é\.", r"(?i)end"]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    patterns=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3),
    chunks=st.lists(st.text("a0xyzé.eEnNdD", max_size=3).map(str.encode), max_size=10),
)
def test_patterns_are_found_where_a_search_finds_them(
    patterns: list[str], chunks: list[bytes]
) -> None:
    watch, text = Watch((), patterns), b""
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
    assert Watch(["stop"], ["[0-9]"]).feed(b"a1stop") == Hit(1, 2, "1")
    assert Watch(["stop"], ["[0-9]"]).feed(b"stop1") == Hit(0, 4, "stop")


def test_patterns_take_linear_time() -> None:
    """RE2 does not backtrack: this pattern takes a backtracking engine for ever."""
    watch = Watch((), ["(a+)+$b"])
    for _ in range(200):
        assert watch.feed(b"aaaaaaaaaa") is None


@pytest.mark.parametrize("text", ["(", "[z-a]", "a{2,1}", r"\1", "(?=a)", "a**"])
def test_invalid_patterns_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid RE2 pattern"):
        Watch((), [text])


@pytest.mark.parametrize("text", ["", "a*", "(x)?", "^"])
def test_patterns_that_match_nothing_at_all_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="matches the empty text"):
        Watch((), [text])


def test_a_watch_without_stops_holds_nothing() -> None:
    watch = Watch()
    assert watch.feed(b"abc") is None
    assert watch.held == 0
