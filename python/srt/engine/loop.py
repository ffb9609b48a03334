"""The engine's main loop: receive verbs, step, emit events, for whatever channel brings them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Protocol

from srt.core.messages import Event, Verb
from srt.core.progress import MESSAGES, SENDING
from srt.engine.engine import Engine

log = logging.getLogger("srt.engine")
AUDIT_SECONDS = 10.0  # least time between two audits of an idle engine
IDLE_SECONDS = 1.0
SOON_SECONDS = 0.001  # until it is asked again whether a grammar is there, or events are taken


class Channel(Protocol):
    """Where verbs come from and events go. Two: a queue in this process, a socket between two."""

    def receive(self, seconds: float) -> list[Verb] | None:
        """All verbs at hand, waiting at most so long for the first; None: the client is gone."""
        ...

    def emit(self, events: Sequence[Event]) -> None:
        """Raises OSError where none of them was taken."""
        ...


def serve(engine: Engine, channel: Channel) -> None:
    """Until the client is gone."""
    audited, passes = time.monotonic(), 0
    events: list[Event] = []  # that were not taken yet
    progress = engine.progress
    while True:
        progress.turn()
        idle = SOON_SECONDS if engine.compiling or events else IDLE_SECONDS
        verbs = channel.receive(0.0 if engine.busy else idle)
        if verbs is None:
            return
        if verbs or engine.compiling:
            progress.at(MESSAGES)
            events += engine.handle(verbs)
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


def audit(engine: Engine) -> None:
    """Check the books; a fault is logged and counted, and serving goes on."""
    try:
        engine.store.check()
    except AssertionError as error:
        engine.stats.failed_audits += 1
        log.error("the memory audit failed: %s", error)
