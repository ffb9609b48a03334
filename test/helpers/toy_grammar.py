"""A grammar that is a hash of the tokens before: what it allows is random, and the same each time.

It has forced runs, dead ends, ends, and drafts that are often wrong. Grammars are handed out late.
"""

from __future__ import annotations

import random
from concurrent.futures import Future
from functools import lru_cache

from helpers.fake_worker import EOS, VOCAB
from sglang.ir.constraint import Constraint
from sglang.srt.grammar.grammar_protocol import CompiledGrammar, GrammarError, Matcher

WORDS = (VOCAB + 31) // 32


@lru_cache(maxsize=1 << 14)
def allowed(seed: int, tokens: tuple[int, ...]) -> frozenset[int]:
    """The ids that may follow ``tokens``, EOS among them where the text may end."""
    r = random.Random(hash((seed, tokens)))
    kind = r.random()
    if kind < 0.03:
        return frozenset()
    if kind < 0.06 and tokens:
        return frozenset([EOS])
    if kind < 0.6:
        return frozenset([r.randrange(VOCAB - 1)])
    found = r.sample(range(VOCAB - 1), r.choice([2, 5, 60]))
    return frozenset([*found, EOS]) if r.random() < 0.2 else frozenset(found)


def bits(ids: frozenset[int]) -> bytes:
    return sum(1 << i for i in ids).to_bytes(4 * WORDS, "little")


class Work:
    """Masks made and tokens taken, by all grammars: a clock of their budgets."""

    count = 0

    def __call__(self) -> float:
        return self.count


class ToyMatcher:
    def __init__(self, seed: int, tokens: tuple[int, ...] = (), work: Work | None = None) -> None:
        self.seed, self.tokens, self.work = seed, tokens, work or Work()

    @property
    def accepting(self) -> bool:
        return EOS in allowed(self.seed, self.tokens)

    @property
    def finished(self) -> bool:
        return allowed(self.seed, self.tokens) == {EOS}

    def mask(self) -> bytes:
        self.work.count += 1
        return bits(allowed(self.seed, self.tokens))

    def advance(self, token: int) -> bool:
        self.work.count += 1
        if token == EOS or token not in allowed(self.seed, self.tokens):
            return False
        self.tokens += (token,)
        return True

    def forced(self, limit: int) -> list[int]:
        out: list[int] = []
        while len(out) < limit:
            ids = allowed(self.seed, self.tokens + tuple(out))
            if len(ids) != 1 or EOS in ids:
                break
            out += ids
        return out

    def draft(self, limit: int) -> list[int]:
        r = random.Random(hash(self.tokens))
        out = self.forced(limit)
        while len(out) < limit and r.random() < 0.7:
            ids = sorted(allowed(self.seed, self.tokens + tuple(out)) - {EOS})
            if not ids:
                break
            out.append(r.choice(ids))
        return out

    def rewrite(self) -> tuple[int, list[int]]:
        return 0, []

    def rollback(self, count: int) -> None:
        self.tokens = self.tokens[: len(self.tokens) - count]

    def fork(self) -> Matcher:
        return ToyMatcher(self.seed, self.tokens, self.work)


class ToyGrammar:
    path = "toy"

    def __init__(self, seed: int, work: Work | None = None) -> None:
        self.seed, self.work = seed, work

    def matcher(self) -> Matcher:
        return ToyMatcher(self.seed, work=self.work)


class ToyGrammars:
    """``regex`` is the grammar's seed; "bad" cannot be compiled. ``late``: share that takes a few
    looks."""

    def __init__(self, seed: int, late: float = 0.3) -> None:
        self.random, self.late, self.work = random.Random(seed), late, Work()
        self.pending: list[tuple[int, Future[CompiledGrammar], Constraint]] = []

    @property
    def counts(self) -> dict[str, int]:
        return {}

    def submit(self, constraint: Constraint) -> Future[CompiledGrammar]:
        future: Future[CompiledGrammar] = Future()
        if self.random.random() < self.late:
            self.pending.append((self.random.randint(1, 5), future, constraint))
        else:
            self._finish(future, constraint)
        return future

    def pass_time(self) -> None:
        """One step of the engine has gone by."""
        left = [(steps - 1, future, constraint) for steps, future, constraint in self.pending]
        self.pending = [entry for entry in left if entry[0] > 0]
        for steps, future, constraint in left:
            if steps <= 0:
                self._finish(future, constraint)

    def _finish(self, future: Future[CompiledGrammar], constraint: Constraint) -> None:
        if not future.set_running_or_notify_cancel():
            return  # no request waits for the grammar any more
        if constraint.text == "bad":
            future.set_exception(GrammarError("regex: this one is bad"))
        else:
            future.set_result(ToyGrammar(int(constraint.text), self.work))
