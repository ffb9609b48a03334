"""Hits: how much of the prompts came from the cache, and how much could have (Fig. 13)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from benchmark.harness.hooks.recorder import Recorder
from benchmark.harness.prefixes import Asked, held, least


@dataclass(frozen=True)
class Hits:
    """Counts of a run. Rates are those of the SGLang paper, section 3: cached over all prompt
    tokens, where tokens that a hint computes count as computed and its prompt not as requested: so
    they can be compared with and without hints.

    Attributes:
        requests: that wanted an output.
        prompt: tokens of their prompts.
        computed: prompt tokens that went through a pass, hints' too, and those of retracted
            requests again.
        least: prompt tokens that had to (``prefixes.least``), as the requests were begun: the
            optimum of Theorem 3.1, where tokens that an earlier request generated come for
            nothing, and of each prompt at least the last token is computed, for its output.
        held: tokens of KV that a cache without bounds has in the end.
        longest: tokens of the longest request, with all that it was allowed to generate.
        batch: requests of a pass, on average.
    """

    requests: int
    prompt: int
    computed: int
    least: int
    held: int
    longest: int
    batch: float

    @property
    def achieved(self) -> float:
        return 1 - self.computed / self.prompt

    @property
    def optimal(self) -> float:
        return 1 - self.least / self.prompt

    @property
    def share(self) -> float:
        """Achieved over optimal; 1 where nothing could be had."""
        return self.achieved / self.optimal if self.least < self.prompt else 1.0

    def plain(self) -> dict[str, Any]:
        """Plain data for a line of JSON."""
        rates = {"achieved": self.achieved, "optimal": self.optimal, "share": self.share}
        return {**asdict(self), **rates}


def hits(recorded: Recorder) -> Hits:
    """Count all requests of a recording that began with an empty cache, all of which have ended.

    Raises ValueError where none of them wanted an output.
    """
    seen = recorded.requests
    wanted = [one for one in seen if not one.hint]
    if not wanted:
        raise ValueError("no request was recorded that wants an output; run some first")
    # The KV of the last generated token is never computed.
    asked = [
        Asked(one.key[: max(len(one.key) - 1, one.prompt)], one.prompt, one.limit, one.namespace)
        for one in seen
    ]
    batches = recorded.batches
    return Hits(
        requests=len(wanted),
        prompt=sum(one.prompt for one in wanted),
        computed=sum(one.computed for one in seen),
        least=least(asked),
        held=held(asked),
        longest=max(one.prompt + one.most for one in seen),
        batch=sum(batches) / max(len(batches), 1),
    )
