"""Texts encoded side by side, over a worker that has layers. The KV of a token depends on all
tokens that it attended to, so one wrong index anywhere changes the sampled tokens."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from helpers.desk import generate
from helpers.fake_worker import VOCAB
from helpers.mutation import Mutation, always, become, constant, mutate
from helpers.parallel import (
    Item,
    ParallelDesk,
    grouped,
    segments_of,
    some_text,
    tokens_of,
    views_of,
)
from helpers.tables import Tables
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.core import segments
from sglang.srt.core.batch import Batch, Row, RowOutput, StepResult
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Close, Fill, ForkContext, Open, Score, decode_verbs, encode
from sglang.srt.core.request import Request
from sglang.srt.core.segments import MAX_SEEN, Segment, key, verify
from sglang.srt.core.workers import NO_MASKS, Finish, Masks
from sglang.srt.engine import rows
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.memory.store import Store
from sglang.srt.schedule.scheduler import Reserve

BASE: list[Item] = [[1, 2, 3], [[4, 5], [6, 7, 8], [9]], [10, 11]]


def tip(below: Sequence[int]) -> int:
    return hash(tuple(below)) % VOCAB


def logprob(below: Sequence[int], token: int) -> float:
    return -((tip(below) * 13 + token) % 89) / 10


class DeepWorker:
    """Two layers of KV, each written for all rows before any row reads it. Only rows that ask for a
    token or a score get one."""

    disk = None

    def __init__(self) -> None:
        self.first: dict[int, tuple[int, int]] = {}
        self.second: dict[int, int] = {}
        self.tables = Tables(1)
        self.batches: list[list[Row]] = []
        self.broken = -1  # row to fail in the next batch

    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        result = self.run(batch)
        return lambda: result

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, Any]:
        raise ValueError("this worker takes no adapters")

    def unload_adapter(self, number: int) -> None:
        pass

    def run(self, batch: Batch) -> StepResult:
        rows = self.tables.rows(batch)
        self.batches.append(rows)
        places = [(row, i) for row in rows for i in range(len(row.tokens))]
        written = [row.pages[row.start + i] for row, i in places]
        assert len(set(written)) == len(written), "two rows write one slot"
        for slot, (row, i) in zip(written, places):
            self.first[slot] = (row.tokens[i], row.start + i)
        for slot, (row, i) in zip(written, places):
            self.second[slot] = hash(tuple(self.first[p] for p in row.pages[: row.start + i + 1]))
        outputs = [self._output(row) for row in rows]
        if self.broken >= 0:
            outputs[self.broken] = RowOutput(error="injected")
            self.broken = -1
        return StepResult(batch.id, outputs)

    def _output(self, row: Row) -> RowOutput:
        below = [self.second[page] for page in row.pages[: row.start + len(row.tokens)]]
        out = RowOutput()
        if row.sample is not None:
            out.token = tip(below)
        if row.score is not None:
            first = row.start + row.score.at + 1
            for i, token in enumerate(row.score.targets):
                out.scores.append(logprob(below[: first + i], token))
                out.score_tops.append([])
                out.score_probes.append([])
        return out


def expected(items: Sequence[Item], count: int) -> tuple[list[int], list[list[int]]]:
    """Tokens sampled after ``items``, and for each token the second layer's view of all it attends
    to, computed at once from the definition."""
    tokens, views = tokens_of(items), views_of(items, count)
    first: list[tuple[int, int]] = []
    second: list[int] = []
    below: list[list[int]] = []
    while True:
        for i in range(len(first), len(tokens)):
            first.append((tokens[i], len(views[i]) - 1))
            second.append(hash(tuple(first[j] for j in views[i])))
            below.append([second[j] for j in views[i]])
        if len(below) == len(views):
            return tokens[-count:], below
        tokens.append(tip(below[-1]))


def desk(**options: object) -> tuple[ParallelDesk, DeepWorker]:
    worker = DeepWorker()
    return ParallelDesk(worker=worker, **options), worker  # type: ignore[arg-type]


def history(r: random.Random) -> Counter[str]:
    """Random history over the same texts: prompts side by side in different ways, one by one or
    together, forked, scored, aborted. The pool holds little more than the longest."""
    texts = [some_text(r, 3) for _ in range(7)]
    prompts = [grouped(r, texts[: r.randint(1, 7)]) for _ in range(r.randint(1, 5))]
    growth = r.randint(1, 12)
    longest = max(len(tokens_of(items)) for items in prompts) + growth
    office, worker = desk(
        capacity=longest + r.choice([0, 3, 60]),
        chunked_prefill_size=r.choice([1, 3, 8, 64]),
        max_running_requests=r.choice([1, 8]),
    )
    office.engine.planner.reserve = Reserve(share=0.0, low=0.0, step_up=0.0)  # must retract
    asked: list[tuple[int, list[Item]]] = []
    for items in prompts:
        context = office.open_items(items)
        if r.random() < 0.3:
            check_scores(office, context, items, r)
        if r.random() < 0.3:
            child = next(office._ids)
            office.send(ForkContext(context, child))
            asked.append((office.advance(child, generate(growth), close=True), items))
        asked.append((office.advance(context, generate(growth), close=r.random() < 0.5), items))
        if r.random() < 0.2:
            aborted = office.open_items(items)
            office.advance(aborted, generate(growth))
            office.step()
            office.send(Close(aborted))
        for _ in range(r.randint(0, 4)):
            office.step()
            office.engine.store.check()
    office.run()
    for request, items in asked:
        office.done(request)
        assert office.tokens(request) == expected(items, growth)[0], "a token saw a wrong one"
    office.finish()
    stats = office.engine.stats
    assert stats.bad_verbs == stats.plan_misses == 0
    several = sum(len(b) > len({row.context for row in b}) for b in worker.batches)
    return Counter(
        retractions=stats.retractions,
        cached=stats.cached_tokens,
        evicted=office.engine.store.tree.evicted,
        several=several,
    )


def histories(count: int) -> Counter[str]:
    return sum((history(random.Random(seed)) for seed in range(count)), Counter())


def check_scores(
    office: ParallelDesk, context: int, items: Sequence[Item], r: random.Random
) -> None:
    """Scores the context's tokens from somewhere in its tail on."""
    tokens, (_, below) = tokens_of(items), expected(items, 0)
    tail = max((segment.start for segment in segments_of(items)), default=0)
    start = r.randint(tail, len(tokens))
    request = office.advance(context, Score(start))
    office.run()
    assert office.prompt(request).logprobs == [
        None if i == tail else logprob(below[i - 1], tokens[i]) for i in range(start, len(tokens))
    ]


