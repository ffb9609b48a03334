"""The disk below host memory: what was computed before a restart is read, not computed again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from helpers.desk import Desk, generate
from helpers.fake_disk import FakeDisk, File, keys
from helpers.fake_worker import FakeWorker
from helpers.simulation import expected
from sglang.srt.core.disk_jobs import SlotRecord
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Close, Control
from sglang.srt.core.namespace import BASE, Namespace
from sglang.srt.disk import disk_tier
from sglang.srt.disk.disk_tier import MOST_FAULTS, DiskTier, digest_of, kept
from sglang.srt.memory.host_tier import HostTier

PROMPT, OTHER = list(range(1, 41)), list(range(50, 90))
SIZE = 4  # tokens a slot


def desk_on(
    file: File, *, slots: int = 64, host: int = 200, capacity: int = 256, **faults: object
) -> Desk:
    """A server that begins with a file."""
    worker = FakeWorker(1)
    disk = worker.disk = FakeDisk(slots, SIZE, worker.host, file)
    for name, value in faults.items():
        setattr(disk, name, value)
    return Desk(capacity, host=host, worker=worker)


def asked(desk: Desk, prompt: list[int], salt: str = "") -> tuple[int, int]:
    """Generate behind a prompt. Returns (cached tokens, those read from disk)."""
    request = desk.advance(desk.open(prompt, salt), generate(4), close=True)
    desk.run()
    assert desk.tokens(request) == expected(prompt, generate(4).sampling).tokens
    stats = desk.done(request).stats
    assert stats.disk_tokens <= stats.loaded_tokens <= stats.cached_tokens
    return stats.cached_tokens, stats.disk_tokens


def tier_of(desk: Desk) -> DiskTier:
    assert desk.engine.disk.tier is not None
    return desk.engine.disk.tier


def finish(desk: Desk) -> None:
    """Nothing may be left in any tier."""
    desk.finish()
    desk.run()
    host, tier = desk.engine.store.host, desk.engine.disk.tier
    assert host is not None
    assert tier is not None
    host.check()
    assert host.tree.pool.free == host.tree.pool.size, "host pages lost"
    assert tier.tree.pool.free == tier.tree.pool.size, "slots lost"
    assert not tier.disk.records()


def test_a_restarted_server_reads_what_the_last_one_computed() -> None:
    file: File = {}
    assert asked(desk_on(file), PROMPT) == (0, 0)
    assert len(file) == 10, "43 tokens have KV, which are ten slots of four"
    desk = desk_on(file)
    assert asked(desk, PROMPT) == (36, 36), "the last token's slot is computed"
    assert asked(desk, PROMPT) == (39, 0), "the device has it now"
    assert asked(desk, PROMPT[:20] + OTHER) == (20, 0)
    finish(desk)
    assert not file


def test_a_restart_without_the_file_computes() -> None:
    asked(desk_on({}), PROMPT)
    assert asked(desk_on({}), PROMPT) == (0, 0)


def test_what_host_memory_had_to_give_up_is_on_disk() -> None:
    """A device for one prompt and host memory for one: the third finds the first on disk alone."""
    desk = desk_on({}, capacity=64, host=48)
    for prompt in (PROMPT, OTHER, [7] * 40):
        asked(desk, prompt)
    cached, disk = asked(desk, PROMPT)
    assert cached >= disk > 0
    finish(desk)


def test_salts_are_apart_and_are_not_in_the_file() -> None:
    file: File = {}
    asked(desk_on(file), PROMPT, "a secret")
    assert b"secret" not in msgspec.msgpack.encode([key.before for key in keys(file)])
    desk = desk_on(file)
    assert asked(desk, PROMPT) == (0, 0)
    assert asked(desk, PROMPT, "another") == (0, 0)
    assert asked(desk, PROMPT, "a secret") == (36, 36)
    finish(desk)


def test_adapters_and_images_are_not_kept() -> None:
    assert kept(ints(PROMPT), Namespace("", 1), SIZE) == ints()
    assert kept(ints([*PROMPT[:10], -5, 3, 4]), BASE, SIZE) == ints(PROMPT[:8])
    assert kept(ints(PROMPT[:3]), BASE, SIZE) == ints()


def test_a_flush_empties_the_disk() -> None:
    file: File = {}
    desk = desk_on(file)
    asked(desk, PROMPT)
    desk.send(Control(99, "flush"))
    assert desk.replies[-1].ok
    desk.run()
    assert not file
    assert asked(desk, PROMPT) == (0, 0)
    finish(desk)


def test_a_flush_forgets_what_is_being_copied() -> None:
    file: File = {}
    desk = desk_on(file, delay=lambda: 5)
    request = desk.ask(PROMPT, generate(4))
    while not tier_of(desk).pending:
        desk.step()
    assert desk.done(request)
    desk.send(Control(99, "flush"))
    assert desk.replies[-1].ok
    assert tier_of(desk).pending
    desk.run()
    assert not file
    finish(desk)


def test_nothing_is_written_behind_slots_that_a_flush_forgot() -> None:
    """A read holds them in the tree until it ends."""
    file: File = {}
    asked(desk_on(file), PROMPT)
    desk = desk_on(file, delay=lambda: 40)
    context = desk.open(PROMPT)
    desk.advance(context, generate(4), close=True)
    assert tier_of(desk).reading
    desk.send(Close(context), Control(99, "flush"))
    assert desk.replies[-1].ok
    assert asked(desk, PROMPT + OTHER) == (0, 0)
    assert tier_of(desk).traffic.faults == 0
    assert asked(desk_on(dict(file)), PROMPT + OTHER) == (76, 76)
    finish(desk)


def test_what_is_being_written_is_not_found_after_a_flush() -> None:
    """Host memory holds it until it is written."""
    desk = desk_on({}, delay=lambda: 40)
    desk.ask(PROMPT, generate(4))
    while not tier_of(desk).pending:
        desk.step()
    desk.send(Control(99, "flush"))
    assert desk.replies[-1].ok
    assert tier_of(desk).pending
    assert asked(desk, PROMPT) == (0, 0)
    finish(desk)


def test_a_small_disk_keeps_what_was_used_last() -> None:
    file: File = {}
    desk = desk_on(file, slots=12)
    prompts = [[k] * 40 for k in range(1, 6)]
    for prompt in prompts:
        asked(desk, prompt)
    assert len(file) == 12
    desk = desk_on(file, slots=12)
    assert asked(desk, prompts[-1]) == (36, 36)
    assert asked(desk, prompts[0]) == (0, 0)
    finish(desk)


def test_two_prompts_read_a_common_beginning_once() -> None:
    file: File = {}
    desk = desk_on(file)
    asked(desk, PROMPT)
    asked(desk, PROMPT[:20] + OTHER)
    desk = desk_on(file, delay=lambda: 3)
    both = [desk.ask(PROMPT, generate(4)), desk.ask(PROMPT[:20] + OTHER, generate(4))]
    desk.run()
    for request, prompt in zip(both, (PROMPT, PROMPT[:20] + OTHER)):
        assert desk.tokens(request) == expected(prompt, generate(4).sampling).tokens
        assert desk.done(request).stats.cached_tokens >= 36
    disk = tier_of(desk).disk
    assert isinstance(disk, FakeDisk)
    assert disk.was_read == 9 + 9, "five slots of the second prompt were read for the first"
    finish(desk)


def test_other_requests_do_not_wait_for_the_disk() -> None:
    file: File = {}
    asked(desk_on(file), PROMPT)
    desk = desk_on(file, delay=lambda: 50)
    late, soon = desk.ask(PROMPT, generate(4)), desk.ask(OTHER, generate(4))
    while not desk.news(soon):
        desk.step()
    assert not desk.news(late)
    assert len(desk.engine.disk) == 1
    desk.run()
    assert desk.done(late).stats.disk_tokens == 36
    finish(desk)


def test_a_late_disk_is_not_waited_for() -> None:
    file: File = {}
    asked(desk_on(file), PROMPT)
    desk = desk_on(file, delay=lambda: 1_000_000)
    request = desk.ask(PROMPT, generate(4))
    desk.send()
    assert not desk.engine.busy
    desk.clock.advance(1.01)
    desk.send()
    while desk.engine.busy:
        desk.step()
    assert desk.tokens(request) == expected(PROMPT, generate(4).sampling).tokens
    assert desk.done(request).stats.cached_tokens == 0
    counts = desk.engine.disk.counts
    assert (counts["disk_waits"], counts["disk_late"]) == (1, 1)
    assert counts["disk_wait_seconds"] == pytest.approx(1.01)
    desk.engine.store.check()


def test_a_slow_disk_is_not_read() -> None:
    file: File = {}
    asked(desk_on(file), PROMPT)
    desk = desk_on(file)
    desk.engine.planner.costs.disk.b = 1e3
    assert asked(desk, PROMPT) == (0, 0)
    assert desk.engine.disk.counts["disk_read_bytes"] == 0
    finish(desk)


def test_an_aborted_request_leaves_nothing() -> None:
    file: File = {}
    asked(desk_on(file), PROMPT)
    desk = desk_on(file, delay=lambda: 5)
    context = desk.open(PROMPT)
    desk.advance(context, generate(4), close=True)
    assert len(desk.engine.disk) == 1
    desk.send(Close(context))
    assert len(desk.engine.disk) == 0
    desk.run()
    assert asked(desk, PROMPT)[0] == 36, "what was read for it is in host memory"
    finish(desk)


@pytest.mark.parametrize("number", range(1, 12))
def test_the_nth_read_that_fails_costs_no_text(number: int) -> None:
    file: File = {}
    asked(desk_on(file), PROMPT)
    desk = desk_on(file, fail_reads={number})
    cached, disk = asked(desk, PROMPT)
    assert cached == disk == (min(number, 10) - 1) * SIZE if number < 10 else 36
    assert desk.engine.disk.counts["disk_faults"] == (number < 10)
    finish(desk)


@pytest.mark.parametrize("number", range(1, 12))
def test_the_nth_write_that_fails_costs_no_text(number: int) -> None:
    file: File = {}
    desk = desk_on(file, fail_writes={number})
    asked(desk, PROMPT)
    assert desk.engine.disk.counts["disk_faults"] == (number < 11)
    desk = desk_on(file)
    cached, disk = asked(desk, PROMPT)
    assert cached == disk == min(number - 1, 9) * SIZE
    finish(desk)


def test_many_writes_that_fail_end_writing() -> None:
    file: File = {}
    desk = desk_on(file, fail_writes=range(1, 1000))
    for k in range(1, 10):
        asked(desk, [k] * 40)
    assert desk.engine.disk.counts["disk_faults"] == MOST_FAULTS
    assert not tier_of(desk).writes
    assert not file
    finish(desk)


def test_many_reads_that_fail_turn_the_disk_off() -> None:
    file: File = {}
    desk = desk_on(file, slots=200)
    prompts = [[k] * 40 for k in range(1, 10)]
    for prompt in prompts:
        asked(desk, prompt)
    desk = desk_on(file, slots=200, fail_reads=range(1, 1000))
    for prompt in prompts:
        assert asked(desk, prompt) == (0, 0)
    assert desk.engine.disk.counts["disk_faults"] == MOST_FAULTS
    assert tier_of(desk).off
    assert desk.engine.disk.counts["disk_tokens"] == 0


def test_damaged_slots_are_computed_again_and_the_disk_goes_on() -> None:
    file: File = {}
    desk = desk_on(file, slots=200)
    prompts = [[k] * 40 for k in range(1, 10)]
    for prompt in prompts:
        asked(desk, prompt)
    desk = desk_on(file, slots=200, damaged=range(1, 10))
    for prompt in prompts:
        assert asked(desk, prompt) == (0, 0)
    assert not tier_of(desk).off
    assert tier_of(desk).writes
    finish(desk)


def test_records_without_their_beginning_do_not_count() -> None:
    file: File = {}
    asked(desk_on(file), PROMPT)
    (third,) = [slot for slot, (record, _) in file.items() if record.key.tokens[0] == 9]
    del file[third]
    desk = desk_on(file)
    assert desk.engine.disk.counts["disk_tokens"] == 8
    assert asked(desk, PROMPT) == (8, 8)
    finish(desk)


def test_a_record_that_lies_does_not_count() -> None:
    file: File = {}
    asked(desk_on(file), PROMPT)
    (third,) = [slot for slot, (record, _) in file.items() if record.key.tokens[0] == 9]
    record, pages = file[third]
    key = msgspec.structs.replace(record.key, tokens=ints([9, 9, 9, 9]))
    file[third] = SlotRecord(record.slot, record.serial, key), pages
    desk = desk_on(file)
    assert asked(desk, PROMPT) == (8, 8)
    finish(desk)


def test_of_two_slots_with_one_key_the_later_counts() -> None:
    file: File = {}
    asked(desk_on(file), PROMPT)
    (first,) = [slot for slot, (record, _) in file.items() if record.key.first]
    record, pages = file[first]
    file[50] = SlotRecord(50, record.serial + 100, record.key), pages
    desk = desk_on(file)
    assert tier_of(desk).tree.pool.free == 64 - 10
    assert asked(desk, PROMPT) == (36, 36)
    finish(desk)


def test_more_than_the_disk_takes_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_tier, "UNWRITTEN", 60)
    desk = desk_on({}, capacity=64, host=400, delay=lambda: 100)
    for k in range(1, 8):
        asked_without_disk(desk, [k] * 40)
    desk.run()
    assert desk.engine.disk.counts["disk_dropped_tokens"] > 0
    finish(desk)


def asked_without_disk(desk: Desk, prompt: list[int]) -> None:
    """Generate behind a prompt; the disk's jobs need not have ended."""
    request = desk.ask(prompt, generate(4))
    while request not in desk.events or not desk.engine.stats.finished:
        desk.step()
    while desk.engine.running:
        desk.step()
    assert desk.tokens(request) == expected(prompt, generate(4).sampling).tokens


