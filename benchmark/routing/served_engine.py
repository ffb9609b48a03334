"""ServedEngine: an engine in virtual time with the real radix tree, page pool and eviction.

Time is a fluid of passes. A pass takes ``max(floor, token n)`` seconds for n rows: the requests
that generate, one row each, and a chunk of one prompt where one is to be computed. Prompts are
computed one after the other, first come, first served. A request is admitted when a slot is free
and memory holds its prompt and its whole answer, after eviction. Nothing else costs time: no
attention to long contexts, no sampling, no network.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sglang.srt.core.clock import ManualClock
from sglang.srt.core.ints import Ints
from sglang.srt.core.namespace import BASE
from sglang.srt.memory.pages import PagePool
from sglang.srt.memory.radix import RadixTree
from sglang.srt.memory.radix_node import RadixNode
from sglang.srt.routing.routed_engine import Ticket
from sglang.srt.routing.router import Router

PAGE = 16
NEVER = float("inf")


@dataclass(frozen=True)
class Machine:
    """An engine's size and speed.

    The numbers are an assumption: a model of some 8 billion parameters on one accelerator.

    Attributes:
        capacity: tokens of KV memory.
        slots: most requests at a time.
        floor, token: seconds of a pass: at least, and a row.
        chunk: prompt tokens a pass.
        request: tokens that a request costs beyond its prompt.
    """

    capacity: int = 131_072
    slots: int = 64
    floor: float = 0.012
    token: float = 0.00005
    chunk: int = 512
    request: int = 32

    def times(self, count: int) -> Machine:
        """Return a machine with the memory and the speed of ``count``."""
        return Machine(
            self.capacity * count, self.slots * count, self.floor / count, self.token / count,
            self.chunk * count, self.request,
        )  # fmt: skip


@dataclass(eq=False)
class Served:
    """A request.

    Attributes:
        tokens: prompt and answer.
        prompt: tokens of it that are the prompt.
        talk: name of its conversation, "" for none.
        due: moment of the request, seconds.
        first: moment of the first token, 0 before; ended: of the last one.
        cached: tokens of the prompt that were cached.
        computed: tokens of the prompt that were computed, again after each lost engine.
        router, front: the one that has sent it, None where its answer counts no more; its index.
        moved: whether it went to another engine than the answer before; None for a first request.
        follow: makes the conversation's next request, given the moment when this one ended.
    """

    tokens: Ints
    prompt: int
    due: float
    talk: str = ""
    first: float = 0.0
    ended: float = 0.0
    cached: int = 0
    computed: int = 0
    ticket: Ticket | None = None
    router: Router | None = None
    front: int = 0
    moved: bool | None = None
    follow: Callable[[float], Served | None] | None = None


@dataclass
class _Place:
    """A request in an engine: its locked node and own pages. ``saved``: tokens in the tree."""

    request: Served
    node: RadixNode
    pages: Ints
    saved: int


class ServedEngine:
    """An engine. ``submit`` and ``advance`` are called with moments that never go back.

    Attributes:
        next_at: moment of the next event, infinity where nothing is to be done.
        slow: factor of the time of all passes.
        evicted: called with a prefix that was cut, and the tokens of it that are left; or None.
    """

    def __init__(self, name: str, machine: Machine) -> None:
        self.name, self.machine = name, machine
        self.clock = ManualClock()
        self.pool = PagePool(machine.capacity // PAGE)
        self.tree = RadixTree(self.pool, PAGE, self.clock)
        self.queue: deque[Served] = deque()
        self.running: list[tuple[float, int, _Place]] = []  # heap, by the decode clock at the end
        self.next_at = NEVER
        self.slow = 1.0
        self.evicted: Callable[[Ints, int], None] | None = None
        self._job: _Place | None = None
        self._left = 0.0  # tokens of the job's prompt to compute
        self._steps = 0.0  # decode clock: tokens that each running request has generated
        self._numbers = itertools.count()

    @property
    def requests(self) -> list[Served]:
        """All requests that it has."""
        placed = [place.request for _, _, place in sorted(self.running, key=lambda e: e[1])]
        return placed + ([self._job.request] if self._job else []) + list(self.queue)

    def generated(self, request: Served) -> int:
        """Return the tokens that a request has."""
        for until, _, place in self.running:
            if place.request is request:
                answer = len(request.tokens) - request.prompt
                return int(answer - (until - self._steps))
        return 0

    def submit(self, request: Served, now: float) -> None:
        """Take a request."""
        self._move(now)
        self.queue.append(request)
        self._admit()
        self._plan()

    def slow_down(self, factor: float) -> None:
        """Let passes take ``factor`` times as long as the machine's, from now on."""
        self.slow = factor
        self._plan()

    def advance(self, now: float) -> tuple[list[Served], list[Served]]:
        """Do what happens at ``now``. Returns the requests with a first token and those ended."""
        self._move(now)
        begun, ended = list[Served](), list[Served]()
        if self._job is not None and self._left < 1e-6:
            begun.append(self._begin(self._job))
        while self.running and self.running[0][0] - self._steps < 1e-6:
            ended.append(self._end(heapq.heappop(self.running)[2]))
        self._admit()
        self._plan()
        return begun, ended

    # -- time ------------------------------------------------------------------------------------

    def _pass(self) -> float:
        """Return the seconds of a pass."""
        chunk = self.machine.chunk if self._job is not None else 0
        rows = len(self.running) + chunk
        return self.slow * max(self.machine.floor, self.machine.token * rows)

    def _move(self, now: float) -> None:
        passes = (now - self.clock.now()) / self._pass()
        self.clock.advance(now - self.clock.now())
        if self._job is not None:
            self._left -= passes * self.machine.chunk
        self._steps += passes

    def _plan(self) -> None:
        passes = NEVER
        if self._job is not None:
            passes = max(self._left, 0.0) / self.machine.chunk
        if self.running:
            passes = min(passes, max(self.running[0][0] - self._steps, 0.0))
        self.next_at = self.clock.now() + passes * self._pass() if passes < NEVER else NEVER

    # -- requests --------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Begin the next prompt where none is computed, a slot is free and memory suffices."""
        if self._job is not None or not self.queue or len(self.running) >= self.machine.slots:
            return
        request = self.queue[0]
        limit = (request.prompt - 1) // PAGE * PAGE
        node, gained = self.tree.lock(request.tokens, limit, BASE)
        cached = len(gained) * PAGE
        need = -(-(len(request.tokens) - cached) // PAGE)
        if self.pool.free < need and not self._free(need - self.pool.free):
            self.tree.unlock(node)
            if not self.running:
                raise RuntimeError(f"{len(request.tokens)} tokens do not fit an engine's memory")
            return
        self.queue.popleft()
        if not request.first:
            request.cached = cached
        request.computed += request.prompt - cached
        self._job = _Place(request, node, self.pool.take(need), cached)
        self._left = float(request.prompt - cached + self.machine.request)

    def _free(self, pages: int) -> bool:
        if self.tree.evictable < pages:
            return False
        if self.evicted is None:
            self.tree.evict(pages)
            return True
        cut: list[tuple[RadixNode, Ints]] = []
        self.tree.evict(pages, save=lambda node: cut.append((node, self.tree.path(node)[0])))
        for node, tokens in cut:
            self.evicted(tokens, node.depth + len(node.tokens))
        return True

    def _begin(self, place: _Place) -> Served:
        request = place.request
        self._job = None
        self._publish(place, request.prompt)
        request.first = request.first or self.clock.now()
        until = self._steps + len(request.tokens) - request.prompt
        heapq.heappush(self.running, (until, next(self._numbers), place))
        return request

    def _end(self, place: _Place) -> Served:
        self._publish(place, len(place.request.tokens))
        self.pool.give(place.pages)
        self.tree.unlock(place.node)
        place.request.ended = self.clock.now()
        return place.request

    def _publish(self, place: _Place, length: int) -> None:
        """Give the tree the whole pages of the first ``length`` tokens."""
        count = (length - place.saved) // PAGE
        if count:
            pages, place.pages = place.pages[:count], place.pages[count:]
            place.node, _, spare = self.tree.publish(
                place.node, place.request.tokens, place.saved, pages
            )
            self.pool.give(spare)
            place.saved += count * PAGE

    def check(self) -> None:
        """Raise AssertionError where a page is lost or counted twice."""
        owned = self.tree.check()
        for place in [entry[2] for entry in self.running] + [self._job] * bool(self._job):
            owned += place.pages  # type: ignore[union-attr]
        self.pool.check(owned)
