"""Park policies: treatment of the KV of contexts that wait for a tool (InferCept, sections 3, 4).

A policy is functions over views, chosen by name (``POLICIES``). ``decide`` chooses the KV to copy
or evict now; ``value`` orders KV for eviction when memory is short. Policies, for such KV:

    discard           evict it at once
    preserve          keep it; other requests may use its memory only if nothing else can run
    swap              copy it to host memory at once, however long the copies take
    heuristic         one of these three, by the expected duration (InferCept's baseline H)
    min-waste         the paper's policy: copy it to host memory within the budget of the passes,
                      the most wasteful first; of the rest, keep or discard what wastes less
    ttl               preserve it for a fixed time, then treat it like other KV
    eager             copy it to host memory at once within the budget of the passes, the oldest
                      first; keep it on the device as under ``priced``
    priced            keep it until other KV has more value; copy it shortly before its eviction
    none              ignore claims: evict the least recently used leaf first

Under ``priced`` the value of a page is the time that it saves, divided by the time until its use:
the time to compute or to load it, whichever is less, over the predicted seconds until the tool
answers. The value of a page without a claim is the time to compute it over its age, times the
chance that such a page is used again. With equal chances and costs this is the least recently used
order. Claims do not lock: under ``priced`` they never keep a request from being admitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sglang.srt.interception.waste import added, chunks, waste_chunk_discard, waste_preserve
from sglang.srt.schedule.costs import Costs

SHORT, MEDIUM = 4.0, 7.0  # seconds: InferCept's thresholds of the heuristic policy
SOON = 0.01  # seconds: least time until a page is used
HORIZON = 1.0  # seconds: ``priced`` copies KV that will be evicted within this time
RETENTION = 4.0  # seconds that ``ttl`` keeps KV: most calls of programs are shorter
REFRESH = 0.1  # seconds between two decisions of a policy that does not decide at every pass


class ParkedItem(NamedTuple):
    """One context that waits for a tool.

    Attributes:
        id: id of the context.
        tokens: tokens of its KV on the device that no other context needs.
        lacking: tokens of its path without a copy in host memory, shared ones included.
        elapsed, remaining: seconds that the call has taken, and predicted seconds left.
    """

    id: int
    tokens: int
    lacking: int
    elapsed: float
    remaining: float


@dataclass(frozen=True, slots=True)
class ParkingView:
    """The state of the engine at one moment.

    Attributes:
        others: tokens of the running contexts (C_other).
        chunk: tokens of a context that one pass can compute in addition to the running contexts.
        room: tokens that can be allocated before memory with a claim is taken.
        taken: tokens that the planned pass takes.
        storable: tokens that the planned pass may copy to host memory; 0 without that tier.
        awaited: tokens of host memory that running requests wait for.
    """

    costs: Costs
    others: int
    chunk: int
    room: int
    taken: int
    storable: int
    awaited: int = 0


@dataclass(slots=True)
class ParkingDecision:
    """A policy's decision: ids of contexts for each action.

    Attributes:
        discard: contexts whose KV is discarded.
        swap: contexts whose KV is copied to host memory, within the limits of the pass, and
            discarded on the device once all of it is copied.
        copy: contexts whose KV is copied to host memory, within the limits of the pass. A context
            that is also in ``discard`` is copied first.
        release: contexts whose claims end, so the least recently used is evicted first.
    """

    discard: list[int] = field(default_factory=list)
    swap: list[int] = field(default_factory=list)
    copy: list[int] = field(default_factory=list)
    release: list[int] = field(default_factory=list)


# Items are made only when a policy needs them: for a thousand parked contexts that takes a while.
Items = Callable[[], Sequence[ParkedItem]]
Decide = Callable[[Items, ParkingView], ParkingDecision]
Value = Callable[[ParkedItem, Costs], float]


@dataclass(frozen=True, slots=True)
class ParkingPolicy:
    """A policy for parked contexts.

    Attributes:
        decide: called for the contexts whose tool has not answered.
        value: value of a token of a context's KV; the lowest is evicted first where memory is
            short.
        soft: whether a request may get memory of parked contexts, whatever else runs.
        synchronous: whether copies may take longer than their pass.
        pause: seconds between two calls of ``decide``; 0: it is called for every pass.
    """

    decide: Decide
    value: Value
    soft: bool = False
    synchronous: bool = False
    pause: float = 0.0


def discard(items: Items, view: ParkingView) -> ParkingDecision:
    """Discard the KV of every parked context (InferCept, section 3.2, Discard)."""
    return ParkingDecision(discard=[item.id for item in items()])


def preserve(items: Items, view: ParkingView) -> ParkingDecision:
    """Keep the KV of every parked context (InferCept, section 3.2, Preserve)."""
    return ParkingDecision()


def swap(items: Items, view: ParkingView) -> ParkingDecision:
    """Copy the KV of every parked context to host memory (InferCept, section 3.2, Swap)."""
    return ParkingDecision(swap=[item.id for item in items()])


def heuristic(items: Items, view: ParkingView) -> ParkingDecision:
    """Keep the KV of short calls, copy that of medium calls to host memory, and discard that of
    long calls."""
    made = ParkingDecision()
    for item in items():
        expected = item.elapsed + item.remaining
        if expected >= MEDIUM:
            made.discard.append(item.id)
        elif expected >= SHORT:
            made.swap.append(item.id)
    return made


def min_waste(items: Items, view: ParkingView) -> ParkingDecision:
    """Copy the most wasteful contexts to host memory, within the budget of this pass and of the
    next ones. Of the rest, discard those for which that wastes less than keeping them (InferCept,
    section 4.3, with equations 2, 4 and 5).

    A context that is too large for one pass is copied in parts. It wastes its memory until the last
    part is copied, and again while it is loaded. It is copied if that is less than the waste of
    keeping or computing it again.
    """
    made, ahead, t_fwd = ParkingDecision(), view.awaited, added(view.costs)
    kept, given_up, waiting = dict[int, float](), dict[int, float](), items()
    for item in waiting:
        n = chunks(item.tokens, view.chunk)
        kept[item.id] = waste_preserve(item.tokens, 1e3 * item.remaining)
        given_up[item.id] = waste_chunk_discard(item.tokens, view.others, n, t_fwd)
    for item in sorted(waiting, key=lambda i: -min(kept[i.id], given_up[i.id])):
        if waste_copied(item, ahead, view) < min(kept[item.id], given_up[item.id]):
            ahead += item.lacking
            made.swap.append(item.id)
        elif given_up[item.id] < kept[item.id]:
            made.discard.append(item.id)
    return made


def waste_copied(item: ParkedItem, ahead: int, view: ParkingView) -> float:
    """Return the waste of copying a context to host memory, in tokens times milliseconds. The
    context holds its device memory until it is copied and while it is loaded back. All passes are
    assumed to last as long as this one; ``ahead`` tokens are copied before it."""
    held = item.tokens * view.costs.copy.b
    if item.lacking:
        if not view.storable:
            return math.inf
        passes = (ahead + item.lacking - 1) // view.storable
        held += passes * view.costs.forward.at(view.taken)
    return waste_preserve(item.tokens, held)


def ttl(items: Items, view: ParkingView) -> ParkingDecision:
    """Keep the KV of every parked context for ``RETENTION`` seconds, then end its claim."""
    return ParkingDecision(release=[item.id for item in items() if item.elapsed > RETENTION])


def eager(items: Items, view: ParkingView) -> ParkingDecision:
    """Copy the KV of every parked context within the budget, the oldest first, and discard none."""
    made, left = ParkingDecision(), view.storable
    for item in items() if left > 0 else ():
        if left <= 0:
            break
        if item.lacking:
            left -= item.lacking
            made.copy.append(item.id)
    return made


def write_back(items: Items, view: ParkingView) -> ParkingDecision:
    """Copy KV that would be evicted before it is copied, if its copy began only at the next
    decision. The KV that is evicted first is copied first. KV that the device will keep is not
    copied."""
    made, ahead, room = ParkingDecision(), 0, view.room
    if not view.taken or view.storable <= 0:
        return made
    milliseconds = max(view.costs.forward.at(view.taken), 1e-9)
    if room >= 1e3 * HORIZON * view.taken / milliseconds:
        return made
    for item in sorted(items(), key=lambda i: priced_value(i, view.costs)):
        passes = (ahead + item.lacking) / view.storable + 1e3 * REFRESH / milliseconds
        if ahead >= view.storable or room >= passes * view.taken:
            break
        room += item.tokens
        if item.lacking:
            ahead += item.lacking
            made.copy.append(item.id)
    return made


def priced_value(item: ParkedItem, costs: Costs) -> float:
    """Return the milliseconds that a token's KV saves for each second until they are saved."""
    saved = min(costs.forward.b, costs.copy.b) if not item.lacking else costs.forward.b
    return saved / max(item.remaining, SOON)


