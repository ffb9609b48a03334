"""The histories can fail: each of these faults, put into the real code, is caught by them."""

from __future__ import annotations

import pytest
from helpers.mutation import Mutation, always, become, caught, drop, mutate, never
from helpers.space_desk import SpaceDesk, filled
from helpers.space_histories import SpaceHistory
from sglang.srt.spaces import space_passes, space_work, work_order
from sglang.srt.spaces.handle_table import HandleTable
from sglang.srt.spaces.space_memory import SpaceMemory
from sglang.srt.spaces.space_pages import SpacePages
from sglang.srt.spaces.space_passes import SpacePasses
from sglang.srt.spaces.space_system import Spaces
from sglang.srt.spaces.space_verbs import SpaceVerbs

WITHIN = 120  # histories

MUTATIONS = {
    "freed pages do not wait for what came before": [
        Mutation(SpaceMemory, "free", "space.pending", never, nth=1),
    ],
    "pages of a closed space are kept": [
        Mutation(SpaceMemory, "close", "_.give(freed)", become("None")),
    ],
    "an older space is ended": [
        Mutation(SpaceMemory, "_end_after", "_.arrival > _", always),
    ],
    "the oldest of the younger spaces is ended": [
        Mutation(SpaceMemory, "_end_after", "max", become("min")),
    ],
    "a page goes back with its first holder": [
        Mutation(SpacePages, "give", "_ == 0", always),
    ],
    "a taken page shows the KV of the one before": [
        Mutation(SpacePages, "take", "self._filled[_] = False", drop),
    ],
    "slots of a straight loop are those of another one": [
        Mutation(HandleTable, "appended", "slots.base is not room", never),
    ],
    "work does not wait for what it reads": [
        Mutation(work_order, "must_wait", "meet(before.writes, work.reads)", never),
    ],
    "work overwrites what is still to be read": [
        Mutation(work_order, "must_wait", "meet(before.reads, work.writes)", never),
    ],
    "a row overwrites what a row of its pass reads": [
        Mutation(work_order, "_conflict", "meet(before.reads, work.writes)", never),
    ],
    "a copy reads what a row of its pass writes": [
        Mutation(work_order, "_conflict", "isinstance(work, CopyWork) and _", never),
    ],
    "a forward follows a row of any pass": [
        Mutation(SpacePasses, "_waits", "_.at[0] != previous", never),
    ],
    "a followed token is not in the history": [
        Mutation(space_passes, "_follow", "rows[-1].sample = _", drop),
    ],
    "the first chunk of a forward is computed again": [
        Mutation(space_work, "next_rows", "max(run.first, start)", become("run.first")),
    ],
    "positions are forgotten": [
        Mutation(space_work, "_row", "row.positions = from_bytes(_)", drop),
    ],
    "scratch pages go back before their forward is planned": [
        Mutation(SpacePasses, "_forget", "work.number in done", always, nth=1),
    ],
    "lost KV is read": [
        Mutation(SpacePages, "lose", "self._filled[mine] = False", drop),
    ],
    "what depends on a failed forward goes on": [
        Mutation(SpacePasses, "_cascade", "self._broken(work)", never),
    ],
    "an older request waits for a younger space": [
        Mutation(Spaces, "give_way", "self._give(_, _)", never, nth=1),
        Mutation(Spaces, "give_way", "self._give(_, _)", never, nth=2),
    ],
    "exported pages are written": [
        Mutation(SpaceVerbs, "_export", "self.memory.pages.hold(pages)", become("None")),
    ],
    "a freed prefix stays locked": [
        Mutation(SpaceMemory, "settle", "_.unlock(_)", become("None")),
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_histories_catch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, *MUTATIONS[name])
    seeds = range(WITHIN)
    assert caught(lambda seed: SpaceHistory(seed).run(), seeds), (
        f"{WITHIN} histories pass although {name}"
    )


def stale_loop() -> None:
    """The next forward of a straight loop is refused where it writes to what it sees, or sees a
    page that was freed."""
    desk = SpaceDesk()
    program = filled(desk)
    program.alloc(*range(8, 12))
    program.forward([7], list(range(8)), [8])
    for written in (8, 3):
        program.forward([7], list(range(9)), [written])
        assert "twice" in program.failed[-1].message
    program.free(4)
    program.forward([7], list(range(9)), [9])
    assert "handle 4 is not in use" in program.failed[-1].message


def test_a_straight_loop_is_refused_as_any_forward_is() -> None:
    stale_loop()


@pytest.mark.parametrize(
    "mutation",
    [
        Mutation(HandleTable, "unmap", "self.known = None", drop),
        Mutation(SpaceVerbs, "_continued", "self.memory.pages.filled(page)", never),
    ],
)
def test_a_stale_straight_loop_is_caught(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch, mutation)
    assert caught(lambda seed: stale_loop(), range(1))
