"""Policies: functions that choose an engine, by their names in ``--routing-policy``.

The default, ``predicted``, chooses the engine with the least

    wait + share + work (1 + 2 queue) (2 where memory is full) (2 where the namespace is new) + load

    wait    predicted seconds until the engine begins with the prompt
    share   cost of the engine's requests: each one slows the others like 200 tokens of work
    work    seconds to compute the tokens that are not cached on the engine
    queue   mean number of requests without a first token on an engine, which more work delays
    load    seconds to load an adapter that the engine has not used

With several routers, each knows only a part of the caches. Half of a prompt's unknown part then
counts as cached on the engine to which all routers would send it (``hash_ring``).

If waiting for a cached prefix costs more than computing it again, another engine is chosen. So no
threshold is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from sglang.srt.routing.application_policy import placed_call
from sglang.srt.routing.choice import Choice
from sglang.srt.routing.routed_engine import RoutedEngine

Policy: TypeAlias = "Callable[[Choice], RoutedEngine]"

QUEUE = 2.0  # weight of the delay that work causes to each waiting request
REQUEST = 200  # cost of a request to the other requests on its engine, in tokens of work
ADAPTER_SECONDS = 0.5  # seconds to load an adapter
AGREED = 0.5  # share of a prompt's unknown part that counts as cached on the agreed engine
# SGLang's rule: the share of a prompt above which its holder is chosen. Loads are unbalanced if the
# largest and the smallest differ by more than both the difference and the proportion.
MATCHED, DIFFERENCE, PROPORTION = 0.3, 64, 1.5


def predicted(choice: Choice) -> RoutedEngine:
    """Choose the engine with the least predicted cost to this prompt and to waiting requests."""
    return _least(choice, choice.candidates(), predicted_cost)


def predicted_cost(choice: Choice, engine: RoutedEngine) -> float:
    """Return the seconds that sending the prompt to an engine costs."""
    prompt = choice.prompt
    uncached = len(prompt.tokens) - choice.matched(engine)
    if engine is choice.agreed:
        uncached -= int(AGREED * uncached)
    if engine is choice.home and engine.name == prompt.home:
        uncached = 0  # the new tokens cost the same everywhere
    work = uncached * (1 + QUEUE * choice.engines.queue)
    if engine.cache.full:
        work *= 2
    if prompt.namespace and choice.present and engine.cache not in choice.present:
        work *= 2
    work += REQUEST * engine.load
    load = ADAPTER_SECONDS if prompt.adapter and prompt.adapter not in engine.adapters else 0.0
    return choice.wait(engine) + work * engine.rate.per_token(choice.pace) + load


def product(choice: Choice) -> RoutedEngine:
    """Choose the engine with the least product of uncached tokens and requests."""

    def cost(choice: Choice, engine: RoutedEngine) -> float:
        uncached = len(choice.prompt.tokens) - choice.matched(engine)
        return (uncached + 1) * (engine.load + 1)

    return _least(choice, choice.candidates(), cost)


def cache_aware(choice: Choice) -> RoutedEngine:
    """SGLang's rule: choose the engine with the longest match if that is a large share of the
    prompt and loads are balanced, otherwise the engine with the fewest requests. Linear in the
    number of engines."""
    permitted = choice.permitted()
    loads = [engine.load for engine in permitted]
    most, least = max(loads), min(loads)
    tokens, caches = choice.longest()
    if most - least <= DIFFERENCE or most <= PROPORTION * least:
        holders = [choice.engines.with_cache(cache) for cache in caches]
        holders = [engine for engine in holders if choice.permits(engine)]
        if holders and tokens > MATCHED * len(choice.prompt.tokens):
            return holders[int(choice.random.random() * len(holders))]
    return _least(choice, permitted, _load)


def affinity(choice: Choice) -> RoutedEngine:
    """Choose the home; without a home, an engine with the longest match; without a match, the
    engine with the fewest requests."""
    if choice.home is not None:
        return choice.home
    holders = [choice.engines.with_cache(cache) for cache in choice.longest()[1]]
    holders = [engine for engine in holders if choice.permits(engine)]
    return _least(choice, holders or choice.permitted(), _load)


def least_load(choice: Choice) -> RoutedEngine:
    """Choose the engine with the fewest requests. Linear in the number of engines."""
    return _least(choice, choice.permitted(), _load)


def at_random(choice: Choice) -> RoutedEngine:
    return choice.sampled(1)[0]


def round_robin(choice: Choice) -> RoutedEngine:
    """Choose the next engine in turn that may be chosen."""
    engines = choice.engines
    while True:
        engine = engines.listed[engines.turn % len(engines)]
        engines.turn = (engines.turn + 1) % len(engines)
        if choice.permits(engine):
            return engine


def application(choice: Choice) -> RoutedEngine:
    """Use Parrot's Algorithm 1 for a call of an application, ``predicted`` for other requests."""
    return placed_call(choice) or predicted(choice)


def _load(choice: Choice, engine: RoutedEngine) -> float:
    return engine.load


def _least(
    choice: Choice,
    engines: Iterable[RoutedEngine],
    cost: Callable[[Choice, RoutedEngine], float],
) -> RoutedEngine:
    """Return the engine of least cost; on a tie a random one."""
    best, least, lot = None, 0.0, 0.0
    for engine in engines:
        value = cost(choice, engine)
        if best is None or value <= least:
            ticket = choice.random.random()
            if best is None or value < least or ticket < lot:
                best, least, lot = engine, value, ticket
    assert best is not None, "a choice has at least one engine"
    return best


POLICIES: dict[str, Policy] = {
    "predicted": predicted,
    "random": at_random,
    "round-robin": round_robin,
    "least-load": least_load,
    "cache-aware": cache_aware,
    "affinity": affinity,
    "product": product,
    "application": application,
}
