"""Choices as a trie: exact canonical masks, and the bytes behind it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from helpers.members import WORDS
from helpers.vocabularies import TOY, embedded, tekken, toy
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.fsm import ChoicesGrammar
from sglang.srt.grammar.fsm.choices_grammar import ChoicesMatcher
from sglang.srt.grammar.grammar_protocol import GrammarError

CASES = int(os.environ.get("GRAMMAR_CASES", "40"))


def ids_of(mask: bytes) -> list[int]:
    return np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist()


def draw_strings(generator: random.Random, words: Sequence[str] = WORDS) -> list[str]:
    count = generator.choice([1, 2, 5, 40])
    found = ["".join(generator.choices(words, k=generator.randint(1, 4))) for _ in range(count)]
    if generator.random() < 0.5:
        found += [text[: generator.randint(0, len(text))] for text in found[:3]]
    return found


def expect(
    strings: list[str], ways: list[list[int]], tokens: list[int], vocabulary: Vocabulary
) -> list[int]:
    """The mask by its definition: canonical while the tokens are, else every token that fits."""
    hidden = vocabulary.special | set(vocabulary.eos)
    text = b"".join(vocabulary.tokens[token] for token in tokens)
    texts = {string.encode() for string in strings}
    on = [way for way in ways if way[: len(tokens)] == tokens]
    if on:
        found = {way[len(tokens)] for way in on if len(way) > len(tokens)}
    else:
        found = {
            token
            for token, data in enumerate(vocabulary.tokens)
            if data and token not in hidden and any(t.startswith(text + data) for t in texts)
        }
    return sorted(found | set(vocabulary.eos if text in texts else ()))


def plays(matcher: ChoicesMatcher) -> list[int]:
    """``forced`` by its definition."""
    found: list[int] = []
    probe = matcher.fork()
    while True:
        ids = ids_of(probe.mask())
        if len(ids) != 1 or not probe.advance(ids[0]):
            return found
        found += ids


@pytest.mark.slow
@pytest.mark.parametrize("make", [toy, embedded])
@pytest.mark.parametrize("canonical", [True, False])
def test_masks_are_those_of_their_definition(
    make: Callable[[], Vocabulary], canonical: bool
) -> None:
    vocabulary = make()
    words = WORDS if make is embedded else ("a", "b", "ab", "é", "€", "日€", '{"', " ", "a,b", "01")
    for seed in range(CASES if make is toy else CASES // 4):
        generator = random.Random(seed)
        strings = draw_strings(generator, words)
        ways = vocabulary.encode(strings) if canonical else []
        grammar = ChoicesGrammar(strings, vocabulary, canonical)
        for _ in range(3):
            matcher, tokens = grammar.matcher(), list[int]()
            while True:
                ids = ids_of(matcher.mask())
                assert ids == expect(strings, ways, tokens, vocabulary)
                text = b"".join(vocabulary.tokens[token] for token in tokens)
                assert matcher.accepting == (text.decode(errors="replace") in strings)
                assert matcher.finished == (set(ids) == set(vocabulary.eos))
                forced = plays(matcher)
                for limit in (0, 2, 99):
                    assert matcher.forced(limit) == forced[:limit]
                    draft, probe = matcher.draft(limit), matcher.fork()
                    assert draft[: len(forced)] == forced[:limit]
                    for token in draft:
                        assert token in ids_of(probe.mask())
                        assert probe.advance(token)
                count, wanted = matcher.rewrite()
                assert bool(wanted) == bool(matcher.string_forced())
                probe = matcher.fork()
                probe.rollback(count)
                assert all(probe.advance(token) for token in wanted)
                after = b"".join(vocabulary.tokens[token] for token in probe._tokens)
                assert after == text + matcher.string_forced()
                ids = [token for token in ids if token not in vocabulary.eos]
                if not ids:
                    break
                if generator.random() < 0.15:
                    back = generator.randint(0, len(tokens))
                    matcher.rollback(back)
                    tokens = tokens[: len(tokens) - back]
                if generator.random() < 0.15:
                    wild = generator.randrange(-1, vocabulary.size + 1)
                    taken = matcher.advance(wild)
                    assert taken == (wild in expect(strings, [], tokens, vocabulary)
                                     and wild not in vocabulary.eos)  # fmt: skip
                    tokens += [wild] if taken else []
                elif ids == [t for t in ids_of(matcher.mask()) if t not in vocabulary.eos]:
                    tokens.append(generator.choice(ids))
                    assert matcher.advance(tokens[-1])


@pytest.mark.slow
def test_each_string_by_canonical_tokens_of_a_large_vocabulary() -> None:
    vocabulary = tekken()
    strings = [f"{first} {second}" for first in WORDS for second in WORDS]
    ways = vocabulary.encode(strings)
    grammar = ChoicesGrammar(strings, vocabulary)
    for way in ways[:: max(1, 2000 // CASES)]:
        matcher = grammar.matcher()
        for at, token in enumerate(way):
            expected = {w[at] for w in ways if w[:at] == way[:at] and len(w) > at}
            assert set(ids_of(matcher.mask())) - set(vocabulary.eos) == expected
            assert matcher.advance(token)
        assert matcher.accepting


def test_a_tokenizer_with_other_bytes_gets_the_longest_tokens() -> None:
    base = toy()
    vocabulary = Vocabulary(
        TOY, base.size, base.eos, base.special, lambda texts: [[3]] * len(texts)
    )
    matcher = ChoicesGrammar(["abab€", "abab"], vocabulary).matcher()
    assert [TOY[token] for token in matcher.forced(9)] == [b"abab"]
    matcher.advance(matcher.forced(1)[0])
    assert [TOY[token] for token in ids_of(matcher.mask())] == [b"</s>", "€".encode()]
    assert matcher.string_forced() == b""


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(GrammarError, match="no token for byte b'Z' of 'aZ'"):
        ChoicesGrammar(["ab", "aZ"], toy())
    with pytest.raises(GrammarError, match="empty list"):
        ChoicesGrammar([], toy())


def test_the_empty_string_is_a_choice() -> None:
    matcher = ChoicesGrammar(["", "a"], toy()).matcher()
    assert matcher.accepting
    assert not matcher.finished
    assert ids_of(matcher.mask()) == [0, 3]
    only = ChoicesGrammar([""], toy()).matcher()
    assert only.finished
    assert ids_of(only.mask()) == [0]