def test_digests_depend_on_all_that_is_before() -> None:
    tokens = ints([1, 2])
    assert digest_of(b"a" * 16, tokens) != digest_of(b"b" * 16, tokens)
    assert digest_of(b"a" * 16, tokens) != digest_of(b"a" * 16, ints([2, 1]))


def test_without_host_memory_there_is_no_disk() -> None:
    worker = FakeWorker(1)
    worker.disk = FakeDisk(8, SIZE, worker.host)
    desk = Desk(64, worker=worker)
    assert desk.engine.disk.tier is None
    desk.finish()


def test_a_failed_pass_leaves_what_is_on_disk() -> None:
    file: File = {}
    desk = desk_on(file)
    asked(desk, PROMPT)
    desk.worker.fail_at = {desk.worker.passes + 1}
    failed = desk.ask(OTHER, generate(4))
    desk.run()
    assert desk.failed(failed)
    assert len(file) == 10
    desk.engine.store.host.tree.clear()  # type: ignore[union-attr]
    assert asked(desk, PROMPT) == (36, 36)
    finish(desk)


def test_pages_of_a_pass_in_flight_are_not_read_into() -> None:
    """A read takes a host page only from passes that are collected."""
    host = HostTier(8, 1)
    disk = FakeDisk(8, 4, {})
    tier = host.below = DiskTier(disk, host)
    assert host.save(ints([1, 2, 3, 4]), ints([1, 2, 3, 4]), BASE, 9) == 4
    assert host.planned(1) is not None
    assert host.last_pass == 1
    assert host.copies(ints([1, 2, 3, 4]), 4, BASE) == ints(), "they have not arrived"
    tier.turn()
    assert tier.pending == 0, "what has not arrived is not written"
    host.collected(1)
    disk.host.update({page: [(1, 1)] for page in range(8)})
    tier.turn()
    assert tier.pending == 1
    while tier.pending:
        tier.turn()
    host.tree.clear()
    assert host.save(ints([5, 6]), ints([1, 2]), BASE, 9) == 2
    assert host.planned(2) is not None
    number = tier.read(ints([1, 2, 3, 4, 5]), 5, BASE)
    assert number
    for _ in range(3):
        assert not tier.turn()
    host.check()
    host.collected(2)
    found: list[Any] = []
    while not found:
        found = tier.turn()
    assert [result.number for result in found] == [number]
    host.check()
    assert len(host.copies(ints([1, 2, 3, 4]), 4, BASE)) == 4


def test_remaining_copies_are_made_when_the_engine_is_idle_again() -> None:
    file: File = {}
    desk = desk_on(file)
    desk.engine.planner.movable = 8
    first = desk.ask(PROMPT, generate(4))
    while desk.engine.running or desk.engine.waiting or not desk.engine.disk.work:
        desk.step()
    desk.step()
    assert desk.done(first)
    asked(desk, OTHER)
    assert len(file) == 20, "both prompts are on disk"
    finish(desk)
