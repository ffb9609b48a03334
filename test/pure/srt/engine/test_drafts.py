"""Drafts: their sources, requests and lengths, and that they change no text."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from helpers.desk import Desk, generate
from helpers.fake_worker import ECHO, TOKEN_BYTES, VOCAB, FakeWorker, Guesser, fake_info
from helpers.toy_grammar import ToyGrammar
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.core.context import Context
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Close, Done, ForkContext
from sglang.srt.core.request import Generation, Request, RequestSpec
from sglang.srt.engine import lookup
from sglang.srt.engine.draft_model import ModelDrafter
from sglang.srt.engine.drafts import AdaptivePace, Drafts, Pace
from sglang.srt.engine.lookup import LEAST, LONGEST, WINDOW, Lookup, LookupDrafter
from sglang.srt.engine.masks import GrammarBudget

ROUND = [ECHO, 1, 2, 3]  # the fake model goes round in a circle of seven behind it
PLAIN = [1, 2, 3, 4]


# -- lookup ---------------------------------------------------------------------------------------


def found(tokens: list[int], limit: int, step: int = 1 << 30) -> list[int]:
    index, array = Lookup(len(tokens)), ints(tokens)
    while index.add(array, step):
        pass
    return index.find(array, limit)


def plainly(tokens: list[int], limit: int) -> list[int]:
    """The same by the plainest code: the longest common past, the latest of equal ones."""
    last = len(tokens) - 1
    pasts = []
    for at in range(last):
        same = 0
        while same <= at and same < LONGEST and tokens[at - same] == tokens[last - same]:
            same += 1
        pasts.append((same, at))
    length, at = max(pasts, default=(0, 0))
    if length < LEAST:
        return []
    out = list(tokens)
    for place in range(limit if length == LONGEST else min(limit, length)):
        out.append(out[at + 1 + place])
    return out[len(tokens) :]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 20), st.integers(1, 9))
def test_the_longest_common_past_is_found(tokens: list[int], limit: int, step: int) -> None:
    tried, lookup.TRIED = lookup.TRIED, 1 << 30
    try:
        assert found(tokens, limit, step) == plainly(tokens, limit)
    finally:
        lookup.TRIED = tried


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_an_index_grows_with_a_context_cut_and_rewritten(data: Any) -> None:
    """Drafts found then are guesses, and well formed."""
    tokens, index = ints(), Lookup(40)
    for _ in range(data.draw(st.integers(1, 12))):
        del tokens[data.draw(st.integers(0, len(tokens))) :]
        tokens.extend(data.draw(st.lists(st.integers(0, 2), max_size=12)))
        index.add(tokens, data.draw(st.sampled_from([1, 5, 1000])))
        drafts = index.find(tokens, 8)
        assert len(drafts) <= 8
        assert set(drafts) <= set(tokens)


def test_memory_and_reach_are_bounded() -> None:
    start, between = [1, 2, 3, 4, 5, 6], [7 + i % 1000 for i in range(WINDOW)]
    index = Lookup(1 << 20)
    tokens = ints(start + between + start[:4])
    index.add(tokens, 1 << 30)
    assert index.find(tokens, 2) == [], "it stands more than a window back"
    tokens.extend(between[:4])
    index.add(tokens, 1 << 30)
    assert index.find(tokens, 3) == between[4:7]
    assert len(index._heads) == len(index._chain) == WINDOW


def test_a_long_prompt_is_indexed_in_parts() -> None:
    tokens = ints([1, 2, 3, 4, 5, 1, 2, 3])
    index = Lookup(8)
    assert index.add(tokens, 4) == 4
    assert index.find(tokens, 2) == []
    assert index.add(tokens, 4) == 2
    assert index.find(tokens, 2) == [4, 5]


# -- draft length ---------------------------------------------------------------------------------


def test_the_pace_rests_longer_and_longer() -> None:
    pace, drawn, tries = Pace(), 0, []
    while drawn < 400:
        if pace.size(drawn):
            tries.append(drawn)
            pace.note(4, 0, drawn + 1)
        drawn += 1
    gaps = [b - a for a, b in pairwise(tries)]
    assert gaps[:6] == [3, 5, 9, 17, 33, 65]
    assert max(gaps) == 65
    pace = Pace()
    pace.note(4, 0, 1)
    pace.note(4, 1, 5)
    assert pace.size(6), "a hit ends the rest"


def test_a_stride_follows_what_is_drawn() -> None:
    stride = AdaptivePace()
    sizes = []
    for kept in (2, 4, 8, 3, 0, 1, 2):
        sizes.append(stride.size(1000))
        stride.note(sizes[-1], kept, 0)
    assert sizes == [2, 4, 8, 16, 4, 1, 2]
    stride.note(1, 1, 0)
    assert stride.size(1000) == 4, "fewer than its size were asked for: that says nothing"


# -- in the engine --------------------------------------------------------------------------------


def desk(
    default: str = "none", model: Guesser | None = None, room: int = 4096, **more: Any
) -> Desk:
    """A ``Desk`` whose requests speculate by default. ``room`` of the draft model, in tokens."""
    drafter = None if model is None else ModelDrafter(model, fake_info(room, 1))
    keys = ("most", "room")
    own = {k: more.pop(f"drafts_{k}") for k in keys if f"drafts_{k}" in more}
    return Desk(drafts=Drafts("exact", default, model=drafter, **own), **more)


def text(one: Desk, prompt: list[int], **params: Any) -> tuple[list[int], Done]:
    request = one.ask(prompt, generate(**params))
    one.run()
    return one.tokens(request), one.done(request)


def logprobs(one: Desk) -> list[float]:
    """All log-probabilities that were reported, of prompts and of sampled tokens."""
    every = [event for events in one.events.values() for event in events]
    return [value for event in every for value in getattr(event, "logprobs", [])]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("source", ["ngram", "draft"])
@pytest.mark.parametrize(
    "params",
    [
        {}, {"top": 2, "score_from": 0}, {"temperature": 1.0, "seed": 5}, {"min_new_tokens": 30},
        {"frequency_penalty": 0.5, "repetition_penalty": 1.5}, {"stop": ("&'",)},
        {"stop_token_ids": (0,), "min_new_tokens": 21}, {"logit_bias": {3: 1.0}},
    ],
    ids=str,
)  # fmt: skip
def test_the_events_are_those_without(
    source: str, params: dict[str, Any], page_size: int, depth: int
) -> None:
    plain = Desk(page_size=page_size, depth=depth)
    model = Guesser(wrong=5) if source == "draft" else None
    fast = desk(source, model, page_size=page_size, depth=depth)
    for prompt in (ROUND, PLAIN):
        (want, plainly), (got, done) = (text(d, prompt, most=40, **params) for d in (plain, fast))
        assert got == want
        assert (done.reason, done.matched, done.cut) == (
            plainly.reason, plainly.matched, plainly.cut
        )  # fmt: skip
        assert logprobs(plain) == logprobs(fast)
        if prompt == ROUND and not params.get("temperature") and "stop" not in params:
            assert "frequency_penalty" in params or done.stats.accepted_tokens > 0
        assert plainly.stats.drafted_tokens == 0
    for one in (plain, fast):
        one.finish()


def test_a_copy_takes_a_pass_for_many_tokens() -> None:
    (_, plain), (_, done) = (text(desk(name), ROUND, most=100) for name in ("none", "ngram"))
    assert plain.stats.forward_passes == 100
    assert done.stats.forward_passes < 25
    assert done.stats.accepted_tokens > 75


def test_a_request_without_a_grammar_pays_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grammar of another request has taken all that the pass may spend on grammars."""
    monkeypatch.setattr(lookup, "GrammarBudget", lambda: GrammarBudget(0.0))
    plain, constrained = (
        Request(
            number,
            Context(number, ints([5, 6, 7, 8] * 10)),
            RequestSpec(generate(), 40),
            Generation(0),
        )
        for number in (1, 2)
    )
    constrained.generation.matcher = ToyGrammar(0).matcher()
    before = plain.scheduling.cost
    drafts = LookupDrafter().propose([(constrained, 3), (plain, 3)])
    assert drafts == [[], [5, 6, 7]]
    assert plain.scheduling.cost == before


