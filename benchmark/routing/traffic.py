"""Traffic: requests of clients, generated from a seed, the same for every policy.

    chats    system prompts by Zipf, conversations after them, and lone prompts
    agents   programs of ``benchmark/interception/agent_load``: a turn, a tool, a turn ...

Both yield first requests in the order of moments that are never later than the requests;
``Served.follow`` makes the later ones.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from sglang.srt.core.ints import Ints, ints

from benchmark.interception.agent_load import Program, generated
from benchmark.routing.served_engine import Served

MOST_TURNS = 12
STAGGER = 10.0  # seconds within which the first programs begin


def text(identity: int, count: int) -> Ints:
    """Return ``count`` tokens of an identity; texts of two identities share no token."""
    return ints((identity,)) * count


@dataclass(frozen=True)
class Chats:
    """Chat requests, Poisson.

    Attributes:
        rate: requests a second, in all.
        seconds: of arrivals.
        groups: number of system prompts; the nth is n times as rare as the first.
        lone: share of the requests that share nothing.
        turns, gap: means of a conversation's turns, and of the seconds from one to the next, which
            comes at least a second after the answer.
    """

    rate: float
    seconds: float
    seed: int
    groups: int = 200
    lone: float = 0.15
    turns: float = 4.0
    gap: float = 10.0

    def requests(self) -> Iterator[tuple[float, Served]]:
        """Yield first requests. Conversations that began before the start go on at their turn."""
        r = random.Random(self.seed)
        names = itertools.count(self.groups + 1)
        weights = list(itertools.accumulate(1 / (n + 1) for n in range(self.groups)))
        sizes = [r.randint(512, 3072) for _ in range(self.groups)]
        starts = self.rate * (1 - self.lone) / self.turns
        before = MOST_TURNS * self.gap / 2
        talk = -before + r.expovariate(starts)
        alone = r.expovariate(self.rate * self.lone)
        while min(talk, alone) < self.seconds:
            if alone < talk:
                length, answer = r.randint(256, 2560), r.randint(20, 200)
                tokens = text(next(names), length) + text(next(names), answer)
                yield alone, Served(tokens, length, alone)
                alone += r.expovariate(self.rate * self.lone)
                continue
            (group,) = r.choices(range(self.groups), cum_weights=weights)
            first = self._talk(r.randrange(1 << 30), group + 1, sizes[group], talk, names)
            if first is not None:
                yield talk, first
            talk += r.expovariate(starts)

    def _talk(
        self, seed: int, group: int, size: int, start: float, names: Iterator[int]
    ) -> Served | None:
        """Return the first request of a conversation from moment 0 on."""
        r = random.Random(seed)
        turns = min(MOST_TURNS, 1 + int(r.expovariate(1 / (self.turns - 0.5))))
        key, tokens, planned = f"talk {seed}", text(group, size), start

        def turn(number: int, ended: float) -> Served | None:
            nonlocal tokens, planned
            while number < turns:
                tokens = tokens + text(next(names), r.randint(32, 512))
                prompt, due = len(tokens), max(planned, ended + 1.0)
                tokens = tokens + text(next(names), r.randint(20, 250))
                planned += r.expovariate(1 / self.gap)
                number += 1
                if due >= self.seconds:
                    return None
                if due >= 0:
                    return Served(tokens, prompt, due, key, follow=partial(turn, number))
            return None

        return turn(0, start - 1.0)


@dataclass(frozen=True)
class Agents:
    """Programs of agents, ``clients`` of them at a time, each replaced when it has ended.

    Attributes:
        scale: tokens of an agent that one token stands for.
    """

    clients: int
    seconds: float
    seed: int
    scale: int = 10

    def requests(self) -> Iterator[tuple[float, Served]]:
        """Yield the first programs' first requests."""
        names = itertools.count(1000)
        waiting = iter(generated(40 * self.clients, self.seed, self.scale))
        for index, program in enumerate(itertools.islice(waiting, self.clients)):
            start = STAGGER * index / self.clients
            first = self._program(program, start, waiting, names)
            if first is not None:
                yield start, first

    def _program(
        self, program: Program, start: float, waiting: Iterator[Program], names: Iterator[int]
    ) -> Served | None:
        tokens, key = ints(), f"program {program.number}"

        def turn(number: int, ended: float) -> Served | None:
            nonlocal tokens
            if number == len(program.turns):
                following = next(waiting, None)
                if following is None:
                    return None
                return self._program(following, ended, waiting, names)
            asked = program.turns[number]
            for identity, count in asked.blocks:
                name = identity if number == 0 and identity < 1000 else next(names)
                tokens = tokens + text(name, count)
            prompt = len(tokens)
            tokens = tokens + text(next(names), asked.generated)
            due = ended + asked.gap
            if due >= self.seconds:
                return None
            return Served(tokens, prompt, due, key, follow=partial(turn, number + 1))

        return turn(0, start)
