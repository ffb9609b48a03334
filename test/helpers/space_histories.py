"""Random histories of spaces beside ordinary requests, each a function of its seed.

Every answer is compared with what the program knows beforehand, so a page that is lost, shared
wrongly, given away too early or written in the wrong order shows as another token. After a
failure a program frees everything and begins anew.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from helpers.desk import generate
from helpers.fake_worker import VOCAB
from helpers.simulation import expected
from helpers.space_desk import GREEDY, Program, SpaceDesk
from helpers.space_worker import SpaceWorker
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import WHOLE
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Failed
from sglang.srt.core.space_messages import (
    CloseSpace,
    ForwardTokens,
    FreePages,
    ListExports,
    ReleaseExport,
)

SAMPLINGS = (
    GREEDY,
    GREEDY,
    SamplingParams(temperature=1.0, top_k=20),
    SamplingParams(temperature=0.0, frequency_penalty=0.5, presence_penalty=0.25),
)
TEXTS = [[(i * 7 + j * 3) % VOCAB for j in range(24)] for i in range(3)]


@dataclass
class Player:
    """A random program, and its memory besides the KV.

    Attributes:
        handles: those that it may write; fixed: imported and prefix ones.
        exports: names, with handles and states of the pages.
        prefixes: requests of prefixes, with text and first handle.
    """

    program: Program
    handles: set[int] = field(default_factory=set)
    fixed: set[int] = field(default_factory=set)
    shared: set[int] = field(default_factory=set)
    prefixes: dict[int, tuple[list[int], int]] = field(default_factory=dict)
    last: int = -1
    next_handle: int = 0
    failures: int = 0


class SpaceHistory:
    """One history: an engine, a few programs and a few requests."""

    def __init__(self, seed: int) -> None:
        self.r = r = random.Random(seed)
        self.seen: Counter[str] = Counter()
        worker = SpaceWorker(1)
        if r.random() < 0.3:
            worker.fail_at = {r.randint(2, 30) for _ in range(r.randint(1, 3))}
        if r.random() < 0.2:
            worker.break_at, worker.break_row = {r.randint(2, 30)}, r.choice([0, -1])
        self.desk = SpaceDesk(
            r.choice([48, 64, 96, 200]), worker=worker, depth=r.choice([1, 2, 2, 3]),
            chunked_prefill_size=r.choice([4, 16, 64]),
            schedule_policy=r.choice(["lpm", "fcfs", "priority"]),
        )  # fmt: skip
        self.players: list[Player] = []
        self.asked: dict[int, tuple[list[int], Any]] = {}
        self.exports: dict[str, list[int]] = {}
        self.names = 0
        self.lossy = bool(worker.fail_at or worker.break_at)

    def run(self) -> Counter[str]:
        r, desk = self.r, self.desk
        for _ in range(r.randint(20, 90)):
            self._act()
            if r.random() < 0.6 and desk.engine.busy:
                open_before = self._ages()
                ends = len(desk.ends)
                desk.step()
                self._check_ends(open_before, ends)
                desk.engine.store.check()
            self._react()
        self._finish()
        self.seen["read in the pass that writes it"] += desk.worker.read_in_pass
        self.seen["rows that follow"] += desk.worker.followed
        self.seen["retractions"] += desk.engine.stats.retractions
        self.seen["failed passes"] += desk.engine.stats.failed_passes
        self.seen["rows of spaces"] += desk.worker.loose
        self.seen["ended"] += len(desk.ends)
        return self.seen

    # -- programs --------------------------------------------------------------------------------

    def _act(self) -> None:
        r, live = self.r, [p for p in self.players if p.program.ended is None]
        if r.random() < 0.12:
            prompt = [*r.choice(TEXTS)[: r.randint(1, 24)], r.randrange(VOCAB)]
            goal = generate(r.randint(1, 14))
            if len(prompt) + 14 < self.desk.engine.info.capacity:
                self.asked[self.desk.ask(prompt, goal, priority=r.randint(0, 2))] = (prompt, goal)
            return
        if not live or (len(live) < 5 and r.random() < 0.1):
            program = self.desk.program(
                priority=r.randint(0, 2), owner=r.choice(["", "a"]), most=r.choice([0, 0, 30])
            )
            self.players.append(Player(program))
            return
        player = r.choice(live)
        action = r.choices(
            [self._alloc, self._forward, self._loop, self._copy, self._free, self._export,
             self._import, self._prefix, self._close, self._release, self._peek],
            [20, 40, 12, 10, 8, 4, 5, 5, 2, 2, 3],
        )[0]  # fmt: skip
        before, ends = self._ages(), len(self.desk.ends)
        action(player)
        self._check_ends(before, ends)

    def _ages(self) -> list[int]:
        """Open spaces, oldest first."""
        return [p.program.space for p in self.players if p.program.ended is None]

    def _check_ends(self, before: list[int], ends: int) -> None:
        """Check that a space which ended was the newest of those open."""
        for space in self.desk.ends[ends:]:
            assert space == before.pop(), "an older program was ended"

    def _alloc(self, player: Player) -> None:
        count = self.r.randint(1, 12)
        handles = list(range(player.next_handle, player.next_handle + count))
        player.next_handle += count
        if player.program.alloc(*handles):
            player.handles.update(handles)
            self.seen["allocations"] += 1
        else:
            self.seen["refused allocations"] += 1

    def _forward(self, player: Player, follows: int = -1, view: list[int] | None = None) -> None:
        """``view``: slots that it sees; the one that it writes is added, if there is one."""
        r, program = self.r, player.program
        count = r.choice([1, 1, 1, 2, 3, 6, 20]) if view is None else 1
        known = sorted(program.states)
        visible = r.sample(known, min(len(known), r.randint(0, 12))) if view is None else list(view)
        free = sorted(player.handles - player.shared - set(visible))
        r.shuffle(free)
        written = free[:count] if len(free) >= count and r.random() < 0.9 else []
        if view is not None:
            view += written
        more: dict[str, Any] = {}
        if r.random() < 0.3:
            more["positions"] = [r.randrange(4000) for _ in range(count)]
        if r.random() < 0.3:
            bits = np.array([r.random() < 0.6 for _ in range(count * (len(visible) + count))])
            grid = bits.reshape(count, len(visible) + count)
            more["mask"] = np.packbits(grid, axis=1, bitorder="little").tobytes()
            self.seen["masks"] += 1
        if follows >= 0:
            more["follows"] = follows
        if follows >= 0 or r.random() < 0.7:
            more["sample"] = r.choice(SAMPLINGS)
            more["uniform"] = r.random()
            more["history"] = [r.randrange(VOCAB) for _ in range(r.randint(0, 3))]
        more["top"] = r.choice([-1, 0, 3, WHOLE])
        more["probe"] = tuple(r.randrange(VOCAB) for _ in range(r.choice([0, 0, 2])))
        more["priority"] = r.choice([0, 0, 0, 1, 3])
        answered = "sample" in more or r.random() < 0.7
        tokens = [r.randrange(VOCAB) for _ in range(count)]
        request = program.forward(tokens, visible, written, answered=answered, **more)
        accepted = request in program.wanted or request in program.answers
        player.last = request if accepted and "sample" in more else -1
        self.seen["forwards kept nowhere"] += not written

    def _loop(self, player: Player) -> None:
        """A straight loop that reads no token before it sends the next forward; half of them see
        what the forward before has seen and written."""
        view: list[int] | None = [] if self.r.random() < 0.5 else None
        for _ in range(self.r.randint(2, 5)):
            self._forward(player, player.last, view)
            if player.program.ended is not None or player.last < 0:
                return
        self.seen["straight loops"] += 1

    def _peek(self, player: Player) -> None:
        """Try to read what was never written: it may be another program's."""
        empty = sorted(player.handles - set(player.program.states))
        if empty:
            verb = ForwardTokens(
                player.program.space, -1, ints([1]).tobytes(),
                visible=ints([self.r.choice(empty)]).tobytes(),
            )  # fmt: skip
            assert not player.program.send(verb), "KV of another program was read"
            self.seen["peeks"] += 1

    def _copy(self, player: Player) -> None:
        known = sorted(player.program.states)
        free = sorted(player.handles - player.shared)
        count = min(len(known), len(free), self.r.randint(1, 5))
        if count:
            sources, targets = self.r.sample(known, count), self.r.sample(free, count)
            player.program.copy(sources, targets)
            self.seen["copies"] += 1

    def _free(self, player: Player) -> None:
        mine = sorted(player.handles | player.fixed)
        handles = self.r.sample(mine, min(len(mine), self.r.randint(1, 10)))
        if handles and player.program.free(*handles):
            for own in (player.handles, player.fixed, player.shared):
                own.difference_update(handles)

    def _export(self, player: Player) -> None:
        filled = sorted(player.handles & set(player.program.states))
        handles = self.r.sample(filled, min(len(filled), self.r.randint(1, 6)))
        if handles:
            self.names += 1
            name, failed = f"export {self.names}", len(player.program.failed)
            player.program.export(name, *handles)
            if len(player.program.failed) == failed:
                player.shared.update(handles)
                self.exports[name] = [player.program.states[handle] for handle in handles]

    def _import(self, player: Player) -> None:
        if not self.exports:
            return
        name = self.r.choice(sorted(self.exports))
        states, program = self.exports[name], player.program
        before = set(program.states)
        program.take(name, player.next_handle, states)
        new = set(program.states) - before
        player.fixed.update(new)
        player.next_handle += len(states)
        self.seen["imports"] += bool(new)

    def _release(self, player: Player) -> None:
        if self.exports:
            name = self.r.choice(sorted(self.exports))
            player.program.send(ReleaseExport(player.program.space, 10**6, name))

    def _prefix(self, player: Player) -> None:
        text = self.r.choice(TEXTS)[: self.r.randint(1, 24)]
        request = player.program.prefix(text, player.next_handle)
        player.prefixes[request] = (text, player.next_handle)
        player.next_handle += len(text)

    def _close(self, player: Player) -> None:
        self.desk.send(CloseSpace(player.program.space))
        self.players.remove(player)
        player.program.wanted.clear()

    def _react(self) -> None:
        """Read what has come: pages of prefixes, and failures."""
        for player in self.players:
            program = player.program
            for request in [n for n in player.prefixes if n in program.replies]:
                text, first = player.prefixes.pop(request)
                count = program.replies[request].count
                assert count == len(text)
                program.prefixed(text, first, count)
                player.fixed.update(range(first, first + count))
                self.seen["prefixes"] += 1
            if any(failed.code in ("lost", "internal") for failed in program.failed):
                assert self.lossy or all(f.request in player.prefixes or f.request < 0 for f in
                                         program.failed if f.code == "internal")  # fmt: skip
                self._begin_anew(player)
            program.failed.clear()

    def _begin_anew(self, player: Player) -> None:
        if player.program.ended is not None:
            return
        for failed in player.program.failed:
            player.prefixes.pop(failed.request, None)
        handles = sorted(player.handles | player.fixed)
        if handles:
            verb = FreePages(player.program.space, ints(handles).tobytes())
            assert player.program.send(verb)
        player.program.states.clear()
        for own in (player.handles, player.fixed, player.shared):
            own.clear()
        player.last = -1
        self.exports.clear()  # some KV of them is lost, perhaps
        self.seen["programs that begin anew"] += 1

    def _check_waiting(self) -> None:
        """Requests that still wait do so for older programs."""
        planner, spaces = self.desk.engine.planner, self.desk.engine.door.spaces
        waiting = [*planner.running.values(), *planner.waiting.values()]
        if waiting and spaces is not None:
            oldest = min(request.scheduling.arrival for request in waiting)
            ages = [space.arrival for space in spaces.memory.spaces.values()]
            assert all(age < oldest for age in ages), "a request waits for a younger program"
            self.seen["requests that wait for older programs"] += 1

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self) -> None:
        desk = self.desk
        for _ in range(3):
            before, ends = self._ages(), len(desk.ends)
            desk.run(2000)
            self._check_ends(before, ends)
            self._react()
        self._check_waiting()
        for player in self.players:
            if player.program.ended is None:
                assert not player.program.wanted, "a forward has no answer"
        for player in self.players:
            if player.program.ended is None:
                desk.send(CloseSpace(player.program.space))
        desk.run()
        last = desk.program()
        desk.send(ListExports(last.space, 10**6))
        for name in last.replies[10**6].names:
            desk.send(ReleaseExport(last.space, 10**6 + 1, name))
        desk.send(CloseSpace(last.space))
        for request, (prompt, goal) in self.asked.items():
            end = desk.end(request)
            if isinstance(end, Failed):
                assert self.lossy
                continue
            assert desk.tokens(request) == expected(prompt, goal.sampling).tokens
            self.seen["requests"] += 1
        assert desk.engine.store.holder is None or desk.engine.store.holder.held == 0
        desk.finish()