def test_drafts_behind_the_end_of_a_text_are_not_accepted() -> None:
    circle, _ = text(desk(), ROUND, most=50)
    for end in range(40, 47):
        stop = b"".join(TOKEN_BYTES[token] for token in circle[:end]).decode()
        _, done = text(desk("ngram"), ROUND, most=100, stop=(stop,))
        assert done.stats.completion_tokens == end
        # A pass samples one token after its accepted drafts; the text may end before the last one.
        assert done.stats.completion_tokens - done.stats.accepted_tokens in (
            done.stats.forward_passes - 1,
            done.stats.forward_passes,
        )


def test_a_perfect_draft_model_is_always_right() -> None:
    for params in ({}, {"temperature": 1.0, "seed": 9}, {"repetition_penalty": 1.3}):
        tokens, done = text(desk("draft", Guesser()), PLAIN, most=60, **params)
        assert len(tokens) == 60
        assert done.stats.drafted_tokens == done.stats.accepted_tokens
        assert done.stats.forward_passes <= 9  # lengths 1, 3, 5, 9, 17, 17 and the rest


def test_a_draft_model_goes_on_from_what_was_drawn() -> None:
    """The draft model reads the sampled token after a wrong guess: it is wrong once, not ever
    after."""
    _, done = text(desk("draft", Guesser(wrong=7)), PLAIN, most=60)
    assert done.stats.drafted_tokens - done.stats.accepted_tokens <= 40, (
        "about every seventh is wrong, and some behind it"
    )
    assert done.stats.forward_passes <= 25


