"""Token masks of an automaton, against a walk of every token byte by byte."""

from __future__ import annotations

import gc
import os
import random
import weakref

import numpy as np
import pytest
from helpers.vocabularies import TOY, embedded, tekken, toy
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.character_dfa import CharacterDfa
from sglang.srt.grammar.fsm import TokenTable
from sglang.srt.grammar.fsm.mask_cache import MaskCache, MaskRow
from sglang.srt.grammar.fsm.state_masks import State, StateMasks
from sglang.srt.grammar.fsm.utf8 import missing, opened, span, split
from sglang.srt.grammar.regex import compile_regex

CASES = int(os.environ.get("GRAMMAR_CASES", "0"))

PATTERNS = [
    r"[ab]+",
    r"(ab|ba)*",
    r"a{1,5}(é|€)?",
    r"[^a]{0,4}",
    r'\{"a": (0|10|[01]{3}), "b": "[ab é]{1,4}"\}',
    r"\w{2,4}[ :]\W*",
    r"(🙂|日€|é)+a?",
    r".*",
    r"[\s\S]{3}",
    r"(aab|abab|a,b)(a|b)?",
    r"[é€]{2}|a€b",
    r"[aé]{1,3}è",
    r"",
]


def ids_of(mask: bytes, vocabulary: Vocabulary) -> list[int]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    assert len(bits) == 32 * vocabulary.words
    return np.flatnonzero(bits).tolist()


class Bytes:
    """The automaton byte by byte, by trying every character that a few first bytes may become."""

    def __init__(self, automaton: CharacterDfa) -> None:
        self.automaton = automaton
        self.ranges = [
            (int(low), int(high) - 1, int(label))
            for low, high, label in zip(
                automaton.edges, [*automaton.edges[1:], 0x110000], automaton.labels
            )
            if label >= 0
        ]

    def after(self, q: int, char: str) -> int:
        point = ord(char)
        for low, high, label in self.ranges:
            if low <= point <= high:
                return int(self.automaton.next[q, label])
        return -1

    def step(self, state: tuple[int, bytes], byte: int) -> tuple[int, bytes] | None:
        q, rest = state
        rest += bytes([byte])
        try:
            q = self.after(q, rest.decode())
            return None if q < 0 else (q, b"")
        except UnicodeDecodeError:
            pass
        low, high = bounds(rest)
        for first, last, label in self.ranges:
            if first <= high and low <= last and self.automaton.next[q, label] >= 0:
                return q, rest
        return None

    def walk(self, state: tuple[int, bytes], data: bytes) -> tuple[int, bytes] | None:
        found: tuple[int, bytes] | None = state
        for byte in data:
            if found is None:
                return None
            found = self.step(found, byte)
        return found

    def allowed(self, state: State, vocabulary: Vocabulary) -> list[int]:
        start = (state[0], opened(state[1]))
        hidden = vocabulary.special | set(vocabulary.eos)
        ids = [
            token
            for token, data in enumerate(vocabulary.tokens)
            if data and token not in hidden and self.walk(start, data) is not None
        ]
        if not state[1] and self.automaton.final[state[0]]:
            ids += vocabulary.eos
        return sorted(ids)


def starts() -> dict[bytes, tuple[int, int]]:
    """First and last code point behind each open character, from the code points themselves."""
    found: dict[bytes, tuple[int, int]] = {}
    for point in [*range(0xD800), *range(0xE000, 0x110000)]:
        data = chr(point).encode()
        for size in range(1, len(data)):
            low, _ = found.get(data[:size], (point, point))
            found[data[:size]] = low, point
    return found


_starts: dict[bytes, tuple[int, int]] = {}


def bounds(data: bytes) -> tuple[int, int]:
    if not _starts:
        _starts.update(starts())
    return _starts.get(data, (1 << 30, -1))


