"""SpacePasses: makes rows and copies of pending work, and answers of the results of passes."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from sglang.srt.core.batch import NONE_ALLOWED, Batch, Row, RowOutput, TokenCopies
from sglang.srt.core.ints import ints
from sglang.srt.core.space_messages import UNANSWERED, ForwardDone, SpaceFailed
from sglang.srt.spaces.program_space import ProgramSpace
from sglang.srt.spaces.space_memory import SpaceMemory
from sglang.srt.spaces.space_verbs import SpaceVerbs
from sglang.srt.spaces.space_work import (
    CopyWork,
    ExportWork,
    ForwardWork,
    Work,
    as_ints,
    next_rows,
)
from sglang.srt.spaces.work_order import select

Array: TypeAlias = np.ndarray[Any, Any]
SHARE = 8  # spaces may always use 1 / SHARE of a pass's token budget


@dataclass(slots=True, eq=False)
class SpacePart:
    """Work of spaces in one pass.

    Attributes:
        forwards: (space, forward, first, last): rows ``first`` to ``last`` of the pass.
        copies: (space, copy).
    """

    forwards: list[tuple[ProgramSpace, ForwardWork, int, int]] = field(default_factory=list)
    copies: list[tuple[ProgramSpace, CopyWork]] = field(default_factory=list)

    def work(self) -> Iterator[tuple[ProgramSpace, ForwardWork | CopyWork]]:
        yield from ((space, work) for space, work, _, _ in self.forwards)
        yield from self.copies


class SpacePasses:
    """The work of spaces in the passes of one engine.

    Args:
        most_adapters: most adapters of a pass; 0: no limit.
        pipelined: whether rows cannot have placeholders (``Row.follows``).
    """

    def __init__(
        self, memory: SpaceMemory, verbs: SpaceVerbs, most_adapters: int, pipelined: bool
    ) -> None:
        self._memory, self._verbs = memory, verbs
        self._most_adapters, self._pipelined = most_adapters, pipelined
        self._parts: dict[int, SpacePart] = {}  # by id of a pass in flight

    # -- the plan --------------------------------------------------------------------------------

    def plan(self, batch: Batch, adapters: set[int], budget: int, previous: int) -> None:
        """Add the rows and copies of pending work to a pass.

        Args:
            adapters: numbers of the pass's adapters; those of the added rows are added.
            budget: most tokens that the pass may compute.
            previous: id of the previous pass if it is in flight; else -1.
        """
        spaces = [space for space in self._memory.spaces.values() if space.pending]
        if not spaces:
            return
        of = {work.number: space for space in spaces for work in space.pending}
        part, done = SpacePart(), set[int]()
        left = max(budget - batch.num_tokens, budget // SHARE, 1)

        def take(work: Work) -> bool | None:
            nonlocal left
            space = of[work.number]
            if isinstance(work, ForwardWork):
                if left <= 0:
                    return None
                if self._waits(work, previous) or not self._adapts(space, adapters):
                    return False
                left -= self._add(batch, part, space, work, left)
                if work.left:
                    return False
            elif isinstance(work, CopyWork):
                part.copies.append((space, work))
            else:
                self._verbs.export(space, work)
            done.add(work.number)
            return True

        select([space.pending for space in spaces], take, self._memory.pages.meet)
        for space in spaces:
            self._forget(space, done)
        if part.copies:
            reads = np.concatenate([work.reads for _, work in part.copies])
            writes = np.concatenate([work.writes for _, work in part.copies])
            batch.copies = TokenCopies(as_ints(reads), as_ints(writes))
        if part.forwards or part.copies:
            self._parts[batch.id] = part

    def _add(
        self, batch: Batch, part: SpacePart, space: ProgramSpace, work: ForwardWork, most: int
    ) -> int:
        """Add the next rows of a forward, at most ``most`` tokens. Return the number of tokens."""
        begun, first, followed = work.state.begun, len(batch.rows), work.followed
        rows = next_rows(work, most, space.namespace.adapter, self._memory.pages.page_size)
        if followed is not None:
            _follow(rows, followed, begun)
        batch.rows += rows
        last = len(batch.rows) - 1
        part.forwards.append((space, work, first, last))
        if not work.left:
            work.state.at = batch.id, last
        return work.state.begun - begun

    def _waits(self, work: ForwardWork, previous: int) -> bool:
        """Return whether a forward must wait for the token of the forward that it follows."""
        followed = work.followed
        if followed is None or followed.state.token >= 0:
            return False
        if work.verb.sample is not None and work.verb.sample.penalised and work.count > 1:
            return True  # the worker adds the token only to the history of the placeholder's row
        if work.state.begun:
            return False
        return self._pipelined or previous < 0 or followed.state.at[0] != previous

    def _adapts(self, space: ProgramSpace, adapters: set[int]) -> bool:
        """Add the space's adapter to the pass. Return False if the pass has no room for it."""
        adapter = space.namespace.adapter
        if adapter and adapter not in adapters:
            if self._most_adapters and len(adapters) >= self._most_adapters:
                return False
            adapters.add(adapter)
        return True

    def _forget(self, space: ProgramSpace, done: set[int]) -> None:
        """Remove work, by number, that is wholly planned or dropped, and free what it holds."""
        for work in space.pending:
            if work.number in done and isinstance(work, ForwardWork) and len(work.scratch):
                self._memory.pages.give(work.scratch)
        space.pending[:] = [work for work in space.pending if work.number not in done]
        self._memory.settle(space)

    # -- results ---------------------------------------------------------------------------------

    def collect(self, number: int, outputs: Sequence[RowOutput]) -> None:
        """Answer the forwards whose last row was in pass ``number``; fail those with an error."""
        part = self._parts.get(number)
        if part is None:
            return
        for space, work, first, last in part.forwards:  # failures first: others may depend on them
            error = next((out.error for out in outputs[first : last + 1] if out.error), "")
            if error and self._open(space) and not work.state.failed:
                self._fail(space, work, error)
        del self._parts[number]
        for space, work, first, last in part.forwards:
            if work.targets is not None:
                for out in outputs[first : last + 1]:
                    work.state.scores.extend([*out.scores, *out.probe])
            if self._open(space) and not work.state.failed and work.state.at == (number, last):
                self._answer(space, work, outputs[last])

    def _open(self, space: ProgramSpace) -> bool:
        return self._memory.spaces.get(space.id) is space

    def _answer(self, space: ProgramSpace, work: ForwardWork, out: RowOutput) -> None:
        verb = work.verb
        work.state.token = out.token
        if verb.request == UNANSWERED:
            return
        del space.forwards[verb.request]
        if verb.sample is not None:
            space.keep(verb.request, out.token)
        probe = b""
        if work.targets is not None:
            probe = work.state.scores.tobytes()
        elif out.probe:
            probe = array("f", out.probe).tobytes()
        self._memory.events.append(
            ForwardDone(
                space.id, verb.request, out.token, out.logprob, out.ids, out.logprobs, probe,
            )
        )  # fmt: skip

    # -- failures --------------------------------------------------------------------------------

    def _fail(self, space: ProgramSpace, work: ForwardWork, error: str) -> None:
        """Fail a forward after an error of a row. Its KV is valid only after ``NONE_ALLOWED``."""
        lost: list[Array] = []
        if error.startswith(NONE_ALLOWED):
            self._say_failed(space, work, error, "invalid")
        else:
            self._say_failed(space, work, error, "internal")
            lost.append(self._memory.pages.lose(work.kept, work.number))
        self._cascade(space, lost)
        self._tell_lost(lost)

    def failed(self, error: str) -> None:
        """Fail the work of all passes in flight, which have failed: their KV was not written."""
        parts, self._parts = list(self._parts.values()), {}
        lost: list[Array] = []
        for part in parts:
            for space, work in part.work():
                lost.append(self._memory.pages.lose(work.kept, work.number))
                if isinstance(work, ForwardWork) and self._open(space) and not work.state.failed:
                    self._say_failed(space, work, error, "internal")
        for space in list(self._memory.spaces.values()):
            self._cascade(space, lost)
        self._tell_lost(lost)

    def _say_failed(self, space: ProgramSpace, work: ForwardWork, error: str, code: str) -> None:
        work.state.failed = error
        request = work.verb.request
        if space.forwards.get(request) is work:
            del space.forwards[request]
        self._memory.events.append(SpaceFailed(space.id, request, code, error))

    def _cascade(self, space: ProgramSpace, lost: list[Array]) -> None:
        """Drop the work of a space that has failed or depends on failed work: it follows its token,
        or reads a slot without KV. Add the slots that dropped work should write to ``lost``."""
        everything: dict[int, Work] = {work.number: work for work in space.pending}
        for part in self._parts.values():
            everything |= {work.number: work for own, work in part.work() if own is space}
        dropped = set[int]()
        for number in sorted(everything):
            work = everything[number]
            if isinstance(work, ExportWork) or not self._broken(work):
                continue
            dropped.add(number)
            if isinstance(work, ForwardWork) and work.state.failed:
                continue  # ``lost`` has its slots
            lost.append(self._memory.pages.lose(work.kept, number))
            if isinstance(work, ForwardWork):
                text = "it follows or reads a forward that has failed"
                self._say_failed(space, work, text, "lost")
        if dropped:
            self._forget(space, dropped)

    def _broken(self, work: ForwardWork | CopyWork) -> bool:
        if isinstance(work, ForwardWork):
            followed = work.followed
            if work.state.failed or (followed is not None and followed.state.failed):
                return True
        return self._memory.pages.broken(work.reads, work.number)

    def _tell_lost(self, lost: Sequence[Array]) -> None:
        """Send every space the handles that map to pages with lost KV."""
        slots = np.concatenate(lost) if lost else np.zeros(0, dtype=np.int32)
        if not len(slots):
            return
        pages = np.unique(slots // self._memory.pages.page_size)
        for space in self._memory.spaces.values():
            space.table.known = None
            handles = space.table.handles_of(pages)
            if len(handles):
                text = f"the KV of {len(handles)} pages is lost; compute it again"
                self._memory.events.append(
                    SpaceFailed(space.id, UNANSWERED, "lost", text, handles.tobytes())
                )


def _follow(rows: Sequence[Row], followed: ForwardWork, begun: int) -> None:
    """Put the followed token into the first row and the sample's history; if the token is not known
    yet, make the first row's token a placeholder. ``begun``: number of tokens in earlier rows."""
    token, sample = followed.state.token, rows[-1].sample
    if token < 0:
        if not begun:
            rows[0].follows = followed.state.at[1]
        return
    if not begun:
        rows[0].tokens = ints([token]) + rows[0].tokens[1:]
    if sample is not None:
        rows[-1].sample = sample.after(token)
