"""Batch frames: a compact encoding of a batch. Most rows of a decode batch differ in five numbers,
which are sent as columns; a row with any other field set is sent as a whole.

Sampling parameters are sent once for all rows that share them, and only those that a sampler reads:
no stop strings, no seeds.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import msgspec
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import LOOSE, Batch, PageMoves, Row, Sample, TokenCopies
from sglang.srt.core.ints import Floats, Ints, ints

READ = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "logit_bias",
)  # fmt: skip
"""Parameters that a sampler reads."""
_DEFAULTS = SamplingParams()
INT32 = (1 << 31) - 1  # contexts of an engine with several fronts have larger numbers
_NO_INTS = ints()
_NO_FLOATS = array("d")


class BatchColumns(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch as columns, with one entry for each row that is not in ``whole``.

    Attributes:
        contexts, starts, kept: the fields of ``Row``.
        tokens, pages: the rows' tokens and pages, concatenated. counts, page_counts: numbers of
            both per row; empty counts: one token per row.
        follows: the field of ``Row``; empty: -1 for all rows.
        samples: index into ``params``, -1 for no sample; empty: 0 for all rows.
        uniforms: random numbers of the samples; empty: all are 0.
        params: sampling parameters of ``READ`` that differ from the defaults.
        whole: rows that do not fit into columns, by row index.
        dropped, moves, copies: the fields of ``Batch``.
    """

    id: int
    contexts: Ints = _NO_INTS
    starts: Ints = _NO_INTS
    kept: Ints = _NO_INTS
    tokens: Ints = _NO_INTS
    pages: Ints = _NO_INTS
    counts: Ints = _NO_INTS
    page_counts: Ints = _NO_INTS
    follows: Ints = _NO_INTS
    samples: Ints = _NO_INTS
    uniforms: Floats = _NO_FLOATS
    params: Sequence[dict[str, Any]] = ()
    whole: dict[int, Row] = {}
    dropped: Sequence[int] = ()
    moves: PageMoves | None = None
    copies: TokenCopies | None = None


def columns_of(batch: Batch) -> BatchColumns:
    """Encode a batch as columns."""
    table: dict[str, int] = {}
    params: list[dict[str, Any]] = []
    plain: list[Row] = []
    whole: dict[int, Row] = {}
    samples, uniforms = ints(), array("d")
    for index, row in enumerate(batch.rows):
        if not _plain(row):
            whole[index] = row
            continue
        plain.append(row)
        number = -1
        if row.sample is not None:
            values = {k: v for k in READ if (v := getattr(row.sample.params, k)) != _default(k)}
            number = table.setdefault(repr(values), len(params))
            if number == len(params):
                params.append(values)
        samples.append(number)
        uniforms.append(0.0 if row.sample is None else row.sample.uniform)
    counts = ints(len(row.tokens) for row in plain)
    follows = ints(row.follows for row in plain)
    return BatchColumns(
        batch.id,
        array("q" if max((row.context for row in plain), default=0) > INT32 else "i",
              (row.context for row in plain)),
        ints(row.start for row in plain),
        ints(row.kept for row in plain),
        _joined([row.tokens for row in plain]),
        _joined([row.pages for row in plain]),
        _NO_INTS if all(count == 1 for count in counts) else counts,
        array("i" if max((len(r.pages) for r in plain), default=0) > 65535 else "H",
              (len(row.pages) for row in plain)),
        follows if any(value >= 0 for value in follows) else _NO_INTS,
        samples if any(samples) else _NO_INTS,
        uniforms if any(uniforms) else _NO_FLOATS,
        params, whole, batch.dropped, batch.moves, batch.copies,
    )  # fmt: skip


def batch_of(columns: BatchColumns) -> Batch:
    """Decode a batch. Sampling parameters that a sampler does not read have default values."""
    params = [SamplingParams(**values) for values in columns.params]
    rows: list[Row] = []
    token = page = at = 0
    total = len(columns.contexts) + len(columns.whole)
    for index in range(total):
        if index in columns.whole:
            rows.append(columns.whole[index])
            continue
        count = columns.counts[at] if columns.counts else 1
        pages = columns.page_counts[at]
        number = columns.samples[at] if columns.samples else 0
        uniform = columns.uniforms[at] if columns.uniforms else 0.0
        rows.append(
            Row(
                columns.contexts[at], columns.starts[at], columns.tokens[token : token + count],
                columns.pages[page : page + pages], columns.kept[at],
                follows=columns.follows[at] if columns.follows else -1,
                sample=None if number < 0 else Sample(params[number], uniform),
            )
        )  # fmt: skip
        token, page, at = token + count, page + pages, at + 1
    return Batch(columns.id, rows, columns.dropped, columns.moves, columns.copies)


def _plain(row: Row) -> bool:
    """Return True if columns hold all fields of the row that are set."""
    sample = row.sample
    if row.context == LOOSE or row.positions or row.packed:
        return False
    if row.gap is not None or row.checks or row.score is not None or row.tip_top or row.probe:
        return False
    if row.adapter or row.pool >= 0 or row.every or row.pieces or row.places:
        return False
    if sample is None:
        return True
    reads = sample.history or sample.prompt or sample.forbidden or sample.masked
    return not reads and sample.mask is None and sample.top < 0


def _default(name: str) -> Any:
    return getattr(_DEFAULTS, name)


def _joined(parts: list[Ints]) -> Ints:
    out = ints()
    for part in parts:
        out.extend(part)
    return out