def reached(masks: StateMasks, count: int, generator: random.Random) -> list[State]:
    """Some states that tokens lead to, those inside characters among them."""
    tokens = [data for data in masks.table.tokens if data]
    seen = {(0, 0): None}
    for _ in range(40 * count):
        state = generator.choice(list(seen))
        for _ in range(10):
            after = masks.walk(state, generator.choice(tokens))
            if after is not None:
                seen.setdefault(after)
                break
    found = list(seen)
    generator.shuffle(found)
    return found[:count]


# -- UTF-8 -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_open_characters_span_their_code_points() -> None:
    bounds(b"")
    for data, expected in _starts.items():
        partial = int.from_bytes(data, "big")
        assert opened(partial) == data
        assert span(partial) == expected
        assert missing(partial) == len(chr(expected[0]).encode()) - len(data)


@pytest.mark.parametrize(
    "data", [b"\x80", b"\xc0", b"\xed\xa0", b"\xe0\x80", b"\xf4\x90", b"a\xff"]
)
def test_what_is_no_utf8_is_refused(data: bytes) -> None:
    assert split(data) is None
    assert split("é€".encode()[:-1]) == ("é", 0xE282)


# -- masks -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_of_the_toy_equal_a_walk_of_every_token(pattern: str) -> None:
    vocabulary, automaton = toy(), compile_regex(pattern)
    masks, naive = StateMasks(automaton, TokenTable.of(vocabulary)), Bytes(automaton)
    states = {(q, 0) for q in range(automaton.states)}
    for q in range(automaton.states):
        for data in TOY:
            after = masks.walk((q, 0), data) if data else None
            expected = naive.walk((q, b""), data) if data else None
            assert (after and (after[0], opened(after[1]))) == expected
            states |= {after} if after else set()
    for state in states:
        table = masks.table
        found = ids_of(masks.row(state).mask(table.words, table.eos), vocabulary)
        assert found == naive.allowed(state, vocabulary), (pattern, state)


@pytest.mark.slow
@pytest.mark.parametrize("make", [embedded, tekken])
@pytest.mark.parametrize(
    "pattern",
    [
        r'\{"name": "[\w\d\s]{1,16}", "age": [0-9]{1,3}, "s": "(Ravenclaw|Slytherin)"\}',
        r'"[^"\\]{0,200}"',
        r"[a-z]+@[a-z]+\.com",
        r"([A-Z][a-zéß]{2,6} ){2}(Zürich|東京|🙂🚀)",
    ],
)
def test_masks_of_real_vocabularies(make, pattern: str) -> None:
    vocabulary, automaton = make(), compile_regex(pattern)
    masks, naive = StateMasks(automaton, TokenTable.of(vocabulary)), Bytes(automaton)
    count = CASES or (6 if make is embedded else 2)
    for state in reached(masks, count, random.Random(pattern)):
        table = masks.table
        found = ids_of(masks.row(state).mask(table.words, table.eos), vocabulary)
        assert found == naive.allowed(state, vocabulary), (pattern, state)


# -- the cache ---------------------------------------------------------------------------------


def test_the_rows_used_last_are_kept() -> None:
    cache = MaskCache(3 * 1400)
    rows = [MaskRow(None, bytes(1000), False) for _ in range(4)]
    for key in range(3):
        cache.put(key, rows[key])
    assert cache.get(0) is rows[0]
    cache.put(3, rows[3])
    assert [cache.get(key) for key in range(4)] == [rows[0], None, rows[2], rows[3]]
    assert cache.nbytes == sum(row.nbytes for row in (rows[0], *rows[2:])) <= cache.limit
    cache.put(3, MaskRow((), b"", True))
    assert cache.nbytes == rows[0].nbytes + rows[2].nbytes + MaskRow((), b"", True).nbytes


@pytest.mark.slow
def test_a_table_is_made_once_and_let_go_with_its_vocabulary() -> None:
    vocabulary = toy()
    table = TokenTable.of(vocabulary)
    assert TokenTable.of(vocabulary) is table
    gone = weakref.ref(table)
    del vocabulary, table
    gc.collect()
    assert gone() is None
