"""Rows: what the next forward pass must compute for one request, and with what randomness."""

from __future__ import annotations

from srt.core.batch import Row, Sample, Score
from srt.core.messages import Distribution, Generate
from srt.core.request import Request
from srt.core.segments import Segment, split

_MASK = (1 << 64) - 1


def uniform(seed: int, index: int) -> float:
    """The random number in [0, 1) for the ``index``-th token of a request with this seed.

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


def make_rows(request: Request, count: int, eos: tuple[int, ...]) -> list[Row]:
    """The rows of the next ``count`` tokens of work, one a segment. Only the last may draw.

    To be made before the store advances.
    """
    context = request.context
    end = context.saved + count
    rows = [_row(request, *run) for run in split(context.segments, context.saved, end)]
    if end == len(context.tokens):
        tip = rows[-1]
        if isinstance(request.goal, Generate):
            tip.sample = _sample(request, request.goal, eos)
            tip.probe = request.goal.probe
        elif isinstance(request.goal, Distribution):
            tip.tip_top = max(request.goal.top, 1)
            tip.probe = request.goal.probe
    return rows


def _row(request: Request, start: int, end: int, segment: Segment) -> Row:
    """Tokens ``[start, end)`` of one segment. Its view is its page table: a page is one token where
    there are segments."""
    context = request.context
    view = context.pages[:end]
    del view[segment.sees : segment.start]
    place = segment.sees + start - segment.start
    row = Row(context.id, place, context.tokens[start:end], view)
    row.score = _score(request, start, end)
    return row


def _score(request: Request, start: int, end: int) -> Score | None:
    """Token ``i`` of the prompt is scored at position ``i - 1``."""
    low, high = request.unscored, min(end, request.prompt - 1)
    if low > high:
        return None
    assert low > start, "the cache has swallowed a position whose log-probability is wanted"
    targets = request.context.tokens[low : high + 1]
    return Score(low - 1 - start, targets, request.top, request.probe)


def _sample(request: Request, goal: Generate, eos: tuple[int, ...]) -> Sample:
    params = goal.sampling
    out = Sample(params, top=goal.top)
    if not params.greedy:
        out.uniform = uniform(request.seed, request.drawn)
    if params.penalised:
        out.history = request.context.tokens[request.prompt :]
        if params.repetition_penalty != 1.0:
            out.prompt = request.context.tokens[: request.prompt]
    if request.drawn < params.min_new_tokens:
        ends = () if params.ignore_eos else eos
        out.forbidden = tuple(sorted({*ends, *params.stop_token_ids}))
    return out
