"""Inputs: a Batch as arrays and tensors, built once per pass without a loop over tokens."""

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
    """Hidden states [N, width] that replace the embeddings of the tokens ``at``, int32 [N], which
    are ascending indices into the pass."""

    at: Int32Array
    states: Any


@dataclass(frozen=True)
class Inputs:
    """Tensors that the model reads.

    Attributes:
        tokens: int32 [T] on the device, row after row.
        positions: int32 [T], or [3, T] of a model whose positions have three parts.
        firsts: index of each row's first token among the pass's tokens, int32 [R].
        layout: pages and positions of the rows' keys and values.
        tables: page tables whose entries the layout contains. contexts: the rows' contexts, empty
            if two rows have the same one or a row skips a gap in its table.
        embedded: hidden states of the placeholders among the tokens.
        use: adapter of each token; None if no token has one.
        followed: by row index, the previous pass's sampled token, if a penalty counts that token.
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
        tables: page tables, to which each batch applies its changes.
        device: device of the tensors; ``HOST`` for NumPy arrays.
        vocab: number of token ids.
        context_length: positions of the longest context.
        sections: each position has three parts (time, height, width).
    """

    tables: PageTables
    device: Any
    vocab: int
    context_length: int
    sections: bool = False

    def read(self, batch: Batch, drawn: Any = None) -> Inputs:
        """Return the inputs of a batch. ``drawn``: int32 tokens that the previous batch sampled,
        one per row, for rows that continue its rows (``Row.follows``).

        Raises ValueError if the batch would read or write outside the model or the pool: on a GPU
        such an access would end the whole process.
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
        if len(tokens) == len(rows):  # one token per row
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
    """Return ``parts`` [T] or [3, T] with the explicit positions of the rows numbered ``own``."""
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
    """Return times, heights and widths of all tokens, int32 [3, T]."""
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
