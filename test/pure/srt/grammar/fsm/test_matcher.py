"""The matcher of an automaton: its language token by token, and a history of calls in any order."""

from __future__ import annotations

import itertools
import os
import random
import re

import numpy as np
import pytest
from helpers.members import random_pattern
from helpers.vocabularies import TOY, embedded, toy
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.fsm import FsmGrammar, TokenTable
from sglang.srt.grammar.fsm.fsm_grammar import RETOKENIZED, REWRITTEN, FsmMatcher
from sglang.srt.grammar.regex import compile_regex

CASES = int(os.environ.get("GRAMMAR_CASES", "60"))
ALPHABET = 'ab01 "{}:,.-\né€🙂日'
SHORT = ["".join(chars) for size in range(3) for chars in itertools.product(ALPHABET, repeat=size)]
SHORT += ["".join(chars) for size in range(3, 7) for chars in itertools.product("ab", repeat=size)]
PATTERNS = [
    r"[ab]{0,5}",
    r"(ab|ba)*é?",
    r"a+(é|€|🙂)*",
    r"[^a]é{0,2}",
    r'\{"(a|b)": [01]{1,2}\}|ab',
    r"\w[ :]?",
    r"(🙂|日€|é)+a?",
    r"(aab|abab|a,b)(a|b)?",
    r"  ?[ab]|\n{1,3}",
    r"",
]


def ids_of(mask: bytes) -> list[int]:
    return np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["(ab){4000}[01]", "([01]a{97}){60}", "([01] a{97}){60}"])
