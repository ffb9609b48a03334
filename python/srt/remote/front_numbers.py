"""Numbers of contexts, requests, controls and spaces. Each front (server) counts from 1, but the
engine needs unique numbers. An engine-wide number has the session's number in its upper bits and
the front's number in the lower ones. So no table is needed, and numbers of an ended session are
never used again.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from sglang.srt.core.messages import (
    Advance,
    Control,
    Event,
    ForkContext,
    LoadAdapter,
    Reply,
    UnloadAdapter,
    Verb,
)
from sglang.srt.core.space_messages import SpaceEvent, SpaceVerb

BITS = 40  # bits of a front's number
OWN = (1 << BITS) - 1
MAX_SESSIONS = 1 << 23  # engine-wide numbers have at most 63 bits

E = TypeVar("E", bound=Event)


def session_of(number: int) -> int:
    """Return the session of an engine-wide number."""
    return number >> BITS


def engine_wide(verb: Verb, session: int, offset: float) -> Verb:
    """Return a front's verb with engine-wide numbers.

    Args:
        offset: seconds by which this machine's monotonic clock is ahead of the front's.

    Raises ValueError for a number outside 1 to ``OWN``.
    """
    replace, base = msgspec.structs.replace, session << BITS
    if isinstance(verb, Control | LoadAdapter | UnloadAdapter):
        return replace(verb, id=base | _own(verb.id))
    if isinstance(verb, SpaceVerb):  # request numbers within a space need not be engine-wide
        return replace(verb, space=base | _own(verb.space))
    context = base | _own(verb.context)
    if isinstance(verb, ForkContext):
        return replace(verb, context=context, child=base | _own(verb.child))
    if isinstance(verb, Advance):
        arrived = verb.arrived + offset if verb.arrived > 0 else 0.0
        request, hint = base | _own(verb.request), verb.hint
        if hint is not None and hint.program:  # two fronts may use the same name
            hint = replace(hint, program=f"{session}/{hint.program}")
        return replace(verb, context=context, request=request, arrived=max(arrived, 0.0), hint=hint)
    return replace(verb, context=context)


def _own(number: int) -> int:
    if 0 < number <= OWN:
        return number
    raise ValueError(f"number {number}; contexts, requests, controls and spaces have 1 to {OWN}")


def session_of_event(event: Event) -> int:
    return _number_of(event) >> BITS


def _number_of(event: Event) -> int:
    if isinstance(event, SpaceEvent):
        return event.space
    return event.id if isinstance(event, Reply) else event.request


def given_back(event: E) -> E:
    """Return the event with the front's own number in place of the engine-wide one."""
    if isinstance(event, Reply):
        event.id &= OWN
    elif isinstance(event, SpaceEvent):
        return msgspec.structs.replace(event, space=event.space & OWN)
    else:
        event.request &= OWN
    return event
