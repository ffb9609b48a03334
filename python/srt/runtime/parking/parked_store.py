"""ParkedStore: the contexts that wait for a tool, of all tenants.

    waiting     the store keeps its tokens; the engine, while it lives, holds a claim on its KV
    used        a prompt has continued it: the engine's claim has ended, and its tokens are kept for
                other prompts that begin with the same text
    (gone)      at its deadline, by a close, or to make room for newer contexts of its tenant

A context that a program parked by name has a handle (``resumable``) and is never closed to make
room. Any prompt may match a context by its text; only its handle resumes the generation itself.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from sglang.srt.core.clock import SYSTEM_CLOCK, Clock
from sglang.srt.core.ints import Ints
from sglang.srt.requests.completion.completer import Completer, EngineLost
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.held_context import Claim, HeldContext, Resumption
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.parking.text_index import ContextText, TextIndex

ENTRY_BYTES = 1024  # approximate size of a parked context without its tokens
TOKEN_BYTES = 4
DEADLINE = 600.0  # seconds after which a parked context is closed, by default
MOST_DEADLINE = 86400.0
SLACK = 64  # stale deadlines that may be kept, in addition to one for each context


@dataclass(frozen=True, slots=True)
class ParkingScope:
    """Facts that a prompt must share with a parked context to continue it. ``namespace``: the
    request's salt, preceded by the tenant's own."""

    tenant: str
    namespace: str = ""
    adapter: str = ""


@dataclass(frozen=True, slots=True)
class ParkFacts:
    """Facts about a request that later requests on its context need.

    Attributes:
        rid: name of the request.
        arrived: moment of the first request, by the monotonic clock.
        claim: the wait for the tool, as it is described to the engine.
        settings_bytes: size of the sampling parameters, if they are kept.
    """

    rid: str
    arrived: float
    claim: Claim
    settings_bytes: int = 0


@dataclass(eq=False, slots=True)
class ParkedContext:
    """One context. ``expires``: its deadline by the store's clock. ``held``: the context opened in
    the engine; None if there was no engine."""

    number: int
    scope: ParkingScope
    tokens: Ints
    text: ContextText
    facts: ParkFacts
    expires: float
    held: HeldContext | None = None
    ended: Callable[[], None] | None = None  # called at the deadline, or on close; marks a handle
    used: bool = False

    @property
    def named(self) -> bool:
        """Whether the context has a handle."""
        return self.ended is not None

    @property
    def size(self) -> int:
        """Approximate bytes that the store counts for the context."""
        return size_of(len(self.tokens), self.facts.settings_bytes)


def size_of(tokens: int, settings_bytes: int = 0) -> int:
    return ENTRY_BYTES + TOKEN_BYTES * tokens + settings_bytes


@dataclass(eq=False, slots=True)
class TenantContexts:
    """The parked contexts of one tenant, in the order in which they are closed to make room.

    Attributes:
        bytes: size of the contexts.
        reserved, reserved_bytes: number and size of contexts that running requests will park.
    """

    contexts: OrderedDict[int, ParkedContext] = field(default_factory=OrderedDict)
    texts: dict[ParkingScope, TextIndex[ParkedContext]] = field(default_factory=dict)
    bytes: int = 0
    reserved: int = 0
    reserved_bytes: int = 0

    @property
    def totals(self) -> tuple[int, int]:
        """Number of contexts and their bytes, reservations included."""
        return len(self.contexts) + self.reserved, self.bytes + self.reserved_bytes


class Timer(Protocol):
    """A scheduled call that can be cancelled (``asyncio.TimerHandle``)."""

    def cancel(self) -> None: ...


class ParkedWatcher(Protocol):
    """Observer of parked contexts."""

    def parked(self, context: ParkedContext) -> None:
        """Handle a context that was parked."""

    def removed(self, context: ParkedContext) -> None:
        """Handle a context that was removed."""


def later(seconds: float, call: Callable[[], None]) -> Timer:
    """Schedule a call on the event loop after ``seconds``."""
    return asyncio.get_running_loop().call_later(seconds, call)


class ParkedStore:
    """The parked contexts of all tenants. Used only on the event loop of its ``completion``.

    Args:
        most, most_bytes: most contexts of one tenant, and most bytes; 0: no context is parked.
        clock: clock of arrivals and deadlines.
        later: schedules a call after a number of seconds.
        watcher: observer of parked contexts, if any.

    Attributes:
        resumed: number of requests that continued a parked context. expired: number of waiting
            contexts that were closed at their deadline.
    """

    def __init__(
        self,
        completion: Completer,
        most: int,
        most_bytes: int,
        clock: Clock = SYSTEM_CLOCK,
        later: Callable[[float, Callable[[], None]], Timer] = later,
        watcher: ParkedWatcher | None = None,
    ) -> None:
        self._completion, self._most, self._most_bytes = completion, most, most_bytes
        self._clock, self._later, self._watcher = clock, later, watcher
        self._tenants: dict[str, TenantContexts] = {}
        self._deadlines: list[tuple[float, int, str]] = []  # heap: moment, number, tenant
        self._timer: Timer | None = None
        self._numbers = itertools.count(1)
        self.resumed = self.expired = 0

    @property
    def empty(self) -> bool:
        """Whether there is neither a parked context nor a reservation."""
        return not self._tenants

    def now(self) -> float:
        return self._clock.now()

    # -- parking ----------------------------------------------------------------------------------

    def reserve(self, tenant: str, tokens: int, settings_bytes: int = 0) -> Reservation:
        """Reserve room for a context of ``tokens`` that a request will park by name. Contexts
        without a handle are closed to make room. Raises RequestError ``queue_full``."""
        size = size_of(tokens, settings_bytes)
        owned = self._tenants.get(tenant) or TenantContexts()
        if not self._make_room(owned, size):
            self._refuse(owned, size)
        self._tenants[tenant] = owned
        owned.reserved += 1
        owned.reserved_bytes += size
        return Reservation(self, tenant, size)

    def park(
        self,
        scope: ParkingScope,
        tokens: Ints,
        text: ContextText,
        facts: ParkFacts,
        ended: Callable[[], None] | None = None,
    ) -> ParkedContext | None:
        """Keep a context, and open it in the engine with a claim. A context with a handle
        (``ended``) must have a reservation. For one without, return None if there is no room."""
        owned = self._tenants.get(scope.tenant) or TenantContexts()
        size = size_of(len(tokens), facts.settings_bytes)
        if ended is None and not self._make_room(owned, size):
            return None
        self._tenants[scope.tenant] = owned
        expires = self.now() + facts.claim.deadline
        number = next(self._numbers)
        context = ParkedContext(number, scope, tokens, text, facts, expires, ended=ended)
        owned.contexts[number] = context
        owned.bytes += size
        owned.texts.setdefault(scope, TextIndex()).add(text, context)
        self.hold(context)
        self._expect(expires, number, scope.tenant)
        if self._watcher is not None:
            self._watcher.parked(context)
        return context

    def hold(self, context: ParkedContext) -> None:
        """Open a context in the engine with a claim until its deadline. Without an engine, do
        nothing."""
        scope = context.scope
        left = max(context.expires - self.now(), 0.0)
        claim = replace(context.facts.claim, deadline=left)
        request = CompletionRequest(
            context.tokens, namespace=scope.namespace, adapter=scope.adapter
        )
        client = self._completion.engines.holder(request)
        with suppress(EngineLost):
            context.held = HeldContext(
                client, context.tokens, claim, scope.namespace, scope.adapter
            )

    def _make_room(self, owned: TenantContexts, size: int) -> bool:
        """Close contexts without a handle until a context of ``size`` bytes fits: used ones first,
        then the oldest. If it cannot fit, close none and return False."""
        count, held = owned.totals
        victims: list[ParkedContext] = []
        for one in owned.contexts.values():
            if count < self._most and held + size <= self._most_bytes:
                break
            if not one.named:
                victims.append(one)
                count, held = count - 1, held - one.size
        if count >= self._most or held + size > self._most_bytes:
            return False
        for victim in victims:
            self._remove(victim)
        return True

    def _refuse(self, owned: TenantContexts, size: int) -> None:
        """Raise RequestError: there is no room for a context of ``size`` bytes."""
        count, held = owned.totals
        reason = (
            f"{count} contexts are parked or about to be, and {self._most} may be "
            "(--max-parked-per-key)"
        )
        if count < self._most:
            reason = (
                f"The parked contexts take up to {held} bytes and this one {size}; they may take "
                f"{self._most_bytes} (--max-parked-bytes)"
            )
        raise RequestError(f"{reason}; resume some, or try again later.", "park", "queue_full")

    # -- resumption -------------------------------------------------------------------------------

    def match(self, scope: ParkingScope, text: str) -> tuple[ParkedContext, str] | None:
        """Return the context with the longest text that is a prefix of ``text``, and the rest of
        ``text``; None if there is none. A waiting context without a handle is preferred."""
        owned = self._tenants.get(scope.tenant)
        index = None if owned is None else owned.texts.get(scope)
        if index is None:
            return None
        data = text.encode("utf-8", "surrogatepass")
        length, found = index.longest(data)
        if not found:
            return None
        waiting = [one for one in found if not one.used and not one.named]
        chosen = (waiting or found)[-1]
        return chosen, data[length:].decode("utf-8", "surrogatepass")

    def begin(self, resumption: Resumption, tenant: str) -> None:
        """Record that a request continues a context. A context without a handle is then used."""
        self.resumed += 1
        context = self._find(tenant, resumption.number)
        if context is not None and not context.named:
            context.used = True
            self._tenants[tenant].contexts.move_to_end(context.number, last=False)

    def supersede(self, resumption: Resumption, tenant: str) -> None:
        """Drop a used context, because the request that continued it parks its own context."""
        context = self._find(tenant, resumption.number)
        if context is not None and context.used:
            self._remove(context)

    def _find(self, tenant: str, number: int) -> ParkedContext | None:
        owned = self._tenants.get(tenant)
        return None if owned is None else owned.contexts.get(number)

    # -- ends -------------------------------------------------------------------------------------

    def drop(self, context: ParkedContext) -> None:
        """Forget a context that was resumed, without calling its ``ended``."""
        if self._find(context.scope.tenant, context.number) is context:
            self._remove(context)

    def close(
        self, rid: str | None = None, owner: str | None = None, adapter: str | None = None
    ) -> int:
        """End the contexts of requests named ``rid``, of a tenant, with an adapter (None: any).
        Return how many of the contexts were waiting."""
        chosen = [
            one
            for one in self._all()
            if rid in (None, one.facts.rid)
            and owner in (None, one.scope.tenant)
            and adapter in (None, one.scope.adapter)
        ]
        for context in chosen:
            self._end(context)
        return sum(not one.used for one in chosen)

    def _end(self, context: ParkedContext) -> None:
        self._remove(context)
        if context.ended is not None:
            context.ended()

    def _remove(self, context: ParkedContext) -> None:
        tenant, owned = context.scope.tenant, self._tenants[context.scope.tenant]
        del owned.contexts[context.number]
        owned.bytes -= context.size
        index = owned.texts[context.scope]
        index.remove(context.text, context)
        if not len(index):
            del owned.texts[context.scope]
        if context.held is not None:
            context.held.close()
        self._forget(tenant)
        if self._watcher is not None:
            self._watcher.removed(context)

    def _forget(self, tenant: str) -> None:
        """Drop a tenant's entry once it has no contexts and no reservations."""
        owned = self._tenants.get(tenant)
        if owned is not None and not owned.contexts and not owned.reserved:
            del self._tenants[tenant]
            if not self._tenants:
                self._deadlines.clear()
                self._arm()

    def release(self, tenant: str, size: int) -> None:
        """Release the room of a reservation of ``size`` bytes."""
        owned = self._tenants[tenant]
        owned.reserved -= 1
        owned.reserved_bytes -= size
        self._forget(tenant)

    # -- deadlines --------------------------------------------------------------------------------

    def _expect(self, moment: float, number: int, tenant: str) -> None:
        """Record a context's deadline. Deadlines of removed contexts are dropped occasionally."""
        if len(self._deadlines) > SLACK + 2 * sum(1 for _ in self._all()):
            self._deadlines = [one for one in self._deadlines if self._find(one[2], one[1])]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (moment, number, tenant))
        self._arm()

    def _arm(self) -> None:
        """Schedule ``_expire`` for the earliest deadline."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._deadlines:
            self._timer = self._later(max(self._deadlines[0][0] - self.now(), 0.0), self._expire)

    def _expire(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self.now():
            _, number, tenant = heapq.heappop(self._deadlines)
            context = self._find(tenant, number)
            if context is not None:
                self.expired += not context.used
                self._end(context)
        self._arm()

    # -- statistics -------------------------------------------------------------------------------

    def _all(self) -> Iterator[ParkedContext]:
        for owned in self._tenants.values():
            yield from owned.contexts.values()

    def counts(self) -> dict[str, int]:
        """Number of waiting contexts, bytes of all contexts, and counters since the start."""
        return {
            "parked": sum(not one.used for one in self._all()),
            "parked_bytes": sum(owned.bytes for owned in self._tenants.values()),
            "resumed": self.resumed,
            "expired": self.expired,
        }

    def check(self) -> None:
        """Raise AssertionError if the bookkeeping is inconsistent."""
        for tenant, owned in self._tenants.items():
            assert owned.contexts or owned.reserved, f"{tenant!r} has nothing"
            assert owned.bytes == sum(one.size for one in owned.contexts.values())
            assert min(owned.reserved, owned.reserved_bytes) >= 0
            assert sum(map(len, owned.texts.values())) == len(owned.contexts)
            for number, one in owned.contexts.items():
                assert (one.number, one.scope.tenant) == (number, tenant)
                assert (one.expires, number, tenant) in self._deadlines, "no deadline"
        assert (self._timer is not None) == bool(self._deadlines)


class Reservation:
    """Reserved room for one context, until ``release``."""

    def __init__(self, store: ParkedStore, tenant: str, size: int) -> None:
        self._store, self._tenant, self._size, self._held = store, tenant, size, True

    def release(self) -> None:
        """Release the room; later calls do nothing."""
        if self._held:
            self._held = False
            self._store.release(self._tenant, self._size)
