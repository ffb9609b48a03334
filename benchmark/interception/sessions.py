"""Sessions of programs that call tools, with the six workloads of InferCept's Table 1.

The paper gives means and spreads of the seconds of a call, the number of calls and the tokens of
context. The tokens generated before a call and returned by it are assumptions of this benchmark.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

LONGEST = 1980  # tokens of a context, as in the paper's evaluation (2,048 with some room)


@dataclass(frozen=True)
class Workload:
    """A row of Table 1: means and spreads, and the assumed tokens of a turn.

    Attributes:
        seconds: of a call.
        calls: of a session.
        context: tokens of a session.
        generated, returned: tokens before a call, and of its result.
    """

    seconds: tuple[float, float]
    calls: tuple[float, float]
    context: tuple[float, float]
    generated: int
    returned: int


WORKLOADS = {
    "math": Workload((9e-5, 6e-5), (3.75, 1.3), (1422, 738), 40, 5),
    "qa": Workload((0.69, 0.17), (2.52, 1.73), (1846, 428), 50, 60),
    "ve": Workload((0.09, 0.014), (28.18, 15.2), (2185, 115), 15, 20),
    "chat": Workload((28.6, 15.6), (4.45, 1.96), (753, 703), 80, 30),
    "image": Workload((20.03, 7.8), (6.91, 3.93), (1247, 792), 30, 20),
    "tts": Workload((17.24, 7.6), (6.91, 3.93), (1251, 792), 30, 20),
}


@dataclass(frozen=True)
class Turn:
    """Tokens to generate, then a call of ``seconds`` that returns ``returned`` tokens; the last
    turn has no call. A call of infinitely many seconds never returns."""

    generated: int
    seconds: float = 0.0
    returned: int = 0


@dataclass(frozen=True)
class Session:
    """A program.

    Attributes:
        arrival: seconds since the start.
        prompt: tokens that it begins with; no other session has a token of them.
    """

    number: int
    workload: str
    arrival: float
    prompt: int
    turns: tuple[Turn, ...]


def sessions(
    rate: float, seconds: float, seed: int, names: Sequence[str], lost: float = 0.0
) -> list[Session]:
    """Poisson arrivals of ``rate`` a second, each of a workload chosen with equal chances. Of the
    sessions a share of ``lost`` has a last call that never returns."""
    r, fate, at = random.Random(seed), random.Random(seed), 0.0
    found: list[Session] = []
    while True:
        at += r.expovariate(rate)
        if at > seconds:
            return found
        session = _session(r, len(found) + 1, r.choice(list(names)), at)
        if fate.random() < lost and len(session.turns) > 1:
            *before, call, end = session.turns
            session = replace(session, turns=(*before, replace(call, seconds=math.inf), end))
        found.append(session)


def _session(r: random.Random, number: int, name: str, arrival: float) -> Session:
    kind = WORKLOADS[name]
    calls = int(_within(round(r.gauss(*kind.calls)), 1, 60))
    context = _within(r.gauss(*kind.context), 200, LONGEST)
    growth = (kind.generated + kind.returned) * calls
    prompt = total = int(_within(context - growth / 2, 100, LONGEST - 60))
    turns: list[Turn] = []
    for _ in range(calls):
        generated = _length(r, kind.generated)
        returned = _length(r, kind.returned)
        if total + generated + returned + 8 > LONGEST:
            break
        turns.append(Turn(generated, max(1e-5, r.gauss(*kind.seconds)), returned))
        total += generated + returned
    turns.append(Turn(max(4, min(kind.generated, LONGEST - total))))
    return Session(number, name, arrival, prompt, tuple(turns))


def _length(r: random.Random, mean: int) -> int:
    return min(max(1, int(r.expovariate(1 / mean))), 4 * mean)


def _within(value: float, low: float, high: float) -> float:
    return max(low, min(high, value))