def test_a_request_chooses_for_itself() -> None:
    one = desk("ngram", Guesser())
    drafted = {}
    for name in ("auto", "off", "ngram", "draft"):
        _, done = text(one, PLAIN, most=20, speculation=name)
        drafted[name] = done.stats.accepted_tokens
    assert drafted == {"auto": 0, "off": 0, "ngram": 0, "draft": 15}
    assert text(one, ROUND, most=40, speculation="off")[1].stats.drafted_tokens == 0
    assert text(one, ROUND, most=40, speculation="auto")[1].stats.accepted_tokens > 0


def test_who_asks_for_what_is_not_there_is_told() -> None:
    one = desk()
    one.engine.info = fake_info(4096, 1)
    (failed,) = one.events[one.ask(PLAIN, generate(4, speculation="draft"))]
    assert "no draft model; start it with --speculative-draft-model-path" in str(failed)
    (failed,) = one.events[one.ask(PLAIN, generate(4, speculation="eagle"))]
    assert "speculation is 'eagle'; it must be one of auto, off, ngram, draft" in str(failed)


def test_the_drafts_of_a_pass_are_bounded() -> None:
    one = desk("draft", Guesser(), drafts_room=10, drafts_most=5)
    for i in range(3):
        one.ask([i, *PLAIN], generate(40))
    one.run()
    counts = [[count for _, count in rows] for rows in one.worker.batches[1:]]
    assert max(map(sum, counts)) <= 10
    assert max(map(max, counts)) > 1
    many = desk("draft", Guesser(), drafts_room=10)
    for i in range(10):
        many.ask([i, *PLAIN], generate(40))
    many.run()
    assert all(count == 1 for rows in many.worker.batches[1:] for _, count in rows)


# -- the draft model's memory ---------------------------------------------------------------------


