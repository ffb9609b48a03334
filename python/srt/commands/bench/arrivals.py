"""Arrivals: when each conversation begins."""

from __future__ import annotations

import math
import random


def offsets(rng: random.Random, rate: float, count: int) -> list[float]:
    """Seconds from the start, ascending: a Poisson process of ``rate`` a second, so gaps are
    exponential with mean ``1 / rate``; zeros where ``rate`` is infinite (all at once).

    Raises ValueError where ``rate`` is not positive.
    """
    if not rate > 0:
        raise ValueError(f"--request-rate is {rate}; it must be positive, or inf for all at once")
    if math.isinf(rate):
        return [0.0] * count
    times, now = [], 0.0
    for _ in range(count):
        now += rng.expovariate(rate)
        times.append(now)
    return times
