"""Rows: what the next forward pass must compute for one request, and with what randomness."""

from __future__ import annotations

from srt.core.batch import Row, Sample, Score
from srt.core.messages import Distribution, Generate
from srt.core.request import Request

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


def row(request: Request, count: int, eos: tuple[int, ...]) -> Row:
    """The row of the next ``count`` tokens of work. To be made before the store advances."""
    context = request.context
    start = context.saved
    end = start + count
    out = Row(context.id, start, context.tokens[start:end], context.pages[:])
    out.score = _score(request, start, end)
    if end == len(context.tokens):
        if isinstance(request.goal, Generate):
            out.sample = _sample(request, request.goal, eos)
            out.probe = request.goal.probe
        elif isinstance(request.goal, Distribution):
            out.tip_top = max(request.goal.top, 1)
            out.probe = request.goal.probe
    return out


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
