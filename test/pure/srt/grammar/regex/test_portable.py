"""Patterns written out for other engines: the same language as ``re`` reads, or none at all."""

from __future__ import annotations

import random
import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.regex.unparse import portable


def as_python(text: str) -> str:
    """The portable form in ``re``'s syntax: only code points are written in another way."""
    return re.sub(r"\\u\{([0-9a-f]+)\}", lambda m: f"\\U{int(m[1], 16):08x}", text)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("abc", "abc"),
        ("", "(?:)"),
        (r"a\.b\n\x41\u00e9\U0001F600", r"a\u{2e}b\u{a}A\u{e9}\u{1f600}"),
        ("é/", r"\u{e9}\u{2f}"),
        (r"\Aab\Z", "ab"),
        ("(^a|b$)", "(?:a|b)"),
        ("(a)(?:b)(?P<n>c)", "abc"),
        ("a*b+?c??d{2}e{,3}(fg){1,}", "a{0,}b{1,}c{0,1}d{2,2}e{0,3}(?:fg){1,}"),
        ("a.b", r"a[\u{0}-\u{9}\u{b}-\u{d7ff}\u{e000}-\u{10ffff}]b"),
        ("(?s)[^a]", r"[\u{0}-\u{60}b-\u{d7ff}\u{e000}-\u{10ffff}]"),
        ("(?i)k", r"[Kk\u{212a}]"),
        (r"(?a)\d[[a&&b]", r"[0-9][\u{26}\u{5b}a-b]"),
    ],
)  # fmt: skip
def test_written_out(pattern: str, expected: str) -> None:
    assert portable(pattern) == expected


@pytest.mark.parametrize(
    "pattern",
    [r"\bb", "a(?=a)", "(?!a)b", "(?<=a)b", r"(a)\1", "b^a", "(b^a)", "a$b", "(^a)*", "a(b$)?",
     r"[^\s\S]", r"[\ud800-\udfff]", r"\w" * 40, "a(", "[", "a{2,1}"],
)  # fmt: skip
def test_what_cannot_be_said_so_simply_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match=r"^regex"):
        portable(pattern)


ATOMS = ["a", "b", "-", "]", "^", "$", "{", "}", "{1}", "{,2}", "{1,}", "{0,2}", "(", ")", "(?:",
         "(?P<x>", "(?i)", "(?=", "|", "*", "+", "?", ".", "[", "[^", "a-c", r"\]", r"\n", r"\-",
         r"\x61", r"\u0062", r"\w", r"\d", r"\\", "&&", "--", "é", "/", " ", "#", ",", "k",
         r"\S", r"\Z"]  # fmt: skip


@given(st.lists(st.sampled_from(ATOMS), max_size=9), st.integers(0, 2**32))
def test_the_language_stays(parts: list[str], seed: int) -> None:
    pattern = "".join(parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = re.compile(pattern)
        except re.error:
            with pytest.raises(GrammarError):
                portable(pattern)
            return
        try:
            text = portable(pattern)
        except GrammarError:
            return
        ours = re.compile(as_python(text))
    draw = random.Random(seed)
    for _ in range(60):
        sample = "".join(draw.choices("ab-]^{}1,2\n\\.&c/ #éÉ$Kk\u212a٣", k=draw.randrange(6)))
        assert bool(ours.fullmatch(sample)) == bool(theirs.fullmatch(sample)), (pattern, sample)
