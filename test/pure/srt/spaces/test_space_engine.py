"""Spaces in an engine over a fake worker: every verb, its answer, and what it is refused for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.desk import generate
from helpers.fake_worker import VOCAB
from helpers.simulation import expected
from helpers.space_desk import GREEDY, TEXT, SpaceDesk, data, filled, finish, refused
from helpers.space_worker import SpaceWorker
from msgspec.structs import replace
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.messages import LoadAdapter, UnloadAdapter
from sglang.srt.core.space_messages import (
    WHOLE,
    AllocPages,
    CloseSpace,
    ForwardTokens,
    ImportPages,
    ListExports,
    ReleaseExport,
)
from sglang.srt.spaces import space_verbs
from sglang.srt.spaces.prefix_fills import MOST_FILLS

PENALISED = SamplingParams(temperature=0.0, frequency_penalty=0.5, presence_penalty=0.25)


# -- forwards ------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_a_text_is_generated_by_hand(depth: int) -> None:
    desk = SpaceDesk(depth=depth)
    program = filled(desk)
    program.alloc(*range(8, 20))
    request = program.forward([7], list(range(8)), [8], sample=GREEDY, top=0)
    for slot in range(9, 16):
        desk.run()
        token = program.answers[request].token
        request = program.forward([token], list(range(slot)), [slot], sample=GREEDY, top=3)
    desk.run()
    assert len(program.answers) == 9
    finish(desk)


@pytest.mark.parametrize("params", [GREEDY, PENALISED])
def test_futures_fill_every_pass_of_a_straight_loop(params: SamplingParams) -> None:
    """A forward follows the token of the one before, before that is read: eight tokens are sent
    at once, and each is in the pass behind the one of the token before."""
    desk = SpaceDesk(depth=2)
    program = filled(desk)
    program.alloc(*range(8, 24))
    request = program.forward([7], list(range(8)), [8], sample=params)
    for slot in range(9, 17):
        request = program.forward([0], list(range(slot)), [slot], sample=params, follows=request)
    desk.run()
    assert len(program.answers) == 10
    assert desk.worker.followed >= 7
    assert desk.engine.stats.passes == 9, "a token a pass; the text shares that of the first"
    finish(desk)


def test_a_followed_token_may_have_been_answered() -> None:
    desk = SpaceDesk()
    program = filled(desk)
    program.alloc(8, 9)
    request = program.forward([7], list(range(8)), [8], sample=GREEDY)
    desk.run()
    program.forward([0], list(range(9)), [9], sample=PENALISED, follows=request)
    desk.run()
    assert len(program.answers) == 3
    finish(desk)


def test_a_mask_and_positions_are_rows_of_one_pass() -> None:
    desk = SpaceDesk()
    program = filled(desk)
    rng = np.random.default_rng(1)
    bits = rng.random((6, 8 + 6)) < 0.5
    mask = np.packbits(bits, axis=1, bitorder="little").tobytes()
    program.forward(
        [9, 8, 7, 6, 5, 4], list(range(8)), mask=mask, positions=[0, 50, 3, 3, 90, 7],
        top=WHOLE, probe=(1, 2),
    )  # fmt: skip
    desk.run()
    assert desk.engine.stats.passes == 1
    assert desk.worker.loose > 4
    assert len(program.answers) == 2
    finish(desk)


def test_the_rows_of_a_pass_stay_within_its_budget() -> None:
    desk = SpaceDesk(chunked_prefill_size=4)
    program = desk.program()
    program.alloc(*range(30))
    tokens = [token % VOCAB for token in range(30)]
    program.forward(tokens, written=list(range(30)), sample=GREEDY)
    desk.run()
    assert max(sum(count for _, count in batch) for batch in desk.worker.batches) == 4
    assert desk.engine.stats.passes == 8
    finish(desk)


def test_spaces_share_a_pass_with_each_other_and_with_requests() -> None:
    desk = SpaceDesk()
    programs = [filled(desk) for _ in range(4)]
    request = desk.ask(TEXT, generate(4))
    desk.step()
    assert len(desk.worker.batches) == 1
    assert len(desk.worker.batches[0]) == 5
    desk.run()
    assert all(len(program.answers) == 1 for program in programs)
    assert desk.tokens(request) == expected(TEXT, generate(4).sampling).tokens
    finish(desk)


def test_higher_priority_goes_first_where_a_pass_is_full() -> None:
    desk = SpaceDesk(chunked_prefill_size=8)
    low, high = desk.program(), desk.program(priority=1)
    for program in (low, high):
        program.alloc(*range(8))
        program.forward(TEXT, written=list(range(8)))
    urgent = low.forward([5], answered=True, priority=2)
    desk.step()
    assert (len(high.answers), list(low.answers)) == (0, [urgent]), "its rest waits for the budget"
    desk.run()
    finish(desk)


def test_conflicts_are_kept_apart_and_the_rest_shares_a_pass() -> None:
    desk = SpaceDesk()
    program = filled(desk)
    desk.run()
    passes = desk.engine.stats.passes
    program.alloc(8, 9)
    program.forward([1], [0, 1], [8])  # writes 8
    program.forward([2], [8], [9])  # reads it in the same pass
    desk.run()
    assert desk.engine.stats.passes - passes == 1
    assert desk.worker.read_in_pass
    program.forward([3], [9], [8])  # writes what the next reads, again
    program.forward([4], [8], [9])  # writes what the last has read: a pass of its own
    program.forward([5], [0])  # overtakes
    desk.run()
    assert desk.engine.stats.passes - passes == 3
    assert len(program.answers) == 6
    finish(desk)


# -- copies --------------------------------------------------------------------------------------


def test_copies_precede_rows_and_follow_writes_of_their_sources() -> None:
    desk = SpaceDesk(depth=2)
    program = filled(desk)
    program.alloc(*range(8, 16))
    program.copy([0, 7], [8, 9])
    program.forward([1], [8, 9, 3], [10], top=2)
    program.copy([10, 8], [11, 12])
    program.copy([11], [13])
    program.forward([2], [11, 12, 13], top=2)
    program.copy([0], [11])  # after the row that reads it
    program.forward([3], [11], top=2)
    desk.run()
    assert len(program.answers) == 4
    finish(desk)


def test_a_pass_may_only_copy() -> None:
    desk = SpaceDesk(depth=2)
    program = filled(desk)
    desk.run()
    program.alloc(8)
    program.copy([0], [8])
    desk.run()
    program.forward([1], [8], top=2)
    desk.run()
    assert len(program.answers) == 2
    finish(desk)


# -- exports and prefixes ------------------------------------------------------------------------


def test_an_export_is_shared_read_only_and_outlives_its_space() -> None:
    desk = SpaceDesk()
    program, other = filled(desk), desk.program()
    number = program.export("docs", *range(8))
    states = [program.states[slot] for slot in range(8)]
    assert number not in program.replies, "the text is computed first"
    assert not other.send(ImportPages(other.space, 0, "docs", 100))
    desk.run()
    assert program.replies[number].count == 8
    other.take("docs", 100, states)
    other.forward([5], list(range(100, 108)), top=2)
    desk.run()
    assert not program.send(ForwardTokens(program.space, -1, data([1]), written=data([0])))
    assert "is exported" in program.failed[-1].message
    desk.send(CloseSpace(program.space))
    del desk.programs[program.space]
    assert not other.send(ForwardTokens(other.space, -1, data([1]), written=data([100])))
    assert "handle 100 is read-only" in other.failed[-1].message
    third = desk.program()
    third.take("docs", 0, states)
    other.send(ReleaseExport(other.space, 50, "docs"))
    third.forward([5], list(range(8)), top=2)
    desk.run()
    assert third.answers[1] == type(third.answers[1])(
        third.space,
        1,
        *[getattr(other.answers[1], n) for n in ("token", "logprob", "ids", "logprobs")],
    )
    stranger = desk.program(namespace="another")
    assert not stranger.send(ImportPages(stranger.space, 0, "docs", 0))
    assert "there is no export 'docs'" in stranger.failed[-1].message
    finish(desk)


def test_exports_are_listed_by_prefix_and_namespace() -> None:
    desk = SpaceDesk()
    program, other = filled(desk), desk.program(namespace="b")
    desk.run()
    for name in ("a/1", "a/2", "b/1"):
        program.export(name, 0)
    assert "is there already" in refused(program, lambda: program.export("a/1", 1))
    program.send(ListExports(program.space, 90, "a/"))
    assert program.replies[90].names == ("a/1", "a/2")
    other.send(ListExports(other.space, 90))
    assert other.replies[90].names == ()
    finish(desk)


@pytest.mark.parametrize(("depth", "page_size"), [(1, 1), (2, 1), (1, 4)])
def test_a_prefix_is_computed_once_and_read_only(depth: int, page_size: int) -> None:
    desk = SpaceDesk(depth=depth, page_size=page_size)
    text = TEXT * 2
    program, other = desk.program(), desk.program()
    for mine in (program, other):
        number = mine.prefix(text, 10)
        desk.run()
        assert mine.replies[number].count == 16 // page_size
        mine.prefixed(text, 10, 16 // page_size)
    assert desk.worker.tokens == 16, "the second finds it"
    slots = list(range(10 * page_size, 10 * page_size + 16))
    program.forward([5], slots, top=3)
    desk.run()
    assert not program.send(ForwardTokens(program.space, -1, data([1]), written=data(slots[:1])))
    assert "is read-only" in program.failed[-1].message
    assert desk.engine.store.tree.evictable == 0
    program.free(*range(10, 10 + 16 // page_size))
    assert desk.engine.store.tree.evictable == 0, "the other's lock stays"
    other.free(*range(10, 10 + 16 // page_size))
    desk.run()
    assert desk.engine.store.tree.evictable == 16 // page_size
    finish(desk)


def test_a_prefix_of_a_requests_text_computes_nothing() -> None:
    desk = SpaceDesk()
    request = desk.ask(TEXT, generate(4))
    desk.run()
    computed = desk.worker.tokens
    program = desk.program()
    number = program.prefix(TEXT + desk.tokens(request)[:3], 0)
    desk.run()
    assert program.replies[number].count == 11
    assert desk.worker.tokens == computed
    finish(desk)


def test_a_flood_of_prefixes_leaves_the_queue_to_others() -> None:
    desk = SpaceDesk(max_queued_requests=MOST_FILLS + 2)
    program, other = desk.program(), desk.program()
    texts = [[n % VOCAB, n // VOCAB, 1] for n in range(MOST_FILLS + 1)]
    numbers = [program.prefix(text, 10 * n) for n, text in enumerate(texts[:-1])]
    text = refused(program, lambda: program.prefix(texts[-1], 900))
    assert f"{MOST_FILLS} texts of the program are being computed" in text
    assert program.failed[-1].code == "overloaded"
    number, request = other.prefix(TEXT, 0), desk.ask(TEXT, generate(4))
    desk.run()
    assert sorted(program.replies) == numbers
    assert other.replies[number].count == len(TEXT)
    assert len(desk.tokens(request)) == 4
    last = program.prefix(texts[-1], 900)
    desk.run()
    assert program.replies[last].count == 3
    finish(desk)


def test_an_evicted_prefix_fails_where_the_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = SpaceDesk(max_running_requests=1, max_queued_requests=2, chunked_prefill_size=4)
    program, tree = desk.program(), desk.engine.store.tree
    number, lock = program.prefix(TEXT, 0), tree.lock
    desk.step()  # the first of two passes
    requests = [desk.ask(TEXT, generate(4)) for _ in range(2)]
    monkeypatch.setattr(tree, "lock", lambda tokens, most, space: lock(tokens, 0, space))
    desk.step()
    monkeypatch.undo()
    desk.run()
    assert [failed.request for failed in program.failed] == [number]
    assert "2 requests are waiting and 2 may" in program.failed[-1].message
    assert all(len(desk.tokens(request)) == 4 for request in requests)
    finish(desk)


def test_exports_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_verbs, "MOST_PENDING", 3)
    desk = SpaceDesk()
    program = filled(desk)
    numbers = [program.export(name, 0) for name in "ab"]
    text = refused(program, lambda: program.export("c", 0))
    assert "3 forwards, copies and exports of the space wait" in text
    assert program.failed[-1].code == "overloaded"
    desk.run()
    assert sorted(program.replies) == numbers
    program.export("c", 0)
    finish(desk)


# -- pages ---------------------------------------------------------------------------------------


def test_freed_pages_serve_what_came_before() -> None:
    desk = SpaceDesk(capacity=24)
    program, other = filled(desk), desk.program()
    program.forward([7], list(range(8)), top=2)
    program.free(*range(8))
    assert desk.engine.store.holder is not None
    assert desk.engine.store.holder.held == 9, "the pages wait for the forwards"
    desk.run()
    assert desk.engine.store.holder.held == 0
    other.alloc(*range(8))
    assert not other.send(ForwardTokens(other.space, 0, data([1]), visible=data([0])))
    assert "slot 0 holds no KV" in other.failed[-1].message, "the KV of another program"
    finish(desk)


def test_the_newest_space_ends_where_pages_are_short() -> None:
    desk = SpaceDesk(capacity=40)
    first, second, third = desk.program(), desk.program(), desk.program()
    for program in (first, second, third):
        assert program.alloc(*range(6))
    assert first.alloc(*range(6, 12)), "half of the pool is for programs: 20 pages"
    assert desk.ends == [third.space]
    assert third.ended is not None
    assert third.ended.code == "overloaded"
    assert "try again later" in third.ended.message
    assert first.alloc(12, 13)
    second.alloc(*range(6, 10))
    assert desk.ends == [third.space, second.space], "it is the newest itself"
    assert first.ended is None
    assert not second.send(AllocPages(second.space, data([1])))
    assert f"space {second.space} is not open" in second.failed[-1].message
    finish(desk)


def test_younger_requests_yield_to_an_older_space_then_finish() -> None:
    desk = SpaceDesk(capacity=40)
    program = desk.program()
    requests = [desk.ask([i, 5, 6, 7], generate(14)) for i in range(2)]
    for _ in range(10):
        desk.step()
    assert program.alloc(*range(20))
    assert desk.engine.stats.retractions
    program.free(*range(4))
    desk.run()
    for i, request in enumerate(requests):
        assert desk.tokens(request) == expected([i, 5, 6, 7], generate(14).sampling).tokens
    finish(desk)


def test_a_younger_space_ends_for_an_older_request() -> None:
    desk = SpaceDesk(capacity=40)
    request = desk.ask(TEXT, generate(28))
    desk.step()
    program = filled(desk)
    desk.run()
    assert program.ended is not None
    assert desk.tokens(request) == expected(TEXT, generate(28).sampling).tokens
    finish(desk)


def test_a_request_waits_for_an_older_space_without_spinning() -> None:
    desk = SpaceDesk(capacity=40)
    program = filled(desk)
    program.alloc(*range(8, 20))
    desk.run()
    request = desk.ask(TEXT, generate(28))
    desk.run(200)
    assert not desk.engine.busy, "the loop would turn for nothing"
    assert desk.engine.running or desk.engine.waiting
    desk.send(CloseSpace(program.space))
    del desk.programs[program.space]
    desk.run()
    assert desk.tokens(request) == expected(TEXT, generate(28).sampling).tokens
    finish(desk)


def test_an_export_without_space_is_dropped_before_a_space_ends() -> None:
    desk = SpaceDesk(capacity=40)
    old = filled(desk)
    desk.run()
    old.export("docs", *range(8))
    desk.send(CloseSpace(old.space))
    del desk.programs[old.space]
    program, young = desk.program(), desk.program()
    assert young.alloc(0, 1)
    assert program.alloc(*range(18))
    assert young.ended is None
    assert not program.send(ImportPages(program.space, 0, "docs", 50))
    finish(desk)


def test_a_forward_that_may_sample_nothing_fails_alone() -> None:
    desk = SpaceDesk(depth=2)
    program = filled(desk)
    program.alloc(8, 9)
    none = b"\x00" * (4 * -(-VOCAB // 32))
    program.forward([7], list(range(8)), [8], sample=GREEDY, allowed=none)
    program.forward([0], list(range(9)), [9], sample=GREEDY, follows=1)
    program.forward([5], list(range(9)), top=1)  # the KV of slot 8 stands
    desk.run()
    assert [(f.request, f.code) for f in program.failed if f.request >= 0] == [
        (1, "invalid"), (2, "lost"),
    ]  # fmt: skip
    assert sorted(program.answers) == [0, 3]
    finish(desk)


# -- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failed_pass_tells_which_pages_are_lost(depth: int) -> None:
    desk = SpaceDesk(depth=depth)
    program, other = filled(desk), filled(desk)
    desk.run()
    desk.worker.fail_at = {desk.worker.passes + 1}
    program.alloc(8, 9, 10)
    program.forward([7], list(range(8)), [8], sample=GREEDY)
    program.forward([0], list(range(8)), [9], sample=GREEDY, follows=1)
    program.copy([0], [10])
    number = other.prefix(TEXT, 50)
    desk.run()
    lost = [f for f in program.failed if f.lost]
    assert {f.code for f in lost} == {"lost"}
    assert {h for f in lost for h in np.frombuffer(f.lost, np.int32).tolist()} == {8, 9, 10}
    assert [f.request for f in program.failed if f.request >= 0] == [1, 2]
    assert [f.request for f in other.failed] == [number]
    assert not program.send(ForwardTokens(program.space, 50, data([1]), visible=data([8])))
    assert "slot 8 holds no KV (never written, or lost)" in program.failed[-1].message
    program.forward([7], list(range(8)), [8], sample=GREEDY)
    other.forward([7], list(range(8)), sample=GREEDY)
    desk.run()
    finish(desk)


def test_a_failed_row_ends_its_dependents_and_nothing_else() -> None:
    desk = SpaceDesk(depth=2)
    program, other = filled(desk), filled(desk)
    desk.run()
    desk.worker.break_at, desk.worker.break_row = {desk.worker.passes + 1}, 0
    program.alloc(8, 9, 10)
    program.forward([7], list(range(8)), [8], sample=GREEDY)  # breaks
    program.forward([3], [0, 8], [9], top=2)  # in the same pass, and reads it
    program.forward([0], list(range(8)), sample=GREEDY, follows=1)  # in the next
    program.forward([2], [9], [10], answered=False)  # reads what reads it
    program.forward([2], [0, 1], top=2)
    other.forward([2], [0, 1], top=2)
    desk.run()
    assert sorted(program.answers) == [0, 4]
    failed = {f.request: f.code for f in program.failed if f.request >= 0}
    assert failed == {1: "internal", 2: "lost", 3: "lost"}
    lost = [h for f in program.failed for h in np.frombuffer(f.lost, np.int32).tolist()]
    assert sorted(lost) == [8, 9, 10]
    assert sorted(other.answers) == [0, 1]
    assert not other.failed
    finish(desk)


def test_a_lost_device_ends_all_spaces() -> None:
    from sglang.srt.core.device_errors import DeviceLost

    class Dying(SpaceWorker):
        def run(self, batch: Any, masks: Any = None) -> Any:
            raise DeviceLost("it fell off the bus")

    desk = SpaceDesk(worker=Dying(1))
    program, idle = filled(desk), desk.program()
    desk.step()
    assert program.ended is not None
    assert program.ended.code == "lost"
    assert idle.ended is not None
    assert "the device was lost" in idle.ended.message


def test_an_adapter_stays_while_a_space_has_it() -> None:
    desk = SpaceDesk()
    info = replace(desk.engine.info, lora=True, max_loaded_loras=2, max_loras_per_batch=1)
    desk.engine.adapters._info = desk.engine.door._facts = info
    desk.send(LoadAdapter(500, "poet", "good"), LoadAdapter(501, "critic", "good"))
    while desk.engine.compiling:
        desk.send()
    for number, name in enumerate(("poet", "critic"), 1):
        program = desk.program(adapter=name)
        program.adapter = number
        program.alloc(0, 1)
        program.forward([5, 6], written=[0, 1], sample=GREEDY)
    desk.run()
    assert (desk.engine.stats.passes, desk.worker.adapters) == (2, 1), "one adapter a pass"
    assert all(len(program.answers) == 1 for program in desk.programs.values())
    replies = len(desk.replies)
    desk.send(UnloadAdapter(502, "poet"))
    assert len(desk.replies) == replies, "a space has it"
    poet = min(desk.programs)
    desk.send(CloseSpace(poet))
    del desk.programs[poet]
    desk.send()
    assert [reply.id for reply in desk.replies[replies:]] == [502]
    finish(desk)
