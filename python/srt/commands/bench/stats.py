"""Stats: what a run amounts to, in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang.srt.commands.bench.result import Result


@dataclass(frozen=True)
class Spread:
    """Mean and percentiles of one quantity, in the unit it was given in."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread | None:
        """None where there are no values."""
        if not values:
            return None
        ordered = sorted(values)
        p50, p90, p99 = (percentile(ordered, q) for q in (50, 90, 99))
        return Spread(math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def percentile(ordered: Sequence[float], q: float) -> float:
    """The ``q``-th percentile of ascending values, interpolated linearly between the two nearest
    ranks (definition 7 of Hyndman and Fan 1996, the default of most tools)."""
    place = (len(ordered) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Summary:
    """One run. Rates are per second of ``seconds``, from the first request sent to the last answer;
    spreads are in milliseconds, over the requests that succeeded.

    Attributes:
        hit_rate: cached over all prompt tokens; None where the endpoint does not report it.
        tpot, itl: None where no request generated two tokens, or the endpoint does not stream.
        lag: how late the generator sent requests that were due and allowed to go.
        generator_cpu: CPU seconds of the generator a second; near 1 it limits the run. It includes
            the engine's where that is in this process.
    """

    completed: int
    failed: int
    seconds: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    request_rate: float
    input_rate: float
    output_rate: float
    concurrency: float
    hit_rate: float | None
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    latency: Spread | None
    lag: Spread | None
    generator_cpu: float


def summarise(results: Sequence[Result], cpu_seconds: float = 0.0) -> Summary:
    """``results`` of one run, failed ones included."""
    good = [result for result in results if not result.error]
    seconds = 0.0
    if good:
        seconds = max(r.end for r in good) - min(r.sent for r in results if r.sent)
    per = 1 / seconds if seconds > 0 else 0.0
    prompt, output = sum(r.prompt_tokens for r in good), sum(r.output_tokens for r in good)
    telling = [r for r in good if r.cached >= 0]
    prompts = sum(r.prompt_tokens for r in telling)
    cached = sum(r.cached for r in telling)

    def spread(values: list[float]) -> Spread | None:
        return Spread.of([1e3 * value for value in values])

    streamed = [r for r in good if r.gaps]
    return Summary(
        completed=len(good),
        failed=len(results) - len(good),
        seconds=seconds,
        prompt_tokens=prompt,
        output_tokens=output,
        cached_tokens=cached if telling else None,
        request_rate=len(good) * per,
        input_rate=prompt * per,
        output_rate=output * per,
        concurrency=sum(r.latency for r in good) * per,
        hit_rate=cached / prompts if prompts else None,
        ttft=spread([r.ttft for r in good if r.first]),
        tpot=spread([r.tpot for r in streamed]),
        itl=spread([gap for r in streamed for gap in r.gaps]),
        latency=spread([r.latency for r in good]),
        lag=spread([r.sent - r.due for r in good]),
        generator_cpu=cpu_seconds * per,
    )


def as_json(summary: Summary) -> dict[str, Any]:
    """Nested dict, milliseconds marked in the names."""
    out: dict[str, Any] = {}
    for name, value in vars(summary).items():
        if name in ("ttft", "tpot", "itl", "latency", "lag"):
            out[f"{name}_ms"] = None if value is None else _rounded(vars(value))
        else:
            out[name] = round(value, 4) if isinstance(value, float) else value
    return out


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}
