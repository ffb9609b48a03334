"""Hooks on the cache do what they say, keep the books, change no text, and leave no trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest
from helpers.fake_worker import TOKEN_BYTES, FakeWorker, fake_info
from helpers.simulation import History
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import ScheduleConfig
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Generate, Open
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Inline

from benchmark.harness.hooks.matching import part_of_hits, whole_sequences
from benchmark.harness.hooks.patch import patched
from benchmark.harness.hooks.recorder import Recorder, recording

HOOKS: dict[str, Callable[[EngineCore], AbstractContextManager[None]]] = {
    "none of the hits": partial(part_of_hits, rate=0.0),
    "a third of the hits": partial(part_of_hits, rate=1 / 3),
    "whole sequences": whole_sequences,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOOKS)
def test_the_books_are_kept_in_random_histories(name: str) -> None:
    """Audit the accounts after every step, and check every text (``helpers/simulation``)."""
    seen: Counter[str] = Counter()
    for seed in range(1000, 1120):
        history = History(seed, host=False)  # the hooks change matches on the device alone
        try:
            with HOOKS[name](history.engine):
                seen += history.run().seen
        except Exception as error:
            raise AssertionError(f"history {seed}: {type(error).__name__}: {error}") from error
    assert seen["retractions"] > 20
    assert seen["evictions"] > 2500
    assert (seen["cached tokens"] > 100) is (name != "none of the hits")


def _engine(capacity: int = 4096, page_size: int = 1, chunk: int = 1 << 20) -> EngineCore:
    schedule = ScheduleConfig(chunked_prefill_size=chunk, max_running_requests=8)
    info = fake_info(capacity, page_size)
    return EngineCore(Inline(FakeWorker(page_size)), info, schedule, TOKEN_BYTES)


def _ask(engine: EngineCore, *prompts: list[int], draw: int = 1) -> Recorder:
    """All at once, to the end."""
    goal = Generate(SamplingParams(max_new_tokens=draw, temperature=0.0, ignore_eos=True))
    with recording(engine) as recorded:
        for prompt in prompts:
            number = engine.stats.received
            engine.handle([Open(number, ints(prompt).tobytes()),
                           Advance(number, number, goal, close=True)])  # fmt: skip
        while engine.busy:
            engine.step()
    engine.store.check()
    return recorded


def _cached(engine: EngineCore, *prompts: list[int], draw: int = 1) -> list[int]:
    found = _ask(engine, *prompts, draw=draw).requests
    assert all(r.computed == r.prompt - r.cached for r in found), "a hit grew behind its admission"
    return [r.cached for r in found]


STEM = [3, 4, 5] * 33  # 99 tokens


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("chunk", [28, 1 << 20])
@pytest.mark.parametrize("rate", [1.0, 0.5, 0.29, 0.0])
def test_a_part_of_the_hits(page_size: int, chunk: int, rate: float) -> None:
    engine = _engine(page_size=page_size, chunk=chunk)
    matched = 99 - 99 % page_size
    part = int(matched * rate + 1e-9) // page_size * page_size
    with part_of_hits(engine, rate):
        assert _cached(engine, [*STEM, 6]) == [0]
        assert _cached(engine, [*STEM, 7]) == [part]
        assert _cached(engine, [*STEM, 8]) == [part]
    assert _cached(engine, [*STEM, 9]) == [matched]


def test_the_rest_is_shown_when_the_next_pass_is_planned() -> None:
    """Tokens behind a shortened hit are not matched in the same pass. Later requests match them,
    and so does a request of that pass with more of its prompt to compute."""
    engine = _engine(chunk=150)
    with part_of_hits(engine, 0.5):
        _ask(engine, [3, 4, 5, 6])
        first, second = [3, 4, *[7] * 120, 8], [3, 4, *[7] * 120, 9]
        one, two = _ask(engine, first, second).requests
        assert (one.cached, one.computed) == (1, 122)
        # 150 - 122 tokens of the second one's were computed at first; then half of 122 was there.
        assert (two.cached, two.computed) == (1, 28 + 123 - 61)
        assert _cached(engine, [*second, 10]) == [61]


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(ValueError, match="0 to 1"), part_of_hits(_engine(), rate):
        pass


def test_a_table_finds_whole_sequences_alone() -> None:
    engine = _engine()
    with whole_sequences(engine):
        assert _cached(engine, [*STEM, 6], [*STEM, 7]) == [0, 0]  # at once
        assert _cached(engine, [*STEM, 8]) == [0]  # one after the other
        assert _cached(engine, STEM) == [0]  # shorter than an entry
        assert _cached(engine, STEM) == [98]  # the very same, but for the last token
        assert _cached(engine, [*STEM, 8, 9]) == [100]  # goes on from the longest
        assert _cached(engine, [*STEM, 10]) == [99]


def test_a_table_finds_a_prompt_with_what_was_drawn() -> None:
    engine = _engine()
    with whole_sequences(engine):
        _ask(engine, STEM, draw=5)
        [context] = [node for node in engine.store.tree.nodes() if not node.children]
        drawn = list(context.tokens)[-4:]  # the fifth was never computed
        assert _cached(engine, [*STEM, *drawn, 6]) == [103]
        assert _cached(engine, [*STEM, *drawn[:2], 90]) == [99]  # the prompt is an entry too


def test_a_table_has_no_entry_that_lost_its_tail() -> None:
    engine = _engine(capacity=150)
    with whole_sequences(engine):
        _ask(engine, STEM)
        _ask(engine, [9] * 60)  # takes the place of the last 9 tokens
        assert 0 < engine.store.tree.evicted < 99
        assert _cached(engine, [*STEM, 6]) == [0]
        engine.store.flush()
        assert _cached(engine, [*STEM, 7]) == [0]
        # Again there, but as the beginning of others alone: that is no entry.
        assert _cached(engine, [*STEM, 8]) == [0]


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_are_gone_afterwards(name: str) -> None:
    engine = _engine()
    parts = (engine, engine.store, engine.store.tree, engine.planner, engine._collector)
    before = [dict(vars(part)) for part in parts]
    with HOOKS[name](engine), recording(engine):
        assert [dict(vars(part)) for part in parts] != before
    assert [vars(part).keys() for part in parts] == [own.keys() for own in before]
    assert _cached(engine, [*STEM, 6], [*STEM, 7]) == [0, 99]


class Thing:
    def one(self) -> int:
        return 1


def test_patches_lie_over_one_another() -> None:
    thing = Thing()
    with patched(thing, one=lambda: 2):
        with patched(thing, one=lambda: 3):
            assert thing.one() == 3
            assert Thing().one() == 1
        assert thing.one() == 2
    assert thing.one() == 1
    assert not vars(thing)
    with pytest.raises(AttributeError, match="two"), patched(thing, two=2):
        pass
    with pytest.raises(KeyError), patched(thing, one=lambda: 2):
        raise KeyError
    assert thing.one() == 1
