"""Batch: what one forward pass computes, as plain data; StepResult: what came out of it.

A row is a run of new tokens of one context. Prefill chunks, decode steps and a user program's own
forward are the same row. A context with segments (``core/segments``) has a row for each segment it
computes, which sees a part of the context's page table; the first of them brings what has changed
in the table. The rows' keys and values are written before any row attends, layer by layer, so a row
may read pages that another row of the same batch writes: requests that share an uncached prefix
compute it once.

A batch holds no callables and nothing that its receiver may change, so that it can be sent to
another process as it is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import Floats, Ints, ints
from sglang.srt.core.media_marks import MediaSpan

WHOLE = -2  # ``Row.packed``: the whole vocabulary
_NO_INTS, _NO_FLOATS = ints(), array("d")  # shared by all that have none; never changed
LOOSE = -(1 << 40)  # ``Row.context`` of a row whose page table is used once
NONE_ALLOWED = "no token can be sampled: mask, bias and forbidden tokens exclude all of them"


class Sample(msgspec.Struct, omit_defaults=True):
    """Parameters for sampling one token at a row's last position.

    Attributes:
        params: temperature, top-k, top-p, min-p, penalties and bias.
        uniform: the only randomness, in [0, 1): a function of (seed, position), so that a token
            never depends on what else is in the batch.
        history: generated tokens so far; empty unless ``params.penalised``. The token that a row
            follows (``Row.follows``) is missing: it comes last.
        prompt: prompt tokens; empty unless ``params.repetition_penalty != 1``.
        forbidden: ids that may not be sampled now (end tokens before ``min_new_tokens``).
        mask: allowed ids as little-endian int32 words, low bit first, 1 = allowed
            (ceil(V / 32) words), or the index of a mask that is made while the device computes
            (``core.workers.Masks``); None allows all.
        top: report this many most likely tokens; -1 reports no log-probability at all.
        masked: log-probabilities are those among the ids that ``mask`` allows.
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
        """A copy whose history has one more token."""
        return msgspec.structs.replace(self, history=self.history + ints([token]))

    def with_mask(self, words: bytes) -> Sample:
        """A copy with another mask."""
        return msgspec.structs.replace(self, mask=words)


class RowScore(msgspec.Struct, omit_defaults=True):
    """Log-probabilities of given tokens, read at consecutive positions of a row.

    Token ``targets[i]`` is scored by the distribution at ``tokens[at + i]``, the one before it.
    ``top`` and ``probe`` request the most likely tokens and given ids at the same positions.
    """

    at: int
    targets: Ints
    top: int = 0
    probe: tuple[int, ...] = ()


class Piece(msgspec.Struct, frozen=True):
    """Placeholders of a row whose embeddings are hidden states of a vision tower.

    Attributes:
        at: index of the first of them among the row's tokens.
        skip: the medium's hidden states before it, which an earlier row has taken.
        count: how many there are.
    """

    media: MediaSpan
    at: int
    skip: int
    count: int


class Row(msgspec.Struct, omit_defaults=True):
    """New tokens of one context.

    Attributes:
        context: id of the context, whose page table the worker keeps from pass to pass; ``LOOSE``:
            ``pages`` are all that the row sees, and nothing is kept.
        start: index of ``tokens[0]`` among what the row sees, and its position unless ``positions``
            says another; the KV of ``[0, start)`` is readable through the table.
        tokens: ids to compute, at least one.
        pages: entries of the table from index ``kept`` on; those that the worker had there are
            forgotten. Less ``gap``, entry ``i`` of the table holds positions
            ``[i * page_size, (i + 1) * page_size)``, and they cover ``[0, start + len(tokens))``.
            Keys and values of ``tokens`` are written through the same table.
        kept: leading entries of the table that the worker has; 0: ``pages`` is all of it.
        gap: entries ``[gap[0], gap[1])`` of the table that the row does not see; None: it sees all.
        follows: where >= 0, ``tokens[0]`` is a placeholder for the token that row ``follows`` of
            the previous batch sampled (planning one step ahead of the device).
        sample: sample a token at the last position.
        score: log-probabilities wanted inside the row.
        tip_top: where > 0, the most likely tokens at the last position, without a sample.
        adapter: number of the adapter to apply, 0 for the base model.
        probe: ids whose log-probability is wanted at the last position.
        checks: samples at the ``len(checks)`` positions before the last, each to be compared with
            the token behind it, a *draft*. The first sample that differs from its draft is the next
            token, and the tokens after it were computed in vain.
        pool: where >= 0, the sum of the final hidden states of ``tokens[pool:]`` is wanted; the
            states themselves where ``every``.
        pieces: of images and videos among the tokens, in order.
        places: positions of the tokens where a model's positions have three parts: all times, all
            heights, all widths, 3 * len(tokens); empty where all three are the position.
        positions: of the rotary embedding in a ``LOOSE`` row; empty where they are ``start``,
            ``start + 1`` ... Keys and values are found by ``start`` whatever they are.
        packed: report the most likely tokens at the last position as arrays (``Drawn.ids``): so
            many, or those of the whole vocabulary (``WHOLE``); 0: none.
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
    """Keys and values of single tokens, copied within the device from slots to slots, one each.
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
    """Rows of one forward pass. A pass may have none, where it only copies pages.

    Attributes:
        id: grows by one a pass.
        dropped: contexts whose page tables the worker forgets before it reads the rows.
        moves: pages that are copied first.
        copies: tokens that are copied next, before the rows are computed.
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
        token: the sampled token, -1 where none was requested.
        logprob: its log-probability, where ``sample.top >= 0``.
        top: most likely tokens, as many as ``sample.top`` or ``tip_top`` requested.
        probe: log-probabilities of ``Row.probe``.
        ids, logprobs: of ``Row.packed``, int32 and float32, most likely first; of the whole
            vocabulary there are no ids, and the log-probabilities are in their order.
        error: set where no token could be sampled.
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
    """Outputs of a row; its own ``Drawn`` is that of its last position.

    Attributes:
        scores: log-probabilities of ``score.targets``.
        score_tops, score_probes: by scored position, of ``score.top`` and ``score.probe``.
        checks: one for each of ``Row.checks``.
        pooled: the sum that ``Row.pool`` requested, float64 [hidden size]; the states themselves,
            one after the other, where ``Row.every``.
        unseen: keys of the images and videos that could not be encoded; the row's KV is wrong.
        error: set where this row alone failed; the other rows are valid.
    """

    scores: list[float] = []
    score_tops: list[TopList] = []
    score_probes: list[list[float]] = []
    checks: list[Drawn] = []
    pooled: Floats = _NO_FLOATS
    unseen: Sequence[bytes] = ()


class StepResult(msgspec.Struct, omit_defaults=True):
    """Outputs of batch ``id``, one a row, in the batch's order.

    ``encoded``: images and videos that the vision tower had to read for it; ``reread``: those whose
    hidden states were there. ``compiled``: kernels that it had to compile. ``seconds``: duration of
    its rows; ``copy_seconds``: of its copies before them; both 0 where nothing was measured.
    ``stages``: duration of its rows on each stage of a pipeline.
    """

    id: int
    rows: list[RowOutput]
    encoded: int = 0
    reread: int = 0
    compiled: int = 0
    seconds: float = 0.0
    copy_seconds: float = 0.0
    stages: Sequence[float] = ()
