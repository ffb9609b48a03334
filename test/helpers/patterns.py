"""Random regular expressions, texts that an automaton accepts, and texts that it may not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st
from sglang.srt.grammar.character_dfa import DEAD, CharacterDfa

LIMIT = 0x110000
PIECES = (
    "a", "b", "A", "0", "7", "_", " ", "-", "é", "ß", "K", "ſ", "İ", "字", "\U0001f600", ".",
    "\\.", "\\n", "\\t", "\\d", "\\w", "\\s", "\\D", "\\W", "\\S", "\\x41", "\\u00e9", "\\101",
    "[ab]", "[^a]", "[a-z]", "[A-Z_]", "[\\w-]", "[^\\W\\d]", "[]a]", "[^]\\n]", "[\\s\\S]",
    "[a\\-z]",
    "[0-9a-f]", "[é-ñ]", "{", "}", "a{,", "\\\\", "\\/", "\\N{DIGIT ONE}", "",
)  # fmt: skip
ASSERTIONS = ("^", "$", "\\A", "\\Z", "\\b", "\\B", "(?m:^)", "(?m:$)", "(?a:\\b)", "(?a:\\w)")
SYNTAX = (
    *"ab01(()))[]^-{},|*+?.$\\ #\n:-", "(?", "(?i", "(?i)", "(?x)", "(?x:", "(?a)", "(?s)", "(?m)",
    "(?u)", "(?L)", "(?ai:", "(?-i:", "(?#", "(?P<n>", "(?P<", ">", "(?=", "(?<!", "(?:",
    "\\d", "\\W", "\\x4", "\\x41", "\\u0061", "\\101", "\\08", "\\1", "\\0", "\\7", "\\e",
    "\\b", "\\Z", "\\]",
    "\\-", "\\)", "\\}", "\\\n", "\\\\", "\\N{DIGIT ONE}", "\\N{", "{2}", "{,2}", "{2,",
    "{1,2}?", "[^", "[a-",
    "-]", "[]", "ſ", "K", "ß", "İ", "é",
)  # fmt: skip
QUANTIFIERS = ("*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{,2}", "{2,}", "{0}", "{3,4}?")
POSSESSIVE = ("*+", "++", "?+", "{1,2}+")
OPENINGS = ("(", "(?:", "(?i:", "(?s:", "(?m:", "(?a:", "(?-i:")


def patterns() -> st.SearchStrategy[str]:
    """Patterns over the syntax; almost all are valid."""

    def more(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        def group(opening: str, part: str) -> str:
            return f"{opening}{part})"

        return st.one_of(
            st.lists(inner, min_size=2, max_size=4).map("".join),
            st.lists(inner, min_size=2, max_size=4).map("|".join).map("(?:{})".format),
            st.builds("(?:{}){}".format, inner, st.sampled_from(QUANTIFIERS)),
            st.builds("[{}]{}".format, st.sampled_from("ab_w "), st.sampled_from(POSSESSIVE)),
            st.builds(group, st.sampled_from(OPENINGS), inner),
            st.builds(group, st.sampled_from(("(?=", "(?!")), inner),
            st.builds(group, st.sampled_from(("(?<=", "(?<!")), st.sampled_from(PIECES)),
        )

    leaves = st.sampled_from(PIECES * 2 + ASSERTIONS)
    flags = st.sampled_from(("", "", "", "(?i)", "(?s)", "(?m)", "(?a)", "(?im)"))
    return st.builds("{}{}".format, flags, st.recursive(leaves, more, max_leaves=10))


def small_pattern(rng: random.Random, depth: int = 4) -> str:
    """A pattern over "a", "b", newline and space, dense in assertions."""
    draw = rng.random()
    if depth <= 0 or draw < 0.3:
        if depth > 0 and rng.random() < 0.05:
            return rng.choice(("a", "[ab]", ".", "\\w")) + rng.choice(POSSESSIVE)
        atoms = ("a", "b", "a", "b", ".", "[ab]", "[^a]", "\\w", "\\W", "\\n", " ", "(?s:.)")
        return rng.choice(atoms + ASSERTIONS[:8] if rng.random() < 0.5 else atoms)
    if draw < 0.55:
        return "".join(small_pattern(rng, depth - 1) for _ in range(rng.randint(1, 3)))
    if draw < 0.7:
        parts = (small_pattern(rng, depth - 1) for _ in range(rng.randint(1, 3)))
        return f"(?:{'|'.join(parts)})"
    if draw < 0.88:
        return f"(?:{small_pattern(rng, depth - 1)}){rng.choice(QUANTIFIERS)}"
    if draw < 0.95:
        return f"(?{rng.choice('=!')}{small_pattern(rng, depth - 1)})"
    return f"(?<{rng.choice('=!')}{small_pattern(rng, rng.choice((0, 1)))})"


def all_texts(alphabet: str, length: int) -> list[str]:
    """Every text of at most ``length`` characters."""
    counts = range(length + 1)
    return ["".join(text) for n in counts for text in itertools.product(alphabet, repeat=n)]


def spans(automaton: CharacterDfa) -> list[list[tuple[int, int]]]:
    """Ranges [from, to) of each class."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(automaton.classes)]
    ends = [*automaton.edges[1:].tolist(), LIMIT]
    for begin, end, label in zip(automaton.edges.tolist(), ends, automaton.labels.tolist()):
        if label != DEAD:
            found[label].append((begin, end))
    return found


def members(automaton: CharacterDfa, rng: random.Random, count: int, most: int) -> Iterator[str]:
    """Texts of the language of at most ``most`` characters, by random walks; ``count`` tries."""
    ranges = spans(automaton)
    for _ in range(count):
        state, text = 0, ""
        while True:
            ways = np.flatnonzero(automaton.next[state] != DEAD).tolist()
            if automaton.final[state] and (not ways or rng.random() < 0.3):
                yield text
                break
            if len(text) >= most:
                break
            label = rng.choice(ways)
            begin, end = rng.choice(ranges[label])
            text += chr(rng.choice((begin, end - 1, rng.randrange(begin, end))))
            state = int(automaton.next[state, label])


def mutated(text: str, rng: random.Random, alphabet: str) -> str:
    """The text with one character added, dropped, changed or doubled."""
    at = rng.randrange(len(text) + 1)
    new = rng.choice(alphabet)
    return rng.choice(
        (text[:at] + new + text[at:], text[:at] + text[at + 1 :], text[:at] + new + text[at + 1 :],
         text[:at] + text[at - 1 : at] + text[at:], text + "\n", text.swapcase())
    )  # fmt: skip
