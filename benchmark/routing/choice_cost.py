"""Choice cost: processor time of the router alone, at many engines."""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from dataclasses import dataclass

from sglang.srt.commands.bench.stats import percentile
from sglang.srt.core.ints import Ints
from sglang.srt.routing.prompt import RoutedPrompt
from sglang.srt.routing.routed_engine import Ticket
from sglang.srt.routing.router import Router

from benchmark.routing.served_engine import Machine
from benchmark.routing.traffic import text

LONG = 131_072  # tokens of the longest prompts
EACH = 12  # requests in flight an engine
GROUPS = 200


@dataclass(frozen=True)
class ChoiceCost:
    """Microseconds of processor time: of a choice, median and p99; of the other calls of a request;
    of a choice for a prompt of ``LONG`` tokens, and of its hashes."""

    median: float
    p99: float
    others: float
    long: float
    hashes: float


def choice_cost(engines: int, requests: int, policy: str = "predicted") -> ChoiceCost:
    """Measure ``requests`` choices, after as many that fill the tree."""
    r, machine, router = random.Random(0), Machine(), Router(policy)
    for index in range(engines):
        router.add(f"e{index}", machine.capacity, machine.slots)
    weights = list(itertools.accumulate(1 / (n + 1) for n in range(GROUPS)))
    systems = [text(n + 1, r.randint(512, 3072)) for n in range(GROUPS)]
    flight: deque[Ticket] = deque()
    times, others = list[float](), 0.0
    for number in range(2 * requests):
        (system,) = r.choices(systems, cum_weights=weights)
        prompt, now = (
            RoutedPrompt(system + text(GROUPS + 1 + number, r.randint(32, 1024))),
            number / 1e4,
        )
        begin = time.process_time()
        ticket = router.choose(prompt, now)
        middle = time.process_time()
        router.first_token(ticket, now + 0.05, ticket.cached)
        flight.append(ticket)
        if len(flight) > EACH * engines:
            router.ended(flight.popleft(), now, 100)
        if number >= requests:
            times.append(middle - begin)
            others += time.process_time() - middle
    longs = [text(10**6 + n, LONG) for n in range(20)]
    return ChoiceCost(
        1e6 * percentile(sorted(times), 50), 1e6 * percentile(sorted(times), 99),
        1e6 * others / requests,
        _each(longs, lambda tokens: router.choose(RoutedPrompt(tokens), 1e6)),
        _each(longs, lambda tokens: RoutedPrompt(tokens).path()),
    )  # fmt: skip


def _each(prompts: list[Ints], call) -> float:  # type: ignore[no-untyped-def]
    """Return the median microseconds of a call."""
    times = []
    for prompt in prompts:
        begin = time.process_time()
        call(prompt)
        times.append(time.process_time() - begin)
    return 1e6 * percentile(sorted(times), 50)
