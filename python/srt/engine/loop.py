"""The engine's main loop: receive verbs, step, emit events, for whatever channel brings them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from srt.core.context import Context
from srt.core.messages import Advance, Append, Event, Fork, Generate, Open, Verb
from srt.core.progress import MESSAGES, SENDING
from srt.core.work import STEP_VERBS
from srt.engine.engine import Engine

log = logging.getLogger("srt.engine")
AUDIT_SECONDS = 10.0  # least time between two audits of an idle engine
IDLE_SECONDS = 1.0
SOON_SECONDS = 0.001  # until it is asked again whether a grammar is there, or events are taken


class Channel(Protocol):
    """Where verbs come from and events go. Two: a queue in this process, a socket between two."""

    def receive(self, seconds: float) -> list[Verb] | None:
        """The verbs at hand, waiting at most so long for the first; None: the client is gone."""
        ...

    def emit(self, events: Sequence[Event]) -> None:
        """Raises OSError where none of them was taken."""
        ...


def serve(engine: Engine, channel: Channel) -> None:
    """Until the client is gone."""
    audited, passes = time.monotonic(), 0
    events: list[Event] = []  # that were not taken yet
    verbs: list[Verb] = []  # that were not obeyed yet
    progress = engine.progress
    while True:
        progress.turn()
        idle = SOON_SECONDS if engine.compiling or events else IDLE_SECONDS
        more = channel.receive(0.0 if engine.busy or verbs else idle)
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
        elif passes != engine.stats.passes and time.monotonic() - audited > AUDIT_SECONDS:
            audited, passes = time.monotonic(), engine.stats.passes
            audit(engine)
        if events:
            progress.at(SENDING)
            try:
                channel.emit(events)
            except OSError as error:
                log.warning("events were not taken, once more: %s", error)
            else:
                events = []


def affordable(verbs: Sequence[Verb], contexts: Mapping[int, Context]) -> int:
    """How many of the verbs, from the first one on, one step obeys: at least one."""
    total, sizes = 0, dict[int, int]()
    for count, verb in enumerate(verbs):
        total += work(verb, contexts, sizes)
        if total > STEP_VERBS and count:
            return count
    return len(verbs)


def work(verb: Verb, contexts: Mapping[int, Context], sizes: dict[int, int]) -> int:
    """What a verb costs: a copied token is 1, one that is checked too is 16. ``sizes``: tokens of
    the contexts that the verbs before it have made; it is kept up to date."""
    if isinstance(verb, Fork):
        parent = contexts.get(verb.context)
        size = sizes.get(verb.context, len(parent.tokens) if parent is not None else 0)
        sizes[verb.child] = size
        return 64 + size
    if isinstance(verb, Open | Append):
        size = len(verb.tokens) // 4
        sizes[verb.context] = size
        return 64 + 16 * size
    if isinstance(verb, Advance):
        goal = verb.goal
        return 512 + 16 * (len(goal.sampling.logit_bias) if isinstance(goal, Generate) else 0)
    return 64


def audit(engine: Engine) -> None:
    """Check the books; a fault is logged and counted, and serving goes on."""
    try:
        engine.store.check()
    except AssertionError as error:
        engine.stats.failed_audits += 1
        log.error("the memory audit failed: %s", error)
