"""Inputs: a Batch as arrays and tensors, built once a pass without a loop over tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from sglang.srt.attention.attention_protocol import Int32Array, Layout
from sglang.srt.core.batch import LOOSE, Batch, Row
from sglang.srt.layers.lora import Use
from sglang.srt.parallel.staging import replaced, send_all, taken
from sglang.srt.worker.page_tables import PageTables, joined, outside


class Embedded(NamedTuple):
    """Hidden states [N, width] that stand in place of the embeddings of tokens ``at`` [N],
    ascending indices into the pass."""

    at: Int32Array
    states: Any


@dataclass(frozen=True)
class Inputs:
    """Tensors that the model reads.

    Attributes:
        tokens: int32 [T] on the device, row after row.
        positions: int32 [T], or [3, T] of a model whose positions have three parts.
        firsts: flat index of each row's first token [R].
        layout: where the rows' keys and values lie.
        tables: page tables that the layout's are views of. contexts: of the rows, empty where
            two are the same or a row sees its table with a gap.
        embedded: of the placeholders among the tokens.
        use: which tokens have which adapter; None where none has one.
        followed: by row, the token that it follows, where a penalty counts that token.
    """

    tokens: Any
    positions: Any
    firsts: Int32Array
    layout: Layout
    tables: PageTables | None = None
    contexts: list[int] = field(default_factory=list)
    embedded: Embedded | None = None
    use: Use | None = None
    followed: dict[int, int] = field(default_factory=dict)


def _counts(lengths: list[int]) -> Int32Array:
    return np.array(lengths, dtype=np.int32)


@dataclass(frozen=True)
class InputReader:
    """Makes the inputs of one model's passes.

    Attributes:
        tables: page tables, which the batches' changes are applied to.
        device: of the tensors; ``HOST`` for arrays.
        vocab: number of token ids.
        context_length: positions of the longest context.
        sections: positions have three parts.
    """

    tables: PageTables
    device: Any
    vocab: int
    context_length: int
    sections: bool = False

    def read(self, batch: Batch, drawn: Any = None) -> Inputs:
        """Arrays and tensors of a batch. ``drawn``: int32 tokens that the previous batch sampled,
        one a row, for rows that follow it.

        Raises ValueError where the batch would read or write outside the model or the pool: on a
        GPU that would take the whole process down, so it is never tried.
        """
        rows = batch.rows
        if not rows:
            raise ValueError(f"batch {batch.id} has no rows.")
        counts = _counts([len(row.tokens) for row in rows])
        starts = _counts([row.start for row in rows])
        ends = starts + counts
        firsts = np.cumsum(counts, dtype=np.int32) - counts
        tokens = joined([row.tokens for row in rows])
        sources = _counts([row.follows for row in rows])
        following = np.flatnonzero(sources >= 0)
        if following.size:
            tokens[firsts[following]] = 0
        _verify(batch, counts, starts, ends, self.context_length)
        if outside(tokens, self.vocab):
            raise ValueError(f"batch {batch.id} has a token id outside [0, {self.vocab}).")
        offsets, pages = self.tables.views(batch, ends)
        if len(tokens) == len(rows):  # a token each
            positions = starts
        else:
            positions = np.arange(len(tokens), dtype=np.int32) + np.repeat(starts - firsts, counts)
        parts = positions
        if self.sections:
            parts = _places(batch, positions, firsts, self.context_length)
        contexts = [row.context for row in rows if row.gap is None]
        loose = LOOSE in contexts
        if loose:
            own = [i for i, row in enumerate(rows) if row.positions]
            parts = _rotated(batch, parts, firsts, own, self.context_length)
        arrays = {"tokens": tokens, "positions": parts}
        if following.size:
            arrays["sources"] = sources[following]
            if drawn is None or int(arrays["sources"].max()) >= drawn.shape[0]:
                raise ValueError(
                    f"batch {batch.id} follows a row that the previous batch did not have."
                )
        if 0 < following.size < len(tokens):
            arrays["followers"] = firsts[following].astype(np.int64)
        sent = send_all(arrays, self.device)
        ids, places = sent["tokens"], sent["positions"]
        layout = Layout(starts, counts, offsets, pages, positions)
        if loose or len(set(contexts)) < len(rows):
            contexts = []
        if drawn is None or not following.size:
            return Inputs(ids, places, firsts, layout, self.tables, contexts)
        given = taken(drawn, sent["sources"])
        followed = {
            i: int(given[k])
            for k, i in enumerate(following.tolist())
            if (sample := rows[i].sample) is not None and sample.params.penalised
        }
        ids = replaced(ids, sent["followers"], given) if "followers" in sent else given
        return Inputs(ids, places, firsts, layout, self.tables, contexts, followed=followed)


def _rotated(
    batch: Batch, parts: Int32Array, firsts: Int32Array, own: list[int], context_length: int
) -> Int32Array:
    """The positions [T] or [3, T], with the rows' ``own`` in their places."""
    parts = parts.copy()
    for i in own:
        row, first = batch.rows[i], firsts[i]
        if len(row.positions) != len(row.tokens):
            raise ValueError(
                f"batch {batch.id}: row {i} has {len(row.positions)} positions for "
                f"{len(row.tokens)} tokens."
            )
        positions = np.frombuffer(row.positions, dtype=np.int32)
        if outside(positions, context_length):
            raise ValueError(f"batch {batch.id} has a position outside [0, {context_length}).")
        parts[..., first : first + len(positions)] = positions
    return parts


def _places(
    batch: Batch, positions: Int32Array, firsts: Int32Array, context_length: int
) -> Int32Array:
    """Times, heights and widths of all tokens [3, T]."""
    parts = np.tile(positions, (3, 1))
    for row, first in zip(batch.rows, firsts.tolist()):
        if row.places:
            own = np.frombuffer(row.places, dtype=np.int32)
            parts[:, first : first + len(row.tokens)] = own.reshape(3, len(row.tokens))
    if outside(parts.ravel(), context_length):
        raise ValueError(f"batch {batch.id} has a position outside [0, {context_length}).")
    return parts


def _verify(
    batch: Batch,
    counts: Int32Array,
    starts: Int32Array,
    ends: Int32Array,
    context_length: int,
) -> None:
    checks = (
        (counts < 1, "has no tokens"),
        (starts < 0, "starts before position 0"),
        (ends > context_length, f"ends beyond the context length ({context_length})"),
    )
    for wrong, problem in checks:
        if wrong.any():
            i = int(wrong.argmax())
            raise ValueError(f"batch {batch.id}: row {i} {problem}: {_shown(batch.rows[i])}.")


def _shown(row: Row) -> str:
    return f"start {row.start}, {len(row.tokens)} tokens"
