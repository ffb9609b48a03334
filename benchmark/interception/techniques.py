"""Techniques: policies for parked KV between InferCept's arms, for its breakdown alone.

InferCept's section 5.2 adds one technique at a time. Those steps that are no policy of the engine
are here. A context that a pass may copy only in part loses the rest, which is computed again:
copies begin at its first token, memory is given up from its last one.
"""

from __future__ import annotations

from collections.abc import Iterable

from sglang.srt.interception.park_policies import (
    SHORT,
    Items,
    ParkedItem,
    ParkingDecision,
    ParkingPolicy,
    ParkingView,
    preserve,
    priced_value,
    youngest_first,
)


def swap_in_budget(items: Items, view: ParkingView) -> ParkingDecision:
    """Give everything up, and copy before what the pass may copy."""
    return _given_up(items(), view)


def preserve_short(items: Items, view: ParkingView) -> ParkingDecision:
    """Keep the KV of short calls, and treat that of others as ``swap_in_budget``."""
    return _given_up((i for i in items() if i.elapsed + i.remaining >= SHORT), view)


def _given_up(items: Iterable[ParkedItem], view: ParkingView) -> ParkingDecision:
    made, left = ParkingDecision(), view.storable
    for item in items:
        if left > 0:
            left -= item.tokens
            made.copy.append(item.id)
        made.discard.append(item.id)
    return made


TECHNIQUES = {
    "swap in budget": ParkingPolicy(swap_in_budget, youngest_first),
    "preserve short": ParkingPolicy(preserve_short, youngest_first),
    # The order of ``priced`` without copies ahead: what is evicted is copied as it goes.
    "claims": ParkingPolicy(preserve, priced_value, soft=True),
}
