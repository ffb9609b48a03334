"""Batch: the input of one forward pass, as plain data; StepResult: its output.

A row is a run of new tokens of one context. Prefill chunks, decode steps and the forwards of
inferlets are all rows. A context with segments (``core/segments``) has a row for each segment with
tokens to compute; such a row sees a part of the context's page table, and the first of these rows
carries the changes of the table. In each layer all rows' keys and values are written before any row
attends. So a row may read pages that another row of the same batch writes: requests that share an
uncached prefix compute it once.

A batch has no callables, and its receiver must not change it, so that it can be sent to another
process as it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import Floats, Ints, ints
from sglang.srt.core.media_marks import MediaSpan

WHOLE = -2  # ``Row.packed``: the whole vocabulary
_NO_INTS, _NO_FLOATS = ints(), array("d")  # shared default values; never changed
LOOSE = -(1 << 40)  # ``Row.context`` of a row whose page table is used once
NONE_ALLOWED = "no token can be sampled: mask, bias and forbidden tokens exclude all of them"


class Sample(msgspec.Struct, omit_defaults=True):
    """Parameters for sampling one token at a row's last position.

    Attributes:
        params: temperature, top-k, top-p, min-p, penalties and bias.
        uniform: the random number, in [0, 1): a function of (seed, index of the token), so that a
            token never depends on the other rows of the batch.
        history: generated tokens so far; empty unless ``params.penalised``. The token of a
            placeholder (``Row.follows``) is not included; it belongs at the end.
        prompt: prompt tokens; empty unless ``params.repetition_penalty != 1``.
        forbidden: ids that may not be sampled now (end tokens before ``min_new_tokens``).
        mask: allowed ids as little-endian int32 words, low bit first, 1 = allowed
            (ceil(V / 32) words), or the index of a mask that is made while the device computes
            (``core.workers.Masks``); None allows all.
        top: number of most likely tokens to report; -1: report no log-probability at all.
        masked: log-probabilities are normalised over the ids that ``mask`` allows.
    """

    params: SamplingParams
    uniform: float = 0.0
    history: Ints = _NO_INTS
    prompt: Ints = _NO_INTS
    forbidden: tuple[int, ...] = ()
    mask: bytes | int | None = None
    top: int = -1
    masked: bool = False

    def after(self, token: int) -> Sample:
        """Return a copy whose history has one more token."""
        return msgspec.structs.replace(self, history=self.history + ints([token]))

    def with_mask(self, words: bytes) -> Sample:
        """Return a copy with the mask ``words``."""
        return msgspec.structs.replace(self, mask=words)


class RowScore(msgspec.Struct, omit_defaults=True):
    """Log-probabilities of given tokens, read at consecutive positions of a row.

    Token ``targets[i]`` is scored by the distribution after ``tokens[at + i]``, the token before.
    ``top`` and ``probe`` request the most likely tokens and given ids at the same positions.
    """

    at: int
    targets: Ints
    top: int = 0
    probe: tuple[int, ...] = ()


class Piece(msgspec.Struct, frozen=True):
    """Placeholders of an image or video in a row; the vision tower's states are their embeddings.

    Attributes:
        at: index of the first placeholder among the row's tokens.
        skip: number of the medium's hidden states that belong to earlier rows.
        count: number of placeholders.
    """

    media: MediaSpan
    at: int
    skip: int
    count: int


class Row(msgspec.Struct, omit_defaults=True):
    """New tokens of one context.

    Attributes:
        context: id of the context, whose page table the worker keeps from pass to pass; ``LOOSE``:
            ``pages`` is the row's whole table, and the worker keeps nothing.
        start: number of tokens that the row sees before ``tokens[0]``; also the position of
            ``tokens[0]`` unless ``positions`` is given. Their KV is in the table's pages.
        tokens: ids to compute, at least one.
        pages: entries of the table from index ``kept`` on; they replace the worker's entries there.
            Without the entries in ``gap``, entry ``i`` of the table has the KV of tokens
            ``[i * page_size, (i + 1) * page_size)``, and the entries cover ``start + len(tokens)``
            tokens. Keys and values of ``tokens`` are written to the same pages.
        kept: number of leading entries that the worker keeps; 0: ``pages`` is the whole table.
        gap: entries ``[gap[0], gap[1])`` of the table that the row does not see; None: it sees all.
        follows: if >= 0, ``tokens[0]`` is a placeholder for the token that row ``follows`` of
            the previous batch sampled (planning one step ahead of the device).
        sample: parameters for sampling a token at the last position; None: no sample.
        score: log-probabilities to report inside the row; None: none.
        tip_top: number of most likely tokens to report at the last position, without a sample.
        adapter: number of the adapter to apply; 0: none.
        probe: ids whose log-probability to report at the last position.
        checks: samples at the ``len(checks)`` positions before the last. Each is compared with the
            token after its position, a *draft*. The first sample that differs from its draft is the
            next token; the drafts from there on are rejected.
        pool: if >= 0, report the sum of the final hidden states of ``tokens[pool:]``, or with
            ``every`` the states themselves.
        pieces: placeholders of images and videos among the tokens, in order.
        places: positions of the tokens for M-RoPE, in three parts: all times, all heights, all
            widths, 3 * len(tokens); empty: all three parts are the token's position.
        positions: positions of the rotary embedding in a ``LOOSE`` row; empty: ``start``,
            ``start + 1``, ... They do not change in which page KV is read or written.
        packed: number of most likely tokens to report at the last position as arrays
            (``Drawn.ids``); ``WHOLE``: the whole vocabulary; 0: none.
    """

    context: int
    start: int
    tokens: Ints
    pages: Ints
    kept: int = 0
    gap: tuple[int, int] | None = None
    follows: int = -1
    sample: Sample | None = None
    checks: Sequence[Sample] = ()
    score: RowScore | None = None
    tip_top: int = 0
    probe: tuple[int, ...] = ()
    adapter: int = 0
    pool: int = -1
    every: bool = False
    pieces: Sequence[Piece] = ()
    places: Ints = _NO_INTS
    positions: Ints = _NO_INTS
    packed: int = 0

    @property
    def end(self) -> int:
        """Index in the context after the last of ``tokens``."""
        end = self.start + len(self.tokens)
        return end if self.gap is None else end + self.gap[1] - self.gap[0]


class TokenCopies(msgspec.Struct):
    """Copies of single tokens' KV on the device, from slot ``sources[i]`` to slot ``targets[i]``.
    Token ``i`` of page ``p`` has slot ``p * page_size + i``. All are read before any is written."""

    sources: Ints
    targets: Ints


class PageMoves(msgspec.Struct, omit_defaults=True):
    """Copies of KV pages between the device and host memory.

    All of ``stores`` are copied before any of ``loads``, and both before the rows of the pass are
    computed.

    Attributes:
        stores, stored: pages of the device, and the host pages that they are copied to.
        loads, loaded: host pages, and the pages of the device that they are copied to.
    """

    stores: Ints = msgspec.field(default_factory=ints)
    stored: Ints = msgspec.field(default_factory=ints)
    loads: Ints = msgspec.field(default_factory=ints)
    loaded: Ints = msgspec.field(default_factory=ints)


class Batch(msgspec.Struct, omit_defaults=True):
    """Rows of one forward pass. A pass that only copies pages has no rows.

    Attributes:
        id: number of the pass; grows by one a pass.
        dropped: contexts whose page tables the worker drops before it reads the rows.
        moves: pages to copy between device and host memory, first.
        copies: tokens to copy on the device, next, before the rows are computed.
    """

    id: int
    rows: list[Row]
    dropped: Sequence[int] = ()
    moves: PageMoves | None = None
    copies: TokenCopies | None = None

    @property
    def num_tokens(self) -> int:
        return sum(len(row.tokens) for row in self.rows)


TopList = list[tuple[int, float]]  # (token id, log-probability), most likely first


class Drawn(msgspec.Struct, omit_defaults=True):
    """Outputs at one position. Log-probabilities are the model's own (natural logarithm,
    before temperature, penalties, bias and masks, unless ``Sample.masked``).

    Attributes:
        token: the sampled token; -1: none was requested.
        logprob: log-probability of ``token``, if ``sample.top >= 0``.
        top: most likely tokens, as many as ``sample.top`` or ``tip_top`` requested.
        probe: log-probabilities of ``Row.probe``.
        ids, logprobs: outputs for ``Row.packed``, int32 and float32, most likely first; for
            ``WHOLE`` ids are empty, and the log-probabilities are in the order of ids.
        error: reason why no token could be sampled; "" after success.
        postponed: the mask was not made, since the budget of the pass for masks was spent.
    """

    token: int = -1
    logprob: float = 0.0
    top: TopList = []
    probe: list[float] = []
    ids: bytes = b""
    logprobs: bytes = b""
    error: str = ""
    postponed: bool = False


class RowOutput(Drawn, omit_defaults=True):
    """Outputs of a row. The fields of ``Drawn`` are those of its last position.

    Attributes:
        scores: log-probabilities of ``score.targets``.
        score_tops, score_probes: outputs for ``score.top`` and ``score.probe``, by position.
        checks: outputs for each of ``Row.checks``.
        pooled: the sum that ``Row.pool`` requested, float64 [hidden size]; with ``Row.every`` the
            states themselves, one after the other.
        unseen: keys of the images and videos that could not be encoded; the row's KV is wrong.
        error: reason why this row alone failed; the other rows are valid.
    """

    scores: list[float] = []
    score_tops: list[TopList] = []
    score_probes: list[list[float]] = []
    checks: list[Drawn] = []
    pooled: Floats = _NO_FLOATS
    unseen: Sequence[bytes] = ()


class StepResult(msgspec.Struct, omit_defaults=True):
    """Outputs of batch ``id``, one per row, in the batch's order.

    ``encoded``: number of images and videos that the vision tower encoded for the batch;
    ``reread``: number whose hidden states were kept from before. ``compiled``: kernels compiled.
    ``seconds``: duration of the rows; ``copy_seconds``: duration of the copies before; both 0 if
    not measured. ``stages``: duration of the rows on each stage of a pipeline.
    """

    id: int
    rows: list[RowOutput]
    encoded: int = 0
    reread: int = 0
    compiled: int = 0
    seconds: float = 0.0
    copy_seconds: float = 0.0
    stages: Sequence[float] = ()
