"""Host memory: pages that leave the device are copied, and come back instead of being computed."""

from __future__ import annotations

import pytest
from helpers.desk import Desk, generate
from helpers.fake_worker import FakeWorker
from helpers.simulation import expected
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Control
from sglang.srt.core.namespace import BASE
from sglang.srt.memory.host_tier import HostTier

FIRST, OTHER = list(range(1, 41)), list(range(50, 90))


def desk_of(host: int, **more: object) -> Desk:
    """A device for 64 tokens: two prompts of 40 do not fit at once."""
    return Desk(64, host=host, **more)  # type: ignore[arg-type]


def asked(desk: Desk, prompt: list[int]) -> tuple[int, int]:
    """Generate behind a prompt. Returns (cached tokens, those loaded from host memory)."""
    request = desk.ask(prompt, generate(4))
    desk.run()
    assert desk.tokens(request) == expected(prompt, generate(4).sampling).tokens
    stats = desk.done(request).stats
    return stats.cached_tokens, stats.loaded_tokens


def test_evicted_tokens_come_back_from_host_memory() -> None:
    desk = desk_of(host=200)
    assert asked(desk, FIRST) == (0, 0)
    assert asked(desk, OTHER) == (0, 0)
    cached, loaded = asked(desk, FIRST)
    assert cached == 39, "all but the last token, which is computed for its output"
    assert 0 < loaded < cached, "what the device has is not loaded"
    desk.finish()


def test_without_host_memory_they_are_computed_again() -> None:
    desk = desk_of(host=0)
    asked(desk, FIRST)
    asked(desk, OTHER)
    cached, loaded = asked(desk, FIRST)
    assert (cached < 39, loaded) == (True, 0)
    assert all(moves is None for moves in desk.worker.moves)
    desk.finish()


def test_a_path_in_host_memory_is_not_stored_again() -> None:
    desk = desk_of(host=200)
    for _ in range(4):
        asked(desk, FIRST)
        asked(desk, OTHER)
    assert desk.engine.store.counts["stored_tokens"] == 2 * 43
    desk.finish()


@pytest.mark.parametrize("movable", [1, 3, 8])
def test_a_pass_copies_no_more_than_it_may(movable: int) -> None:
    """The rest is lost on its way out, and loaded by later passes on its way in."""
    desk = desk_of(host=200)
    asked(desk, FIRST)
    asked(desk, OTHER)
    desk.engine.planner.movable = movable
    begin = len(desk.worker.moves)
    cached, loaded = asked(desk, FIRST)
    found = desk.worker.moves[begin:]
    sizes = [size for moves in found if moves for size in (len(moves.stores), len(moves.loads))]
    assert 0 < max(sizes) <= movable
    assert cached >= loaded > 0
    desk.finish()


def test_a_pass_may_only_copy() -> None:
    """A running request whose next chunk comes from host memory has nothing to compute."""
    desk = desk_of(host=200, chunked_prefill_size=4)
    asked(desk, FIRST)
    asked(desk, OTHER)
    asked(desk, [7] * 50)
    desk.engine.planner.movable = 16
    assert asked(desk, FIRST)[1] > 16
    alone = [moves for moves, rows in zip(desk.worker.moves, desk.worker.batches) if not rows]
    assert alone, "each pass had rows"
    desk.finish()


def test_a_failed_pass_leaves_what_others_have_stored() -> None:
    worker = FakeWorker(1)
    desk = desk_of(host=200, worker=worker)
    asked(desk, FIRST)
    asked(desk, OTHER)
    host = desk.engine.store.host
    assert host is not None
    stored = host.tree.evictable
    worker.fail_at = {worker.passes + 1}
    failed = desk.ask([7] * 50, generate(4))
    desk.run()
    assert desk.failed(failed)
    host.check()
    assert host.tree.evictable == stored, "copies that were not made, or were lost"
    assert asked(desk, FIRST) == (39, 39)
    desk.finish()


def test_a_flush_empties_host_memory() -> None:
    desk = desk_of(host=200)
    asked(desk, FIRST)
    asked(desk, OTHER)
    desk.send(Control(99, "flush"))
    assert desk.replies[-1].ok
    assert desk.engine.store.counts["host_tokens"] == 0
    assert asked(desk, FIRST) == (0, 0)
    desk.finish()


def test_host_memory_forgets_what_was_used_least_recently() -> None:
    """A small tier holds the end of the history alone."""
    desk = desk_of(host=50)
    prompts = [[k] * 40 for k in range(1, 6)]
    for prompt in prompts:
        asked(desk, prompt)
    assert asked(desk, prompts[0])[1] == 0
    assert asked(desk, prompts[4])[1] > 0, "the last of them is held"
    desk.finish()


def test_pages_of_one_plan_are_not_given_away() -> None:
    tier = HostTier(4, 1)
    one, two = ints([1, 2, 3]), ints([4, 5, 6])
    assert tier.save(one, ints([10, 11, 12]), BASE, 9) == 3
    assert tier.save(two, ints([20, 21, 22]), BASE, 9) == 1, "the rest is locked"
    moves = tier.planned(1)
    assert moves is not None
    assert len(set(moves.stored)) == 4
    assert tier.save(two, ints([20, 21, 22]), BASE, 9) == 2, "the next plan evicts"
    assert tier.planned(2) is not None
    tier.failed()
    tier.check()
    assert tier.tree.pool.free == 4
