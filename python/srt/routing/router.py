"""Router: chooses an engine for each request, without I/O; moments are arguments, in seconds.

    choose         returns a ticket; from now on the engine is believed to cache the prompt
    first_token    corrects the tree by the number of cached tokens, and the engine's measured rate
    ended          must be called once for every ticket, also if the request failed or was aborted

For one router, the tree of prefixes (``meta_tree``) is accurate enough with the router's own
requests and ``first_token``. Reports of engines are for routers that do not see all requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from random import Random

from sglang.srt.routing.application_memory import ApplicationMemory
from sglang.srt.routing.call_placement import is_sensitive
from sglang.srt.routing.choice import Choice
from sglang.srt.routing.engines import Engines
from sglang.srt.routing.hash_ring import HashRing
from sglang.srt.routing.meta_tree import MetaTree, Step
from sglang.srt.routing.policies import POLICIES
from sglang.srt.routing.prefix_reports import PrefixEvent, PrefixReports
from sglang.srt.routing.prompt import PrefixPath, RoutedPrompt, blocks_in
from sglang.srt.routing.routed_engine import RoutedEngine, Ticket

NODES = 1_000_000  # most nodes of the tree
AFFINITIES = 100_000  # most conversations whose engine is remembered


class NoEngine(LookupError):
    """There is no engine to which the request may be sent."""


class Router:
    """Chooses engines for requests.

    Args:
        policy: name in ``policies.POLICIES``.
        seed: seed of the random numbers; equal calls get equal choices.
        most_nodes: most nodes of the tree of prefixes, some 500 bytes each.
        shared: other routers send requests to the same engines. Blocks that a router does not know
            are sent to the engine that all routers would choose (``hash_ring``).
    """

    def __init__(
        self,
        policy: str = "predicted",
        seed: int = 0,
        most_nodes: int = NODES,
        *,
        shared: bool = False,
    ) -> None:
        """Make a router without engines. Raises ValueError for an unknown policy or ``most_nodes``
        below 1."""
        if policy not in POLICIES:
            raise ValueError(f"policy is {policy!r}; it must be one of {', '.join(POLICIES)}")
        self.policy = POLICIES[policy]
        self.tree = MetaTree(most_nodes)
        self.engines = Engines()
        self.applications = ApplicationMemory()
        self._ring = HashRing() if shared else None
        self._random = Random(seed)
        self._reports: dict[str, PrefixReports] = {}
        self._affinities: OrderedDict[str, str] = OrderedDict()

    # -- engines ---------------------------------------------------------------------------------

    def add(self, name: str, capacity_tokens: int, slots: int) -> None:
        """Add an engine.

        Args:
            capacity_tokens: tokens of its KV memory.
            slots: most requests that it runs at once.

        Raises ValueError for a name in use and for a limit below 1.
        """
        if self.engines.get(name) is not None:
            raise ValueError(f"engine {name!r} is there; remove it first, or choose another name")
        engine = RoutedEngine(name, capacity_tokens, slots)
        self.engines.add(engine)
        self._reports[name] = PrefixReports(engine.cache)
        if self._ring is not None:
            self._ring.add(engine)

    def remove(self, name: str) -> None:
        """Remove an engine. Its tickets have no further effect. Raises KeyError for an unknown
        name."""
        engine = self._engine(name)
        self.engines.remove(engine)
        self.tree.forget(engine.cache)
        self.applications.forget(name)
        del self._reports[name]
        if self._ring is not None:
            self._ring.remove(engine)

    # -- requests --------------------------------------------------------------------------------

    def choose(
        self, prompt: RoutedPrompt, now: float, allowed: Collection[str] | None = None
    ) -> Ticket:  # fmt: skip
        """Choose an engine, and count the request as sent to it.

        Args:
            allowed: names of the engines that may be chosen; None: all. A set is used directly;
                other collections are copied.

        Raises NoEngine if no engine is allowed.
        """
        allowed = self._checked(allowed)
        path = prompt.path()
        steps = self.tree.match(path)
        choice = Choice(
            prompt=prompt, steps=steps, present=self.tree.present(path),
            engines=self.engines, allowed=allowed, home=self._home(prompt, allowed),
            agreed=self._agreed(path, steps), random=self._random,
            pace=self.engines.averages.per_token, now=now, applications=self.applications,
        )  # fmt: skip
        engine = self.policy(choice)
        return self._send(choice, path, engine)

    def first_token(self, ticket: Ticket, now: float, cached_tokens: int) -> None:
        """Record the first token of a request, and the number of prompt tokens that were cached.
        Calls after the first one, or after the end, have no effect."""
        engine = ticket.state
        if engine is None or ticket not in engine.waiting:
            return
        self.engines.waiting -= 1
        engine.begin(ticket, now, cached_tokens, self.engines.averages)
        kept = blocks_in(cached_tokens)
        if kept < blocks_in(ticket.cached):
            self.tree.lose(ticket.path, engine.cache, kept, before=ticket.use)

    def ended(self, ticket: Ticket, now: float, generated_tokens: int) -> None:
        """Record the end of a request, for any reason. A second call has no effect.

        Args:
            generated_tokens: number of generated tokens in the engine's cache.
        """
        engine = ticket.state
        if engine is None:
            return
        begun = ticket not in engine.waiting
        engine.end(ticket)
        if begun:
            self.engines.averages.ended(now - ticket.sent, generated_tokens)
            tail = ticket.length - ticket.path.tokens
            self.tree.extend(ticket.path, engine.cache, tail + generated_tokens)
        else:
            self.engines.waiting -= 1
            self.applications.failed(ticket.prefixes, ticket.engine)
            self.tree.retract(ticket.path, engine.cache, blocks_in(ticket.cached), ticket.use)

    def holder(self, prompt: RoutedPrompt, allowed: Collection[str]) -> str:
        """Return the name of the engine that holds most of the prompt; "" if none holds a part."""
        for node, _ in reversed(self.tree.match(prompt.path())):
            for cache in sorted(node.holdings, key=lambda held: -node.holdings[held].blocks):
                name = self.engines.with_cache(cache).name
                if name in allowed:
                    return name
        return ""

    # -- reports ---------------------------------------------------------------------------------

    def report(self, name: str, sequence: int, events: Iterable[PrefixEvent]) -> bool:
        """Apply an engine's report of stored and evicted prefixes.

        Args:
            sequence: number of the report. Numbers are consecutive; the first may have any value. A
                repeated report is ignored.

        Returns False if a report is missing. Reports are then ignored until ``snapshot`` is called.
        Raises KeyError for an unknown engine.
        """
        self._engine(name)
        return self._reports[name].apply(self.tree, sequence, events)

    def snapshot(self, name: str, sequence: int, paths: Iterable[PrefixPath]) -> bool:
        """Replace the believed cache of an engine by ``paths``, its content after its report
        ``sequence``, the most recently used prefix last. Prompts sent to the engine without a first
        token are added. If a later report was applied, change nothing and return False. Raises
        KeyError for an unknown engine."""
        engine = self._engine(name)
        applied = self._reports[name].replace(self.tree, sequence, paths)
        if applied:
            for ticket in engine.waiting:
                ticket.use = self.tree.insert(ticket.path, engine.cache)
        return applied

    # -- inside ----------------------------------------------------------------------------------

    def _engine(self, name: str) -> RoutedEngine:
        engine = self.engines.get(name)
        if engine is None:
            raise KeyError(f"there is no engine {name!r}; add it first")
        return engine

    def _checked(self, allowed: Collection[str] | None) -> Collection[str] | None:
        """Return ``allowed`` as a set or dict, None for all. Raises NoEngine if it has no engine of
        the router."""
        if not len(self.engines):
            raise NoEngine("the router has no engine; add one")
        if allowed is None:
            return None
        if not any(self.engines.get(name) is not None for name in allowed):
            raise NoEngine(
                f"none of the {len(self.engines)} engines is allowed; allowed are"
                f" {', '.join(map(repr, sorted(allowed)[:8])) or 'none'}"
            )
        return allowed if isinstance(allowed, (set, frozenset, dict)) else frozenset(allowed)

    def _home(self, prompt: RoutedPrompt, allowed: Collection[str] | None) -> RoutedEngine | None:
        name = prompt.home or self._affinities.get(prompt.affinity, "")
        engine = self.engines.get(name)
        return engine if engine and (allowed is None or name in allowed) else None

    def _agreed(self, path: PrefixPath, steps: Sequence[Step]) -> RoutedEngine | None:
        """Return the engine of the hash ring for the first block that this router does not know."""
        if self._ring is None:
            return None
        node, length = steps[-1] if steps else (None, 0)
        end = length if node is None else node.start + length
        return self._ring.at(path.hashes[end]) if end < len(path.hashes) else None

    def _send(self, choice: Choice, path: PrefixPath, engine: RoutedEngine) -> Ticket:
        prompt, length = choice.prompt, len(choice.prompt.tokens)
        ticket = Ticket(engine, path, length, choice.matched(engine))
        ticket.prefixes, ticket.sensitive = prompt.prefixes, is_sensitive(prompt.hint)
        generated = int(self.engines.averages.generated) + 1
        ticket.weight = ticket.work + min(prompt.new_tokens or generated, generated)
        engine.send(ticket, choice.now, self.engines.averages)
        self.engines.waiting += 1
        if prompt.adapter:
            engine.use_adapter(prompt.adapter)
        if prompt.affinity:
            self._affinities[prompt.affinity] = engine.name
            self._affinities.move_to_end(prompt.affinity)
            if len(self._affinities) > AFFINITIES:
                self._affinities.popitem(last=False)
        ticket.use = self.tree.insert(path, engine.cache)
        return ticket
