"""A fake worker that also computes rows of spaces, and what it computes by its definition.

The state of a token of such a row, which is its KV, is a hash of the *set* of states that it sees,
of its id and of its position. All keys of a pass are written before any row attends: a row may
read what a later one of the batch writes.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence

from helpers.fake_worker import (
    ADAPTED,
    MODULUS,
    VOCAB,
    FakeWorker,
    draw,
    likeliest,
    logprob_at,
)
from helpers.tables import Corrupt
from sglang.srt.core.batch import (
    LOOSE,
    NONE_ALLOWED,
    WHOLE,
    Batch,
    Row,
    RowOutput,
    Sample,
    StepResult,
    TokenCopies,
)
from sglang.srt.core.workers import NO_MASKS, Masks


def seen_hash(seen: Iterable[int]) -> int:
    """A hash of a set of states."""
    return sum(state * state * 31 + state + 5 for state in seen) % MODULUS


def loose_state(seen: Iterable[int], shown: int, position: int) -> int:
    """The state of a token that sees others."""
    return (seen_hash(seen) * 1009 + shown * 7919 + position * 104729 + 7) % MODULUS


def loose_reading(seen: Iterable[int]) -> int:
    """The output at a position; ``seen``: with its own state."""
    return (seen_hash(seen) * 613 + 11) % MODULUS


def packed(reading: int, count: int) -> tuple[bytes, bytes]:
    """``Drawn.ids`` and ``logprobs`` of a row."""
    if count == WHOLE:
        return b"", array("f", [logprob_at(reading, token) for token in range(VOCAB)]).tobytes()
    pairs = likeliest(reading, count)
    ids, values = [token for token, _ in pairs], [value for _, value in pairs]
    return struct.pack(f"{count}i", *ids), struct.pack(f"{count}f", *values)


def sampled(reading: int, sample: Sample) -> int:
    """The token of a row; -1: none is allowed."""
    mask = sample.mask if isinstance(sample.mask, bytes) else None
    return draw(reading, sample.params, sample.uniform, sample.history, mask=mask)


class SpaceWorker(FakeWorker):
    """The worker.

    Attributes:
        break_row: index, among the rows of spaces, of the one that ``break_at`` breaks.
        loose: rows of spaces so far.
        read_in_pass: slots that such rows have read of other rows of their pass.
    """

    break_row = -1
    loose = 0
    read_in_pass = 0

    def run(self, batch: Batch, masks: Masks = NO_MASKS) -> StepResult:
        if batch.copies is not None and batch.id not in self.fail_at:
            self._copy(batch.copies)
        own = [row for row in batch.rows if row.context == LOOSE]
        if not own:
            return super().run(batch, masks)
        followed = list(self.drawn)
        others = [row for row in batch.rows if row.context != LOOSE]
        broken = batch.id in self.break_at
        self.break_at = self.break_at - {batch.id}
        result = super().run(Batch(batch.id, others, batch.dropped, batch.moves), masks)
        drawn = iter(self.drawn)
        outputs = iter(result.rows)
        rows = [self._followed(row, followed) for row in own]
        made = iter(self._compute(rows, broken))
        whole = [next(made) if row.context == LOOSE else next(outputs) for row in batch.rows]
        self.drawn = [
            out.token if row.context == LOOSE else next(drawn)
            for row, out in zip(batch.rows, whole)
        ]
        result.rows = whole
        self.batches[-1] = [(row.context, len(row.tokens)) for row in batch.rows]
        self.tokens += sum(len(row.tokens) for row in own)
        self.loose += len(own)
        self.adapters = max(self.adapters, len({row.adapter for row in batch.rows} - {0}))
        return result

    def _copy(self, copies: TokenCopies) -> None:
        if len(set(copies.targets)) < len(copies.targets):
            raise Corrupt("two tokens are copied into one slot")
        read = [self._state(slot) for slot in copies.sources]
        for slot, state in zip(copies.targets, read, strict=True):
            self.states[slot] = self.shown[slot] = state

    def _state(self, slot: int) -> int:
        if slot not in self.states:
            raise Corrupt(f"slot {slot} is read and holds no KV")
        return self.states[slot]

    def _followed(self, row: Row, drawn: Sequence[int]) -> Row:
        if row.follows < 0:
            return row
        before, self.drawn = self.drawn, list(drawn)
        row = self._follow(row)
        self.drawn = before
        return row

    def _compute(self, rows: Sequence[Row], broken: bool) -> list[RowOutput]:
        """Outputs of rows, whose states are found in the order in which they need each other."""
        where: dict[int, tuple[int, int]] = {}
        views = [self._slots(row, 0, row.start + len(row.tokens)) for row in rows]
        for i, (row, view) in enumerate(zip(rows, views)):
            for j, slot in enumerate(view[row.start :]):
                if slot in where:
                    raise Corrupt("two rows write one slot")
                where[slot] = (i, j)
        done: dict[int, int] = {}

        def state(slot: int, reader: int) -> int:
            if slot not in where:
                return self._state(slot)
            self.read_in_pass += where[slot][0] != reader
            if slot not in done:
                i, last = where[slot]
                row, view = rows[i], views[i]
                for j in range(last + 1):
                    at = row.start + j
                    if view[at] not in done:
                        seen = [state(other, i) for other in view[:at]]
                        position = row.positions[j] if row.positions else at
                        shown = row.tokens[j] + ADAPTED * row.adapter
                        done[view[at]] = loose_state(seen, shown, position)
            return done[slot]

        seen = [[state(slot, i) for slot in view] for i, view in enumerate(views)]
        for slot in where:
            self.states[slot] = self.shown[slot] = state(slot, where[slot][0])
        outputs = [self._read(row, loose_reading(own)) for row, own in zip(rows, seen)]
        if broken:
            outputs[self.break_row] = RowOutput(error="injected row error")
        return outputs

    def _read(self, row: Row, reading: int) -> RowOutput:
        out = RowOutput()
        if row.sample is not None:
            out.token = sampled(reading, row.sample)
            out.error = NONE_ALLOWED if out.token < 0 else ""
            if row.sample.top >= 0 and out.token >= 0:
                out.logprob = logprob_at(reading, out.token)
        if row.packed:
            out.ids, out.logprobs = packed(reading, row.packed)
        out.probe = [logprob_at(reading, token) for token in row.probe]
        return out
