"""RoutedEngine: an engine as its router knows it, and Ticket: a request sent to one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from sglang.srt.core.call_hints import PrefixHash
from sglang.srt.routing.meta_tree import Holder
from sglang.srt.routing.prompt import PrefixPath
from sglang.srt.routing.work_rate import Averages, WorkRate

ADAPTERS = 64  # names of adapters that are remembered of an engine


class Ticket:
    """A request that was sent to an engine.

    Attributes:
        engine: the engine's name.
        cached: tokens of the prompt that the engine was believed to have cached.
        length: tokens of the prompt.
        ahead: tokens to be computed before, of other requests.
        weight: tokens that the request adds to the engine's memory.
        sent, expected: moments, when the engine was chosen and when its first token is predicted;
            from the first token on, ``sent`` is the moment of that.
        use: number of the tree's use.
        state: the engine that counts the request, None where none does.
        prefixes: beginnings of the prompt that end at a variable.
        sensitive: whether its own latency counts.
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
        """Tokens of the prompt that were believed not to be cached."""
        return self.length - self.cached


class RoutedEngine:
    """Requests and cache of an engine.

    Attributes:
        slots: requests that it runs at a time.
        cache: what it is believed to have cached.
        waiting: requests without a first token, the oldest first.
        running: number of requests with one.
        pending: tokens of the waiting prompts that are to be computed.
        live: tokens of memory that the requests need beyond what was cached.
        free_at: predicted moment when the pending tokens will be computed.
        adapters: those that it has had, the last used last.
        sensitive: number of requests whose own latency counts.
    """

    __slots__ = (
        "adapters", "cache", "free_at", "live", "name", "pending", "rate", "running", "sensitive",
        "slots", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, capacity_tokens: int, slots: int) -> None:
        """Describe an engine by its memory and its slots. Raises ValueError where either is below
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
        """Number of requests that it has."""
        return len(self.waiting) + self.running

    def wait(self, now: float, averages: Averages) -> float:
        """Predict the seconds until it begins with one more prompt.

        What is late will take as long again; requests beyond its slots or its memory wait for
        others to end.
        """
        seconds = max(self.free_at - now, 0.0)
        if self.waiting:
            late = now - next(iter(self.waiting)).expected
            if late > 0:
                seconds = late + self.pending * self.rate.per_token(averages.per_token)
        return seconds + self.excess() * averages.service

    def excess(self) -> float:
        """Return how many times over its slots or its memory would be used, less 1, with one more
        request; 0 where they suffice."""
        return max((self.load + 1) / self.slots, self.live / self.cache.capacity, 1.0) - 1.0

    def send(self, ticket: Ticket, now: float, averages: Averages) -> None:
        """Count a request."""
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
        if ticket.ahead >= 0:  # no waiting for others to end
            tokens = ticket.ahead + ticket.length - cached
            self.rate.observe(now - ticket.sent, tokens)
            averages.rate.observe(now - ticket.sent, tokens)
        ticket.sent = now
        self.free_at = now + self.pending * self.rate.per_token(averages.per_token)

    def end(self, ticket: Ticket) -> None:
        """Count the end of a request, also of one that had no token."""
        if ticket in self.waiting:
            self._leave_queue(ticket)
        else:
            self.running -= 1
        self.live -= ticket.weight
        self.sensitive -= ticket.sensitive
        ticket.state = None

    def use_adapter(self, name: str) -> None:
        """Remember an adapter as the last used one."""
        self.adapters[name] = None
        self.adapters.move_to_end(name)
        if len(self.adapters) > ADAPTERS:
            self.adapters.popitem(last=False)

    def _leave_queue(self, ticket: Ticket) -> None:
        del self.waiting[ticket]
        self.pending -= ticket.work