def test_a_rewrite_tokenizes_a_bounded_text(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is forced at once, and however long ago the last boundary of words was. The text
    is the same; with boundaries all of it is written by rewrites."""
    grammar = FsmGrammar(compile_regex(pattern), embedded(), False)
    spelled: list[int] = []
    spell = TokenTable.spell

    def counted(table: TokenTable, data: bytes) -> list[int]:
        spelled.append(len(data))
        return spell(table, data)

    monkeypatch.setattr(TokenTable, "spell", counted)
    matcher, chosen = grammar.matcher(), 0
    while not matcher.finished:
        taken, tokens = matcher.rewrite()
        assert len(matcher.string_forced()) <= REWRITTEN
        if tokens:
            matcher.rollback(taken)
        else:
            tokens = ids_of(matcher.mask())[-1:]
            chosen += 1
        assert all(matcher.advance(token) for token in tokens)
    text = b"".join(embedded().tokens[token] for token in matcher._tokens).decode()
    assert re.fullmatch(pattern, text)
    assert max(spelled) <= RETOKENIZED + REWRITTEN
    if " " in pattern:
        assert chosen == 60, "where there is a choice"


def language(grammar: FsmGrammar, size: int) -> set[str]:
    """All texts of at most ``size`` characters that masks lead to."""
    found: set[str] = set()
    seen: set[tuple[object, ...]] = set()
    todo = [grammar.matcher()]
    while todo:
        matcher = todo.pop()
        data = b"".join(TOY[token] for token in matcher._tokens)
        key = (data, tuple(matcher._tokens) if grammar.canonical else ())
        if key in seen or len(data.decode(errors="replace")) > size:
            continue
        seen.add(key)
        ids = ids_of(matcher.mask())
        assert (0 in ids) == matcher.accepting
        assert matcher.finished == (ids == [0])
        if matcher.accepting:
            found.add(data.decode())
        for token in ids:
            if token:
                fork = matcher.fork()
                assert fork.advance(token)
                todo.append(fork)
    return {text for text in found if len(text) <= size}


@pytest.mark.slow
@pytest.mark.parametrize("canonical", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_language_is_that_of_re(pattern: str, canonical: bool) -> None:
    """A canonical mask too accepts each text by its canonical tokens, and no other text."""
    size = 6 - 3 * canonical  # a text has many tokenisations that are not canonical
    size = min(size, 2 - canonical) if "^" in pattern or "w" in pattern else size
    found = language(FsmGrammar(compile_regex(pattern), toy(), canonical), size)
    short = {text for text in SHORT if len(text) <= size}
    assert {text for text in short if re.fullmatch(pattern, text)} == found & short
    assert all(re.fullmatch(pattern, text) for text in found)


def test_texts_in_random_tokens_are_accepted_as_re_does() -> None:
    vocabulary = embedded()
    numbers = TokenTable.of(vocabulary).numbers
    for seed in range(CASES):
        generator = random.Random(seed)
        pattern, sample = random_pattern(generator, 2)
        grammar = FsmGrammar(compile_regex(pattern), vocabulary)
        for _ in range(4):
            text = sample(generator)[:40]
            if generator.random() < 0.5:
                at = generator.randint(0, len(text))
                text = text[:at] + generator.choice("ab é🙂\n") + text[at + 1 :]
            matcher, data, at = grammar.matcher(), text.encode(), 0
            while at < len(data):
                near = range(at + 1, min(at + 8, len(data)) + 1)
                ends = [end for end in near if data[at:end] in numbers]
                end = generator.choice(ends)
                if not matcher.advance(numbers[data[at:end]][0]):
                    break
                at = end
            expected = re.fullmatch(pattern, text) is not None
            assert (at == len(data) and matcher.accepting) == expected, (pattern, text)


class History(RuleBasedStateMachine):
    """Matchers advanced, rolled back and forked in any order, against new ones that have only
    advanced, of a vocabulary of their own."""

    make = staticmethod(toy)
    tables: tuple[Vocabulary, Vocabulary]

    @initialize(
        pattern=st.sampled_from([*PATTERNS, r'\{"name": "[^"\n]{1,9}", "s": (true|null)\}']),
        canonical=st.booleans(),
        crowded=st.booleans(),
    )
    def begin(self, pattern: str, canonical: bool, crowded: bool) -> None:
        automaton = compile_regex(pattern)
        self.vocabulary = self.make()
        table = TokenTable.of(self.vocabulary)
        table.rows.limit = 1 << 9 if crowded else 1 << 20
        self.grammar = FsmGrammar(automaton, self.vocabulary, canonical)
        self.other = FsmGrammar(automaton, self.make(), canonical)
        self.matchers: list[FsmMatcher] = [self.grammar.matcher()]
        self.tokens: list[list[int]] = [[]]

    def new(self, tokens: list[int]) -> FsmMatcher:
        matcher = self.other.matcher()
        assert all(matcher.advance(token) for token in tokens)
        return matcher

    def pick(self, draw: random.Random) -> int:
        return draw.randrange(len(self.matchers))

    @rule(draw=st.randoms(use_true_random=False), wild=st.booleans())
    def advance(self, draw: random.Random, wild: bool) -> None:
        at = self.pick(draw)
        matcher = self.matchers[at]
        ids = [token for token in ids_of(matcher.mask()) if token not in self.vocabulary.eos]
        if wild or not ids:
            token = draw.randrange(-1, self.vocabulary.size + 1)
        else:
            token = draw.choice(ids)
        before = matcher.mask()
        taken = matcher.advance(token)
        assert taken or (matcher.mask() == before and token not in ids)
        if taken:
            self.tokens[at] = [*self.tokens[at], token]

    @rule(draw=st.randoms(use_true_random=False))
    def rollback(self, draw: random.Random) -> None:
        at = self.pick(draw)
        count = draw.randint(0, len(self.tokens[at]))
        self.matchers[at].rollback(count)
        self.tokens[at] = self.tokens[at][: len(self.tokens[at]) - count]

    @rule(draw=st.randoms(use_true_random=False))
    def fork(self, draw: random.Random) -> None:
        at = self.pick(draw)
        if len(self.matchers) < 5:
            self.matchers.append(self.matchers[at].fork())
            self.tokens.append(self.tokens[at])

    @rule(draw=st.randoms(use_true_random=False), limit=st.integers(0, 12))
    def look_ahead(self, draw: random.Random, limit: int) -> None:
        at = self.pick(draw)
        forced, draft = self.matchers[at].forced(limit), self.matchers[at].draft(limit)
        probe = self.new(self.tokens[at])
        expected: list[int] = []
        while len(expected) < limit:
            ids = ids_of(probe.mask())
            if len(ids) != 1 or ids[0] in self.vocabulary.eos:
                break
            expected += ids
            assert probe.advance(ids[0])
        assert forced == expected
        assert draft[: len(forced)] == forced
        assert len(draft) <= limit
        probe = self.new(self.tokens[at])
        for token in draft:
            assert token in ids_of(probe.mask())
            assert probe.advance(token)
        text = self.matchers[at].string_forced()
        assert (b"".join(self.vocabulary.tokens[token] for token in draft)).startswith(
            text[: sum(len(self.vocabulary.tokens[token]) for token in draft)]
        )

    @rule(draw=st.randoms(use_true_random=False))
    def rewrite(self, draw: random.Random) -> None:
        """The text goes on with all that is forced, in the tokens of the whole."""
        at = self.pick(draw)
        matcher, tokens = self.matchers[at].fork(), self.tokens[at]
        rest = matcher.string_forced()
        count, wanted = matcher.rewrite()
        text = TokenTable.of(self.vocabulary).text
        if not wanted:
            assert count == 0
            assert not rest or text(tokens).endswith(b"\xff") or not self.writes(rest)
            return
        begin = matcher._heads[len(tokens)]
        matcher.rollback(count)
        assert all(matcher.advance(token) for token in wanted)
        after = tokens[: len(tokens) - count] + wanted
        assert text(after) == text(tokens) + rest
        assert self.vocabulary.encode([text(after[begin:]).decode()])[0] == after[begin:]

    def writes(self, data: bytes) -> bool:
        """Whether the vocabulary has the tokens for ``data``."""
        return bool(TokenTable.of(self.vocabulary).spell(data))

    @invariant()
    def same(self) -> None:
        for matcher, tokens in zip(self.matchers, self.tokens):
            fresh = self.new(tokens)
            assert matcher.mask() == fresh.mask()
            assert matcher.accepting == fresh.accepting
            assert matcher.finished == fresh.finished


class EmbeddedHistory(History):
    @staticmethod
    def make() -> Vocabulary:
        found = embedded()
        return Vocabulary(found.tokens, found.size, found.eos, found.special, found.encode)


TestHistory = pytest.mark.slow(History.TestCase)
TestHistory.settings = settings(max_examples=CASES, stateful_step_count=25, deadline=None)
TestEmbeddedHistory = pytest.mark.slow(EmbeddedHistory.TestCase)
TestEmbeddedHistory.settings = settings(
    max_examples=max(8, CASES // 4), stateful_step_count=25, deadline=None
)


@pytest.mark.slow
def test_no_live_state_is_a_dead_end() -> None:
    """The embedded vocabulary has all bytes: wherever tokens lead, something may follow."""
    vocabulary = embedded()
    for seed in range(CASES):
        generator = random.Random(seed)
        pattern, _ = random_pattern(generator, 3)
        matcher = FsmGrammar(compile_regex(pattern), vocabulary, seed % 2 == 0).matcher()
        for _ in range(30):
            ids = ids_of(matcher.mask())
            assert ids, (pattern, matcher._tokens)
            ids = [token for token in ids if token not in vocabulary.eos]
            if not ids:
                break
            parts = [token for token in ids if not vocabulary.tokens[token].isascii()]
            assert matcher.advance(generator.choice(parts or ids))
