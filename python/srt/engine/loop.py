"""The engine's main loop: receive verbs, apply them, run a step, emit events, over any channel."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Protocol

from sglang.srt.core.context import Context
from sglang.srt.core.device_errors import DeviceLost
from sglang.srt.core.messages import Advance, Append, Event, ForkContext, Generate, Open, Verb
from sglang.srt.core.progress import MESSAGES, SENDING
from sglang.srt.core.space_messages import SpaceVerb
from sglang.srt.core.work import STEP_BYTES, STEP_VERBS
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.spaces.verb_cost import space_cost

log = logging.getLogger("sglang.srt.engine")
AUDIT_SECONDS = 10.0  # least time between two audits of an idle engine
IDLE_SECONDS = 1.0
MOST_PATTERNS = STEP_VERBS // 2  # most cost that the stop patterns of a request count with
STRINGS, PATTERNS = 128, 4096  # cost of searching a continued text for stops, per token
MOST_SEARCH = STEP_VERBS // 4  # most cost of searching a text for patterns (STEP_SEARCH)
_COUNT = re.compile(r"(?<=[{,])[0-9]{1,4}(?=[,}])")  # a number in a repeat such as {2,5}
SOON_SECONDS = 0.001  # wait between two checks whether a grammar is ready or events can be sent


class Channel(Protocol):
    """Transport of verbs and events: a queue in this process, or a socket between two."""

    def receive(self, seconds: float, limit: int) -> list[Verb] | None:
        """Return the next verbs: whole messages, up to the one that reaches ``limit`` bytes; [] if
        ``limit`` is 0. Wait at most ``seconds`` for the first. None: the client has ended; verbs
        not received yet are lost."""
        ...

    def emit(self, events: Sequence[Event]) -> None:
        """Send events. Raises OSError if none of the events was sent."""
        ...


def serve(engine: EngineCore, channel: Channel) -> None:
    """Run the engine until the client has ended. Raises DeviceLost after a loss of the device,
    once every request has had its terminal event."""
    clock = engine.clock
    audited, passes = clock.now(), 0
    events: list[Event] = []  # not sent yet
    verbs: list[Verb] = []  # not applied yet
    progress = engine.progress
    while True:
        progress.turn()
        idle = SOON_SECONDS if engine.compiling or events else IDLE_SECONDS
        # Verbs left over are applied before more are received, so that memory for them is bounded.
        more = channel.receive(0.0 if engine.busy or verbs else idle, 0 if verbs else STEP_BYTES)
        if more is None:
            return
        verbs += more
        if verbs or engine.compiling:
            progress.at(MESSAGES)
            count = affordable(verbs, engine.store.contexts)
            events += engine.handle(verbs[:count])
            del verbs[:count]
        if engine.busy:
            events += engine.step()
        elif passes != engine.stats.passes and clock.now() - audited > AUDIT_SECONDS:
            audited, passes = clock.now(), engine.stats.passes
            audit(engine)
        if (watcher := engine.store.tree.watcher) is not None:
            watcher.flush()
        if events:
            progress.at(SENDING)
            try:
                channel.emit(events)
            except OSError as error:
                log.warning("events were not sent; trying again: %s", error)
            else:
                events = []
        lost = engine.lost or ("" if engine.busy else engine.executor.lost)
        if lost and not events:
            raise DeviceLost(lost)


def affordable(verbs: Sequence[Verb], contexts: Mapping[int, Context]) -> int:
    """Return how many of the verbs, from the first on, one step may apply: at least one."""
    total, costs = 0, VerbCosts(contexts)
    for count, verb in enumerate(verbs):
        total += costs.of(verb)
        if total > STEP_VERBS and count:
            return count
    return len(verbs)


class VerbCosts:
    """Costs of the verbs of one step, computed in their order. Unit: the cost of copying a token.

    Args:
        contexts: the engine's contexts before the step, by id.
    """

    def __init__(self, contexts: Mapping[int, Context]) -> None:
        self._contexts = contexts
        self._sizes: dict[int, int] = {}  # context id -> tokens, where changed by verbs
        self._stops: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()

    def of(self, verb: Verb) -> int:
        """Return the cost of a verb."""
        if isinstance(verb, ForkContext):
            size = self._sizes[verb.child] = self._size(verb.context)
            return 64 + size
        if isinstance(verb, Open | Append):
            size = len(verb.tokens) // 4
            before = self._size(verb.context) if isinstance(verb, Append) else 0
            self._sizes[verb.context] = before + size
            return 64 + 16 * size  # each token is also checked
        if isinstance(verb, Advance):
            return 512 + (self._goal(verb.goal) if isinstance(verb.goal, Generate) else 0)
        return space_cost(verb) if isinstance(verb, SpaceVerb) else 64

    def _size(self, number: int) -> int:
        if number in self._sizes:
            return self._sizes[number]
        context = self._contexts.get(number)
        return 0 if context is None else len(context.tokens)

    def _goal(self, goal: Generate) -> int:
        """Return the cost of the biases, of the stops (unless an earlier verb has the same), and of
        the search for stops in text that is generated already."""
        sampling = goal.sampling
        cost, stops = 16 * len(sampling.logit_bias), (sampling.stop, sampling.stop_regex)
        if goal.generated and any(stops):
            cost += STRINGS * goal.generated
            if sampling.stop_regex:
                cost += min(PATTERNS * goal.generated, MOST_SEARCH)
        if stops in self._stops:
            return cost
        self._stops.add(stops)
        return cost + 256 * sum(map(len, sampling.stop)) + pattern_cost(sampling.stop_regex)


def pattern_cost(patterns: Sequence[str]) -> int:
    """Return the cost of compiling stop patterns to an automaton. Cost grows with the length of the
    patterns with repeats written out; the product of a pattern's counts bounds the copies."""
    if not patterns:
        return 0
    characters = 0
    for pattern in patterns:
        copies = prod(min(int(count), 1000) or 1 for count in _COUNT.findall(pattern))
        tables = pattern.count(r"\p") + pattern.count(r"\P")  # classes of Unicode, 0.4 ms each
        characters += (len(pattern) + 32 * tables) * copies
    return min(4096 + 1024 * characters, MOST_PATTERNS)


def audit(engine: EngineCore) -> None:
    """Check the store's invariants. Log and count a violation, and go on serving."""
    try:
        engine.store.check()
    except AssertionError as error:
        engine.stats.failed_audits += 1
        log.error("the memory audit failed: %s", error)
