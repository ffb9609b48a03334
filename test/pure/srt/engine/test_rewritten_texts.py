"""Texts that ``--jump-forward string`` writes anew, where memory is short: a cut may reach tokens
whose KV is shared already, and then the request runs on without any memory."""

from __future__ import annotations

import random

import pytest
from helpers.desk import Desk, generate
from helpers.fake_worker import EOS
from helpers.toy_grammar import ToyGrammars, ToyMatcher, allowed
from sglang.ir.constraint import Constraint
from sglang.srt.core.messages import Close, ForkContext
from sglang.srt.schedule.scheduler import Reserve

PROMPT = [3, 1, 4, 1, 5, 9]


def rewrite(matcher: ToyMatcher) -> tuple[int, list[int]]:
    """Other tokens in place of the last ones, as often as not: a function of the tokens."""
    r = random.Random(hash((matcher.seed, matcher.tokens)))
    if r.random() < 0.5:
        return 0, []
    taken = r.randint(0, min(4, len(matcher.tokens)))
    kept, found = matcher.tokens[: len(matcher.tokens) - taken], list[int]()
    for _ in range(taken + r.randint(1, 3)):
        ids = sorted(allowed(matcher.seed, (*kept, *found)) - {EOS})
        if not ids:
            break
        found.append(r.choice(ids))
    return (taken, found) if len(found) > taken else (0, [])


def history(seed: int, host: int) -> None:
    """Requests, forks of busy contexts and aborts in a memory that holds one or two of them."""
    r, contexts = random.Random(seed), list[int]()
    desk = Desk(
        r.choice([30, 40, 60]),
        jumps="string",
        depth=r.choice([1, 2, 3]),
        host=host,
        grammars=ToyGrammars(seed, 0.0),
        chunked_prefill_size=r.choice([3, 8, 64]),
    )
    desk.engine.planner.reserve = Reserve(share=0.0, low=0.0, step_up=0.0)
    for _ in range(60):
        if r.random() < 0.3:
            contexts.append(desk.open(PROMPT[: r.randint(1, 6)]))
            text = str(r.randrange(1 << 30))
            goal = generate(r.randint(3, 18), constraint=Constraint("regex", text), temperature=1.0)
            desk.advance(contexts[-1], goal, close=r.random() < 0.7)
        open_ = [context for context in contexts if context in desk.engine.store.contexts]
        if open_ and r.random() < 0.2:
            child = next(desk._ids)
            desk.send(ForkContext(r.choice(open_), child))
            desk.advance(child, generate(r.randint(3, 10)), close=True)
        elif open_ and r.random() < 0.1:
            desk.send(Close(r.choice(open_)))
        if desk.engine.busy:
            desk.step()
            desk.engine.store.check()
    desk.run()
    desk.finish()


# Each of these retracts such a request, or copies KV from host memory for it.
@pytest.mark.parametrize(
    ("seed", "host"), [(21, 0), (406, 0), (592, 0), (27, 200), (73, 200), (85, 200)]
)
def test_a_text_that_is_rewritten_loses_no_memory(
    seed: int, host: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToyMatcher, "rewrite", rewrite)
    history(seed, host)
