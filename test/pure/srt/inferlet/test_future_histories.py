"""Random histories of forwards that begin with tokens still to be sampled, and faults put into the
real code that these histories must find."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers.future_histories import FutureHistory
from helpers.mutation import Mutation, become, caught, constant, drop, mutate
from helpers.seeds import LONG
from sglang.srt.inferlet.embed_map import EmbedMap
from sglang.srt.inferlet.future_token import FutureToken
from sglang.srt.inferlet.held_space import HeldSpace
from sglang.srt.inferlet.inference_calls import InferenceCalls
from sglang.srt.inferlet.row_plan import RowPlan

CHUNK, WITHIN = 60, 60

# Least counts in a chunk, about a third of what is usual.
USUAL = {
    "futures read": 800,
    "loops": 250,
    "refusals": 180,
    "refusals for an earlier one": 5,
    "rows that follow": 450,
    "spoiled programs": 15,
    "tokens": 700,
}

MUTATIONS = {
    "a known token is a placeholder": [
        Mutation(RowPlan, "_verb", "first + tokens[1:]", become("tokens")),
    ],
    "a known token is missing in the history": [
        Mutation(RowPlan, "_verb", "history + first", become("history")),
    ],
    "a forward follows none": [
        Mutation(RowPlan, "_verb", 'options["follows"] = self.follows.request', drop),
    ],
    "a forward that samples is not found by those behind it": [
        Mutation(HeldSpace, "_forward", "row.future.request = requests[-1]", drop),
    ],
    "a token that was embedded since gives way to the sampled one": [
        Mutation(EmbedMap, "fill", "(token, position, None, None)",
                 become("(token, position, None, one.future)")),
    ],
    "a refused call leaves an older token": [
        Mutation(InferenceCalls, "refused", "self.space.embeds.clear(call.future)", drop),
    ],
    "a position is that of the token before": [
        Mutation(EmbedMap, "promise", "(-1, position, None, future)",
                 become("(-1, position - 1, None, future)")),
    ],
    "a token of another queue is followed": [
        Mutation(FutureToken, "verify", "self.queue != queue", constant(False)),
    ],
    "what begins with the token of a failed call goes on": [
        Mutation(FutureToken, "fail", "(True, None)", become("(False, None)")),
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 600 if LONG else CHUNK, CHUNK))
def test_future_histories(first: int) -> None:
    """Every token is that of the definition, whatever was known when its call was made; wrong calls
    are refused, and in the end all is given back."""
    seen: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        seen += FutureHistory(seed).run()
    rare = {name: seen[name] for name, least in USUAL.items() if seen[name] < least}
    assert not rare, f"histories {first} to {first + CHUNK - 1} hardly contain: {rare}"


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_histories_catch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, *MUTATIONS[name])
    seeds = range(WITHIN)
    assert caught(lambda seed: FutureHistory(seed).run(), seeds), (
        f"{WITHIN} histories pass although {name}"
    )
