"""What one request may cost the engine's loop in one step, in counted work."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
from helpers.desk import Desk, generate
from helpers.fake_worker import TOKEN_BYTES
from helpers.toy_grammar import bits
from srt.core.constraint import Constraint
from srt.core.messages import Done
from srt.core.work import STEP_SEARCH
from srt.engine.collect import MAX_FORCED
from srt.grammar.base import Grammar, Matcher
from srt.grammar.watch import Patterns

LETTERS = "abcdefghijklmnopqrstuvwxyz"
HOSTILE = (r"[a-m][^Z]{900}Z1", r"[a-m][^Z]{800}Z2")


class Forced:
    """A grammar of one text, that of the constraint."""

    path = "forced"

    def __init__(self, text: str = "") -> None:
        self.counts: dict[str, int] = {}
        self._tokens = [TOKEN_BYTES.index(char.encode()) for char in text]
        self._at = 0

    def submit(self, constraint: Constraint) -> Future[Grammar]:
        future: Future[Grammar] = Future()
        future.set_result(Forced(constraint.text))
        return future

    def matcher(self) -> Matcher:
        return self

    def fork(self) -> Matcher:
        raise AssertionError("not needed")

    @property
    def accepting(self) -> bool:
        return self._at == len(self._tokens)

    @property
    def finished(self) -> bool:
        return self.accepting

    def mask(self) -> bytes:
        return bits(frozenset(self._tokens[self._at : self._at + 1]))

    def advance(self, token: int) -> bool:
        self._at += 1
        return token == self._tokens[self._at - 1]

    def forced(self, limit: int) -> list[int]:
        return self._tokens[self._at : self._at + limit]

    def draft(self, limit: int) -> list[int]:
        return self.forced(limit)

    def rewrite(self) -> tuple[int, list[int]]:
        raise AssertionError("not needed")

    def rollback(self, count: int) -> None:
        self._at -= count


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Its only item counts the bytes that are searched for patterns, by the automata or by RE2."""
    count, scan, search = [0], Patterns._scan, Patterns._search

    def scanned(self: Patterns, data: bytes) -> bool:
        count[0] += len(data)
        return scan(self, data)

    def searched(self: Patterns) -> object:
        count[0] += len(self._text)
        return search(self)

    monkeypatch.setattr(Patterns, "_scan", scanned)
    monkeypatch.setattr(Patterns, "_search", searched)
    return count


def attack(desk: Desk, patterns: tuple[str, ...], text: str, count: int) -> list[int]:
    """Requests whose whole text is forced."""
    goal = generate(len(text), stop_regex=patterns, constraint=Constraint("regex", text))
    return [desk.ask([7, 8, number], goal) for number in range(count)]


def text_of(desk: Desk, request: int) -> str:
    return b"".join(TOKEN_BYTES[token] for token in desk.tokens(request)).decode()


def test_stop_patterns_let_others_go_on(read: list[int]) -> None:
    """Sixteen texts of 3,900 forced tokens, beside a victim that gets a token a step. A step reads
    a bounded number of bytes, and each byte is read once."""
    desk = Desk(capacity=1 << 17, grammars=Forced())
    victim = desk.ask([1, 2, 3], generate(64))
    text = (LETTERS * 150)[:3900]
    hostile = attack(desk, HOSTILE, text, 16)
    steps = 0
    while not any(isinstance(event, Done) for event in desk.events.get(victim, [])):
        before = read[0]
        desk.step()
        steps += 1
        assert read[0] - before <= STEP_SEARCH // 3 + 16
    assert steps <= 64 + 1, "the victim waits for nobody"
    desk.run()
    assert {desk.done(request).reason for request in hostile} == {"stop"}
    assert {text_of(desk, request) for request in hostile} == {text}
    assert read[0] == 16 * len(text)


def test_forced_text_is_the_same_over_more_steps() -> None:
    """Patterns that cost much take forced tokens in several steps, where others take MAX_FORCED at
    a time."""
    costly = ("(?:a?b?){12}Z", *(rf"{char}+Z+{char}*[0-9]" for char in LETTERS[:12]))
    texts = []
    for patterns in ((), costly):
        desk = Desk(capacity=1 << 16, grammars=Forced())
        requests = attack(desk, patterns, (LETTERS * 30)[: 3 * MAX_FORCED], 40)
        desk.run()
        texts.append([text_of(desk, request) for request in requests])
        assert {desk.done(request).reason for request in requests} == {"stop"}
        passes = max(desk.done(request).passes for request in requests)
        assert (passes > 4) == bool(patterns)
    assert texts[0] == texts[1]


def test_a_costly_search_ends_its_own_request() -> None:
    """Where every letter begins a match of 900. The text so far stands, and others go on."""
    desk = Desk(capacity=1 << 16, grammars=Forced())
    text = LETTERS[:13] * 200 + "Z1"
    hostile, *_ = attack(desk, HOSTILE, text + "after", 1)
    found, *_ = attack(desk, (r"m[^Z]{3}Z1",), LETTERS[:13] + "abcZ1after", 1)
    free = desk.ask([1, 2, 3], generate(20))
    desk.run()
    done = desk.done(hostile)
    assert done.reason == "error"
    assert "stop_regex" in done.message
    assert text_of(desk, hostile) == text
    assert desk.done(found).matched == "mabcZ1"
    assert desk.done(found).cut == 12
    assert desk.done(free).reason == "length"
    desk.finish()
