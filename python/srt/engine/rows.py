"""Rows: makes a request's rows of the next forward pass, with the random numbers of its samples."""

from __future__ import annotations

from collections.abc import Sequence

from sglang.srt.core.batch import Piece, Row, RowScore, Sample
from sglang.srt.core.context import Context
from sglang.srt.core.ints import ints
from sglang.srt.core.media_marks import within
from sglang.srt.core.messages import EVERY, Distribution, Embed, Generate
from sglang.srt.core.places import places
from sglang.srt.core.request import Request
from sglang.srt.core.segments import Segment, split
from sglang.srt.engine.masks import PassMasks

_MASK = (1 << 64) - 1
_NO_PAGES = ints()


def uniform(seed: int, index: int) -> float:
    """Return the random number in [0, 1) for generated token ``index`` of a request's ``seed``.

    SplitMix64 (Steele, Lea, Flood 2014) on a counter: a pure function, so a token does not depend
    on the batch, on retraction or on the device.
    """
    z = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1342543DE82EF95) & _MASK
    for _ in range(2):
        z = (z + 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        z ^= z >> 31
    return (z >> 11) / (1 << 53)


def make_rows(
    request: Request,
    count: int,
    eos: tuple[int, ...],
    drafts: Sequence[int] = (),
    follows: int = -1,
    sections: bool = False,
    masks: PassMasks | None = None,
) -> list[Row]:
    """Return the rows of the context's next ``count`` tokens, one a segment; the last may sample.
    Call this before ``Store.advance``. The last ``len(drafts)`` tokens of the context are drafts to
    be verified. ``follows`` >= 0: the last token is a placeholder (``Row.follows``). ``sections``:
    positions have three parts (M-RoPE). ``masks``: masks of the pass, to which a request with a
    grammar adds its own.
    """
    context = request.context
    start, end = context.saved, context.saved + count
    if context.segments:
        rows = [_row(request, *run) for run in split(context.segments, start, end)]
        rows[0].pages, rows[0].kept = context.pages[context.sent :], context.sent
    else:
        tokens, pages = context.tokens[start:end], context.pages[context.sent :]
        rows = [Row(context.id, start, tokens, pages, context.sent)]
        rows[0].adapter = context.namespace.adapter
        if sections:
            rows[0].places = places(context.media, start, end)
        if start < request.spec.prompt:
            rows[0].pieces = _pieces(context, start, end)
            _request_outputs(rows[0], request, start, end)
    if end == len(context.tokens):
        last = rows[-1]
        last.follows = follows
        goal = request.spec.goal
        if isinstance(goal, Generate):
            *last.checks, last.sample = _samples(request, goal, eos, drafts, masks)
            last.probe = goal.probe
        elif isinstance(goal, Distribution):
            last.tip_top = max(goal.top, 1)
            last.probe = goal.probe
        elif isinstance(goal, Embed) and not request.spec.reads_all:
            last.pool = len(last.tokens) - 1
    return rows


def _row(request: Request, start: int, end: int, segment: Segment) -> Row:
    """Return the row of tokens ``[start, end)`` of one segment; the worker has the page table. With
    segments a page is one token, so the tokens that the segment does not see are a gap in it."""
    context = request.context
    place = segment.sees + start - segment.start
    row = Row(context.id, place, context.tokens[start:end], _NO_PAGES, len(context.pages))
    row.gap = (segment.sees, segment.start)
    row.adapter = context.namespace.adapter
    row.pieces = _pieces(context, start, end)
    _request_outputs(row, request, start, end)
    return row


def _pieces(context: Context, start: int, end: int) -> list[Piece]:
    """Return the media placeholders among the tokens ``[start, end)``. If a cut removed a part of
    a medium, tokens appended later are text: the placeholders end with ``context.head``."""
    end = min(end, len(context.head))
    if end <= start:
        return []
    return [
        Piece(
            medium,
            max(medium.start - start, 0),
            max(start - medium.start, 0),
            min(end, medium.end) - max(start, medium.start),
        )
        for medium in within(context.media, start, end)
    ]


def _request_outputs(row: Row, request: Request, start: int, end: int) -> None:
    """Set the row's log-probability and pooling outputs for prompt tokens ``[start, end)``."""
    row.score = _score(request, start, end)
    if request.spec.reads_all and end > request.outputs.unsummed:
        row.pool = request.outputs.unsummed - start
        row.every = isinstance(request.spec.goal, Embed) and request.spec.goal.pooling == EVERY


def _score(request: Request, start: int, end: int) -> RowScore | None:
    """Return the row's scores, or None. Prompt token ``i`` is scored at position ``i - 1``."""
    low, high = request.outputs.unscored, min(end, request.spec.prompt - 1)
    if low > high:
        return None
    assert low > start, "the cache has swallowed a position whose log-probability is wanted"
    targets = request.context.tokens[low : high + 1]
    return RowScore(low - 1 - start, targets, request.spec.top, request.spec.probe)


def _samples(
    request: Request,
    goal: Generate,
    eos: tuple[int, ...],
    drafts: Sequence[int],
    masks: PassMasks | None,
) -> list[Sample]:
    """Return a sample before each draft, and one after the last token."""
    generation, params, tokens = request.generation, request.spec.sampling, request.context.tokens
    assert params is not None
    count, pending, mask = len(drafts), request.pending, -1
    index = len(generation.tokens) + pending + request.spec.carried  # the next token's
    plain = not count and generation.matcher is None and not params.penalised
    if plain and index >= params.min_new_tokens:  # nearly all rows
        if params.greedy:
            request.plain = request.plain or Sample(params, top=goal.top)
            return [request.plain]
        return [Sample(params, uniform(generation.seed, index), top=goal.top)]
    if generation.matcher is not None:
        assert masks is not None
        mask = masks.add(request, drafts, eos if params.ignore_eos else ())
    samples = []
    for i in range(count + 1):
        out = Sample(params, top=goal.top)
        if not params.greedy:
            out.uniform = uniform(generation.seed, index + i)
        if params.penalised:
            since = request.spec.prompt - request.spec.carried
            out.history = tokens[since : len(tokens) - count - pending + i]
            if params.repetition_penalty != 1.0:
                out.prompt = tokens[:since]
        out.forbidden = forbidden(request, goal, eos, pending + i)
        if mask >= 0:
            out.mask, out.masked = mask + i, goal.masked
        samples.append(out)
    return samples


def forbidden(
    request: Request, goal: Generate, eos: tuple[int, ...], ahead: int = 0
) -> tuple[int, ...]:
    """Return the end and stop ids to forbid ``ahead`` tokens from now (``min_new_tokens``)."""
    params = goal.sampling
    if len(request.generation.tokens) + request.spec.carried + ahead >= params.min_new_tokens:
        return ()
    return tuple(sorted({*(() if params.ignore_eos else eos), *params.stop_token_ids}))
