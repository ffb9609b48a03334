"""Choice: the input of a policy: one prompt, and the engines that it may be sent to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from sglang.srt.routing.application_memory import ApplicationMemory
from sglang.srt.routing.engines import Engines
from sglang.srt.routing.meta_tree import Holder, Step, held_blocks
from sglang.srt.routing.prompt import RoutedPrompt, tokens_at
from sglang.srt.routing.routed_engine import RoutedEngine

ALL = 12  # with at most this many engines, all of them are candidates
# Most candidates that hold a part of the prompt: its longest match, each shorter match, in total.
AT_END, ON_WAY, HOLDERS = 4, 3, 12
SAMPLED = 4  # random candidates
LISTED = 64  # most holders to list; if more hold a node, engines are sampled and looked up
TRIES = 4  # samples for each wanted engine


@dataclass(frozen=True, slots=True)
class Choice:
    """The facts by which a policy chooses an engine.

    Attributes:
        steps: path of tree nodes that the prompt matches.
        present: engines that hold KV of the prompt's namespace and adapter.
        allowed: names of the engines that may be chosen; None: all.
        home: the engine with the prompt's parked context, or its conversation; None: unknown.
        agreed: the engine to which all routers would send the unknown rest of the prompt; None:
            there is one router, or the whole prompt is known.
        pace: mean seconds for a token, over all engines.
        now: current moment in seconds.
        applications: memory of the policy ``application``.
    """

    prompt: RoutedPrompt
    steps: Sequence[Step]
    present: Mapping[Holder, int]
    engines: Engines
    allowed: Collection[str] | None
    home: RoutedEngine | None
    agreed: RoutedEngine | None
    random: Random
    pace: float
    now: float
    applications: ApplicationMemory

    # -- engines ---------------------------------------------------------------------------------

    def permits(self, engine: RoutedEngine) -> bool:
        return self.allowed is None or engine.name in self.allowed

    def permitted(self) -> list[RoutedEngine]:
        """Return all engines that may be chosen, at least one. Linear in the number of engines."""
        if self.allowed is None:
            return self.engines.listed
        return [engine for engine in self.engines if engine.name in self.allowed]

    def sampled(self, count: int) -> list[RoutedEngine]:
        """Sample 1 to ``count`` engines that may be chosen, with repetition."""
        listed, size, found = self.engines.listed, len(self.engines), list[RoutedEngine]()
        for _ in range(count if self.allowed is None else TRIES * count):
            engine = listed[int(self.random.random() * size)]
            if self.permits(engine):
                found.append(engine)
                if len(found) == count:
                    return found
        if not found:
            permitted = self.permitted()
            found.append(permitted[int(self.random.random() * len(permitted))])
        return found

    def candidates(self) -> Iterator[RoutedEngine]:
        """Yield the engines to score. Up to ``ALL`` engines are all scored. Of more engines: the
        home, some that hold a part of the prompt, some of its namespace, and some at random."""
        if len(self.engines) <= ALL:
            yield from self.permitted()
            return
        found: dict[RoutedEngine, None] = {}
        for engine in (self.home, self.agreed):
            if engine is not None and self.permits(engine):
                found[engine] = None
        level, count = len(self.steps) - 1, AT_END
        while level >= 0 and len(found) < HOLDERS:
            self._add_some(found, self.steps[level][0].holdings, count)
            level, count = (level - 1) // 2 if level else -1, ON_WAY
        if self.prompt.namespace:
            self._add_some(found, self.present, AT_END)
        found.update(dict.fromkeys(self.sampled(SAMPLED)))
        yield from found

    def _add_some(
        self, found: dict[RoutedEngine, None], holders: Mapping[Holder, object], count: int
    ) -> None:
        """Add up to ``count`` of the holders that may be chosen."""
        size = len(holders)
        if size > LISTED and size * TRIES >= len(self.engines):
            for engine in self.sampled(TRIES * TRIES):
                if engine.cache in holders and count:
                    found[engine] = None
                    count -= 1
            return
        listed = list(islice(holders, LISTED * TRIES))
        if size > count:
            start = int(self.random.random() * len(listed))
            listed = listed[start:] + listed[:start]
        for cache in listed:
            if not count:
                return
            engine = self.engines.with_cache(cache)
            if self.permits(engine):
                found[engine] = None
                count -= 1

    # -- figures ---------------------------------------------------------------------------------

    def matched(self, engine: RoutedEngine) -> int:
        """Return the number of the prompt's tokens that an engine has cached, according to the
        tree."""
        if not self.steps:
            return 0
        blocks, more = held_blocks(self.steps, engine.cache)
        return min(tokens_at(blocks) + more, len(self.prompt.tokens))

    def longest(self) -> tuple[int, Sequence[Holder]]:
        """Return the number of tokens of the longest match, and the engines that hold it."""
        if not self.steps:
            return 0, ()
        node, length = self.steps[-1]
        holders = [cache for cache, held in node.holdings.items() if held.blocks >= length]
        if not holders:
            length = max(held.blocks for held in node.holdings.values())
            holders = [cache for cache, held in node.holdings.items() if held.blocks == length]
        return tokens_at(node.start + length), holders

    def wait(self, engine: RoutedEngine) -> float:
        """Return the predicted seconds until an engine begins to compute the prompt."""
        return engine.wait(self.now, self.engines.averages)
