"""Patterns: Python's ``re`` finds what RE2 finds, or refuses."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.semantics import linear_regex

re2 = pytest.importorskip("re2", reason="RE2 is what is compared with")

ATOMS = st.sampled_from(
    ["a", "b", "é", ".", "\\d", "\\s", "\\S", "\\w", "\\b", "[ab]", "[^a\\s]", "[]a]", "[[x]", "$",
     "^", "\\n", "\\x41", "\\.", "{", "}", "\\z", "[\\w-]", "\\\\", "1", "\\v", "\\A"]
)  # fmt: skip
QUANTIFIERS = st.sampled_from(["", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0,}?"])


def _bigger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.tuples(st.sampled_from(["(", "(?:", "(?P<n>"]), inner, QUANTIFIERS)
    return (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map("|".join)
        | group.map(lambda parts: f"{parts[0]}{parts[1]}){parts[2]}")
    )


REPEATED = st.tuples(ATOMS, QUANTIFIERS).map("".join)
FLAGGED = st.tuples(st.sampled_from(["", "", "(?s)", "(?i)"]), st.recursive(REPEATED, _bigger))
PATTERNS = FLAGGED.map("".join)
TEXTS = st.text(st.sampled_from("abAB1é .\n\t\v\f{}\\x[]-_"), max_size=12)


def _found(pattern: Any, text: str) -> object:
    found = pattern.search(text)
    return None if found is None else (found.span(), found.groups())


@given(PATTERNS, TEXTS)
@settings(max_examples=1500, deadline=None)
def test_translated_pattern_finds_the_same(pattern, text):
    try:
        ours = linear_regex.translated(pattern)
        found = _found(ours, text)
    except ValueError:
        return
    assert found == _found(re2.compile(pattern), text)


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)", "(?!a)", "(?<=a)", "(?<!a)", r"(a)\1", "(?P<n>a)(?P=n)", "(?>a)", "a++", "a*+",
     "(?(1)a|b)", r"\Z", r"\p{L}", r"\u0041", "[[:alpha:]]", "(?x)a", "(?m)^a", "(a*)+", "{,3}",
     "a{1001}", "(?i)é", r"\Qa\E", "(?L)a", "[a", "(a", "a)", "*", r"\07", r"\8"],
)  # fmt: skip
def test_what_may_differ_is_refused(pattern):
    with pytest.raises(ValueError, match=r"."):
        linear_regex.translated(pattern)


def test_re2_is_not_needed(monkeypatch):
    monkeypatch.setattr(linear_regex, "re2", None)
    linear_regex.compiled.cache_clear()
    try:
        assert linear_regex.search(r"(\w+)@", 1, "me@x") == "me"
        with pytest.raises(ValueError, match="install google-re2"):
            linear_regex.compiled("(?=a)")
        with pytest.raises(ValueError, match="beyond ASCII"):
            linear_regex.search("(?i)k", 0, "\u212a")
    finally:
        linear_regex.compiled.cache_clear()


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "a{1001}", "\ud800"])
def test_re2_refusal_is_value_error(pattern):
    with pytest.raises(ValueError, match="refuses"):
        linear_regex.compiled(pattern)