@pytest.mark.slow
@settings(max_examples=300)
@given(st.randoms(use_true_random=False))
def test_every_token_sees_what_it_should(r: random.Random) -> None:
    history(r)


@pytest.mark.slow
def test_histories_reach_what_they_are_about() -> None:
    seen = histories(300)
    assert min(seen[name] for name in ("retractions", "cached", "evicted", "several")) > 20, seen


FAULTS = {
    "a text sees its siblings": [
        Mutation(rows, "_row", "_.gap = _", become("row.start = start")),
    ],
    "a text stands behind its siblings": [
        Mutation(rows, "_row", "_ = A.sees + B - A.start",
                 become("place, segment = B, type(A)(0, 0)")),
    ],
    "texts side by side are cached as if they followed": [
        Mutation(segments, "key", "not segments", always),
    ],
    "what follows is cached as one more text": [
        Mutation(segments, "key", "_ if _ else A", become("A")),
    ],
    "a fork forgets the segments": [Mutation(Store, "fork", "cut(...)", become("()"))],
    "the first of its rows draws": [
        Mutation(EngineCore, "_collect", "(_ for _ in _ if X)", always),
    ],
    "a score is read where not all is seen": [
        Mutation(Request, "__post_init__", "_.tail + 1", constant(1)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_histories_catch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, *FAULTS[name])
    with pytest.raises((AssertionError, KeyError, IndexError)):
        histories(60)


# -- the cache -----------------------------------------------------------------------------------


def cached(office: ParallelDesk, items: Sequence[Item], namespace: str = "") -> int:
    request = office.advance(office.open_items(items, namespace), generate(3), close=True)
    office.run()
    assert office.tokens(request) == expected(items, 3)[0]
    return office.done(request).stats.cached_tokens


def test_the_same_prompt_again_is_in_the_cache() -> None:
    office, _ = desk()
    assert cached(office, BASE) == 0
    assert cached(office, BASE) == len(tokens_of(BASE)) - 1
    assert cached(office, BASE, "salt") == 0


def test_prompts_share_what_is_the_same_in_both_and_no_more() -> None:
    office, _ = desk()
    cached(office, [tokens_of(BASE)])
    assert cached(office, BASE) == 3, "the plain beginning"
    assert cached(office, [*BASE, [[1], [2]], [3]]) == 11, "all of a shorter one but what it drew"
    assert cached(office, [BASE[0], [*BASE[1][:2], [0]], [1]]) == 8, "the first two texts"
    assert cached(office, [BASE[0], [[4, 5], [6, 7]], [8, 9]]) == 7, "a text that ends earlier"
    assert cached(office, [[1, 2], [[3, 4, 5], [6, 7]], [8]]) == 2, "another beginning"


def test_fills_and_forks_of_n_completions() -> None:
    office, _ = desk()
    parent = office.open_items(BASE)
    filled = office.advance(parent, Fill())
    office.run()
    office.done(filled)
    children = [next(office._ids) for _ in range(3)]
    office.send(*(ForkContext(parent, child) for child in children))
    requests = [office.advance(child, generate(5), close=True) for child in children]
    office.run()
    for request in requests:
        assert office.tokens(request) == expected(BASE, 5)[0]
        assert office.done(request).stats.cached_tokens == len(tokens_of(BASE)) - 1


def test_one_pass_has_a_row_for_each_text() -> None:
    office, worker = desk()
    cached(office, BASE)
    first = [(row.start, list(row.tokens), len(row.pages)) for row in worker.batches[0]]
    assert first == [
        (0, [1, 2, 3], 3), (3, [4, 5], 5), (3, [6, 7, 8], 6), (3, [9], 4), (9, [10, 11], 11),
    ]  # fmt: skip
    assert [row.sample is not None for row in worker.batches[0]] == [False] * 4 + [True]
    assert all(len(batch) == 1 for batch in worker.batches[1:])


@pytest.mark.parametrize("broken", range(5))
def test_a_row_that_fails_fails_its_request_once(broken: int) -> None:
    office, worker = desk()
    other = office.ask([50, 51], generate(3))
    request = office.advance(office.open_items(BASE), generate(3), close=True)
    worker.broken = broken + 1
    office.run()
    assert office.failed(request).message == "injected"
    assert len(office.tokens(other)) == 3
    office.finish()


# -- refusals ------------------------------------------------------------------------------------


def test_a_context_cut_inside_a_text_goes_on_in_it() -> None:
    office, _ = desk()
    context = office.open_items(BASE)
    child = next(office._ids)
    office.send(ForkContext(context, child, 6))  # 1 2 3 | 4 5 | 6
    request = office.advance(child, generate(4))
    office.run()
    assert office.tokens(request) == expected([[1, 2, 3, 6]], 4)[0]


def test_scores_may_not_reach_into_texts_side_by_side() -> None:
    office, _ = desk()
    context = office.open_items(BASE)
    for goal in (Score(8), Score(0), generate(2, score_from=3)):
        failed = office.failed(office.advance(context, goal))
        assert failed.code == "invalid"
        assert "begin at 9" in failed.message
    office.advance(context, Score(9))
    office.run()
    office.finish()


BAD_SEGMENTS = [
    ((0, 0),), ((9, 9),), ((-1, -1),), ((3, 2),), ((3, 4),), ((3, 3), (3, 3)), ((5, 5), (3, 3)),
    ((3, 3), (5, 4)), ((3, 3), (5, 0)), ((2**40, 0),),
]  # fmt: skip


@pytest.mark.parametrize("segments", BAD_SEGMENTS)
def test_impossible_segments_open_nothing(segments: tuple[tuple[int, int], ...]) -> None:
    office, _ = desk()
    frame = encode([Open(7, ints(range(8)).tobytes(), "", segments)])  # type: ignore[arg-type]
    office.send(*decode_verbs(frame))
    assert office.engine.stats.bad_verbs == 1
    assert not office.engine.store.contexts


def test_segments_need_small_pages_and_a_bounded_sum() -> None:
    verify((), 5, 16)
    with pytest.raises(ValueError, match="--page-size 1"):
        verify((Segment(1, 1),), 5, 16)
    long = 1 << 20
    many = (Segment(long, long), *(Segment(long + i, long) for i in range(1, 16)))
    assert sum(segment.sees for segment in many) == MAX_SEEN
    verify(many, 2 * long, 1)
    with pytest.raises(ValueError, match="17 texts"):
        verify((*many, Segment(long + 16, long)), 2 * long, 1)


def test_segments_travel_and_cost_a_plain_context_nothing() -> None:
    verb = Open(1, ints([1, 2, 3]).tobytes(), "", (Segment(1, 1), Segment(2, 1)))
    assert decode_verbs(encode([verb])) == [verb]
    assert b"segments" not in encode([Open(1, b"")])
    tokens = ints([1, 2, 3])
    assert key(tokens, ()) is tokens
