"""RoutedEngine: a router's knowledge about one engine. Ticket: a request sent to an engine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from sglang.srt.core.call_hints import PrefixHash
from sglang.srt.routing.meta_tree import Holder
from sglang.srt.routing.prompt import PrefixPath
from sglang.srt.routing.work_rate import Averages, WorkRate

ADAPTERS = 64  # most names of adapters that are remembered for an engine


class Ticket:
    """A request that was sent to an engine.

    Attributes:
        engine: the engine's name.
        cached: number of the prompt's tokens that the engine was believed to have cached.
        length: number of the prompt's tokens.
        ahead: number of tokens of other requests to compute first; -1: unknown, as the engine was
            full.
        weight: number of tokens that the request adds to the engine's memory.
        sent: moment when the engine was chosen; after the first token, the moment of that token.
        expected: predicted moment of the first token.
        use: number of the use of the tree (``MetaTree.insert``).
        state: the engine that counts the request; None after its end, or if removed before.
        prefixes: hashes of the prompt's beginnings that end at a variable.
        sensitive: whether the request's own latency matters.
    """

    __slots__ = (
        "ahead", "cached", "engine", "expected", "length", "path", "prefixes", "sensitive", "sent",
        "state", "use", "weight",
    )  # fmt: skip

    def __init__(self, state: RoutedEngine, path: PrefixPath, length: int, cached: int) -> None:
        self.engine = state.name
        self.state: RoutedEngine | None = state
        self.path = path
        self.length = length
        self.cached = cached
        self.ahead = self.weight = self.use = 0
        self.sent = self.expected = 0.0
        self.prefixes: Sequence[PrefixHash] = ()
        self.sensitive = False

    @property
    def work(self) -> int:
        """Number of the prompt's tokens that were believed not to be cached."""
        return self.length - self.cached


class RoutedEngine:
    """Requests and believed cache of an engine.

    Attributes:
        slots: most requests that the engine runs at once.
        cache: the believed cache.
        rate: measured seconds for a token.
        waiting: requests without a first token, the oldest first.
        running: number of requests with a first token.
        pending: number of tokens of the waiting prompts that must be computed.
        live: number of tokens of memory that the requests need beyond the cached ones.
        free_at: predicted moment when the pending tokens will be computed.
        adapters: adapters that the engine has used, the last used one last.
        sensitive: number of requests whose own latency matters.
    """

    __slots__ = (
        "adapters", "cache", "free_at", "live", "name", "pending", "rate", "running", "sensitive",
        "slots", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, capacity_tokens: int, slots: int) -> None:
        """Describe an engine by its memory and its slots. Raises ValueError if either is below
        1."""
        for what, value in (("capacity_tokens", capacity_tokens), ("slots", slots)):
            if value < 1:
                raise ValueError(f"{what} of engine {name!r} is {value}; it must be at least 1")
        self.name = name
        self.slots = slots
        self.cache = Holder(capacity_tokens)
        self.rate = WorkRate()
        self.waiting: dict[Ticket, None] = {}
        self.running = self.pending = self.live = self.sensitive = 0
        self.free_at = 0.0
        self.adapters: OrderedDict[str, None] = OrderedDict()

    @property
    def load(self) -> int:
        """Number of the engine's requests."""
        return len(self.waiting) + self.running

    def wait(self, now: float, averages: Averages) -> float:
        """Predict the seconds until the engine begins to compute one more prompt.

        If the oldest request is late, assume the same delay once more. Requests beyond the engine's
        slots or memory wait until others end.
        """
        seconds = max(self.free_at - now, 0.0)
        if self.waiting:
            late = now - next(iter(self.waiting)).expected
            if late > 0:
                seconds = late + self.pending * self.rate.per_token(averages.per_token)
        return seconds + self.excess() * averages.service

    def excess(self) -> float:
        """Return the use of slots or memory with one more request, relative to the limit, minus 1;
        0 if both suffice."""
        return max((self.load + 1) / self.slots, self.live / self.cache.capacity, 1.0) - 1.0

    def send(self, ticket: Ticket, now: float, averages: Averages) -> None:
        """Count a request that is sent to the engine, and predict its first token."""
        rate = self.rate.per_token(averages.per_token)
        wait = self.wait(now, averages)
        ticket.sent, ticket.expected = now, now + wait + ticket.work * rate
        ticket.ahead = self.pending if not self.excess() else -1
        self.waiting[ticket] = None
        self.pending += ticket.work
        self.live += ticket.weight
        self.sensitive += ticket.sensitive
        self.free_at = max(self.free_at, now) + ticket.work * rate

    def begin(self, ticket: Ticket, now: float, cached: int, averages: Averages) -> None:
        """Count the first token of a request that had ``cached`` tokens cached."""
        self._leave_queue(ticket)
        self.running += 1
        if ticket.ahead >= 0:  # the request did not wait for others to end
            tokens = ticket.ahead + ticket.length - cached
            self.rate.observe(now - ticket.sent, tokens)
            averages.rate.observe(now - ticket.sent, tokens)
        ticket.sent = now
        self.free_at = now + self.pending * self.rate.per_token(averages.per_token)

    def end(self, ticket: Ticket) -> None:
        """Count the end of a request, with or without a first token."""
        if ticket in self.waiting:
            self._leave_queue(ticket)
        else:
            self.running -= 1
        self.live -= ticket.weight
        self.sensitive -= ticket.sensitive
        ticket.state = None

    def use_adapter(self, name: str) -> None:
        """Record an adapter as the last used one."""
        self.adapters[name] = None
        self.adapters.move_to_end(name)
        if len(self.adapters) > ADAPTERS:
            self.adapters.popitem(last=False)

    def _leave_queue(self, ticket: Ticket) -> None:
        del self.waiting[ticket]
        self.pending -= ticket.work