def drafter_of(one: Desk) -> ModelDrafter:
    drafter = one.engine.planner.drafts._drafters["draft"]
    assert isinstance(drafter, ModelDrafter)
    return drafter


def test_what_the_draft_model_knows_is_not_computed_again() -> None:
    model = Guesser()
    one = desk("draft", model)
    text(one, PLAIN, most=60)
    tokens, _ = text(one, PLAIN, most=60)
    computed = model.tokens
    assert computed <= 2 * 62, "a token once a text"
    text(one, PLAIN + tokens, most=5)
    assert model.tokens - computed <= 10, "the text lies in its cache"


def test_forks_share_the_draft_models_cache() -> None:
    model = Guesser()
    one = desk("draft", model)
    prompt = [i % 50 for i in range(200)]
    parent = one.open(prompt)
    one.advance(parent, generate(1))
    one.run()
    for child in (101, 102, 103):
        one.send(ForkContext(parent, child, 200))
        one.advance(child, generate(12, temperature=1.0, seed=child))
    one.run()
    assert model.tokens < 200 + 3 * 40


@pytest.mark.parametrize("room", [8, 30, 60])
def test_a_draft_model_without_room_drafts_less(room: int) -> None:
    one = desk("draft", Guesser(wrong=7), room)
    asks = [one.ask([i, *PLAIN], generate(30)) for i in range(4)]
    for _ in range(1000):
        if not one.engine.busy:
            break
        one.step()
        drafter_of(one).store.check()
    texts = [one.tokens(ask) for ask in asks]
    plain = Desk()
    assert texts == [text(plain, [i, *PLAIN], most=30)[0] for i in range(4)]
    assert sum(one.done(ask).stats.accepted_tokens for ask in asks) > 0 or room == 8
    assert not drafter_of(one).store.contexts


def test_a_shorter_draft_model_is_not_asked_beyond_its_context() -> None:
    drafter = ModelDrafter(Guesser(), fake_info(4096, 1, context=20))
    one = Desk(drafts=Drafts("exact", "draft", model=drafter))
    tokens, done = text(one, PLAIN, most=50)
    assert len(tokens) == 50
    assert 0 < done.stats.accepted_tokens <= 16


def test_a_draft_model_that_fails_is_left_alone() -> None:
    model = Guesser(fail_at={4})
    one = desk("draft", model)
    asks = [one.ask([i, *PLAIN], generate(30)) for i in range(2)]
    one.run()
    assert all(one.done(ask).stats.completion_tokens == 30 for ask in asks)
    passes = model.passes
    text(one, PLAIN, most=10)
    assert model.passes == passes
    drafter = drafter_of(one)
    assert drafter.store.pool.free == drafter.store.pool.size


def test_its_prompt_is_read_in_parts() -> None:
    model = Guesser()
    drafter = ModelDrafter(model, fake_info(4096, 1), budget=10)
    one = Desk(drafts=Drafts("exact", "draft", model=drafter))
    prompt = [i % 70 for i in range(35)]
    tokens, done = text(one, prompt, most=40)
    assert tokens == text(Desk(), prompt, most=40)[0]
    assert done.stats.accepted_tokens > 0
    assert max(count for rows in model.batches for _, count in rows) == 10


def test_an_abort_leaves_no_copy() -> None:
    one = desk("draft", Guesser())
    context = one.open(PLAIN)
    one.advance(context, generate(100))
    for _ in range(4):
        one.step()
    assert drafter_of(one).store.contexts
    one.send(Close(context))
    assert not drafter_of(one).store.contexts


def test_the_fake_model_echoes_and_reads() -> None:
    """Properties of the fake model that the tests above rely on."""
    assert len(TOKEN_BYTES) == VOCAB
    assert isinstance(Guesser(), FakeWorker)
    tokens, _ = text(Desk(), ROUND, most=9)
    assert tokens == [4, 5, 6, 0, 1, 2, 3, 4, 5]
