"""Policies of dispatch: the moment at which calls leave (Pie, sections 5.2, 6.1 and Table 5).

A policy is a function of the situation: seconds until the batch leaves unless something changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

FIXED_SIZE = 32  # commands of a batch under "k"
FIXED_SECONDS = 0.01  # that a command waits under "t"
PATIENCE = 0.25  # part of the last pass that a cohort waits for the next program's command
FIRST_PASS = 0.01  # seconds that a pass is taken to last before there was one


@dataclass(frozen=True)
class Situation:
    """The facts that a policy decides by.

    Attributes:
        eligible: commands that could leave now.
        waited: seconds that the oldest of them has waited.
        quiet: seconds since the latest command came.
        flying: commands that have left and not ended, but those that run ahead.
        runnable: programs that have an answer, or have just started, and have not made their calls;
            not those whose own code takes longer than a pass (``RunnablePrograms``).
        last_pass: seconds from the leaving of the last batch to its end; 0: there was none.
        idle: seconds since nothing was in flight; 0 while something is.
        ahead: commands that run ahead: they begin with a token that is still to be sampled.
    """

    eligible: int
    waited: float = 0.0
    quiet: float = 0.0
    flying: int = 0
    runnable: int = 0
    last_pass: float = 0.0
    idle: float = 0.0
    ahead: int = 0


class Policy(NamedTuple):
    """``delay``: seconds until a batch leaves. ``most``: commands of a batch; 0: no limit."""

    delay: Callable[[Situation], float]
    most: int = 0


def at_idle(now: Situation) -> float:
    """Work-conserving: as soon as nothing is in flight."""
    return math.inf if now.flying else 0.0


def at_size(now: Situation) -> float:
    """A fixed number of commands."""
    return 0.0 if now.eligible >= FIXED_SIZE and not now.flying else math.inf


def at_time(now: Situation) -> float:
    """A fixed time after the oldest command came."""
    return math.inf if now.flying else max(0.0, FIXED_SECONDS - now.waited)


def with_cohort(now: Situation) -> float:
    """Together, once no program is runnable and nothing is in flight.

    It waits for a runnable program at most a quarter of the last pass after the latest command,
    and a whole pass in all; and for what is in flight a quarter longer than the last pass took. A
    command that runs ahead waits for nothing in flight, and takes what is there with it: the engine
    needs it before the pass in flight ends.
    """
    length = now.last_pass or FIRST_PASS
    if now.flying and not now.ahead:
        return max(0.0, (1 + PATIENCE) * length - now.waited)
    if not now.runnable:
        return 0.0
    return max(0.0, min(PATIENCE * length - now.quiet, length - min(now.waited, now.idle)))


POLICIES: dict[str, Policy] = {
    "eager": Policy(at_idle, most=1),
    "k": Policy(at_size, most=FIXED_SIZE),
    "t": Policy(at_time),
    "adaptive": Policy(at_idle),
    "cohort": Policy(with_cohort),
}
DEFAULT = "cohort"