def claimed_value(remaining: float, costs: Costs) -> float:
    """Return the value of a token's KV in a lower tier, with a claim that is used in ``remaining``
    seconds."""
    return costs.forward.b / max(remaining, SOON)


def unclaimed_value(age: float, chance: float, costs: Costs) -> float:
    """Return the value of a token's KV without a claim that was unused for ``age`` seconds. A share
    ``chance`` of such KV is used again."""
    return chance * costs.forward.b / max(age, SOON)


def youngest_first(item: ParkedItem, costs: Costs) -> float:
    """Return a value under which the KV of the youngest call is evicted first."""
    return item.elapsed


POLICIES: dict[str, ParkingPolicy] = {
    "priced": ParkingPolicy(write_back, priced_value, soft=True, pause=REFRESH),
    "none": ParkingPolicy(preserve, youngest_first, soft=True, pause=REFRESH),
    "discard": ParkingPolicy(discard, youngest_first),
    "preserve": ParkingPolicy(preserve, youngest_first),
    "swap": ParkingPolicy(swap, youngest_first, synchronous=True),
    "heuristic": ParkingPolicy(heuristic, youngest_first, synchronous=True),
    "min-waste": ParkingPolicy(min_waste, youngest_first),
    "ttl": ParkingPolicy(ttl, youngest_first),
    "eager": ParkingPolicy(eager, priced_value, soft=True),
}
