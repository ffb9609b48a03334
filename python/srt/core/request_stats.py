"""RequestStats: what one request used, from the engine to every API as one object.

A statistic is declared here and counted where it happens; nothing on the way copies it by name.
``/generate`` shows each field of ``RequestCounts`` under its name. The other APIs have their own
names for some of them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]


class CacheMiss(msgspec.Struct, omit_defaults=True):
    """Reason that the rest of a prompt was not in the cache, found when it was first admitted.

    Attributes:
        matched: prompt tokens that the cache held; the tokens after them were computed.
        limit: prompt tokens that the cache could have given; the last token is computed for its
            output.
        cached_next: tokens that the cache holds after ``matched`` instead of the prompt's own,
            along its most recently used path.
        evicted: prompt tokens after ``matched`` that were cached before.
        why: "evicted", "flushed" or "failed" (a pass failed, and its KV with it).
        evicted_ago: seconds since then.
        other: prompt tokens cached in the namespace that holds most of them, 0 unless that is more
            than ``matched``.
        adapter: the same among namespaces with this salt and another adapter, or none.
    """

    matched: int = 0
    limit: int = 0
    cached_next: list[int] = []
    evicted: int = 0
    why: str = ""
    evicted_ago: float = 0.0
    other: int = 0
    adapter: int = 0

    def cover(self, tokens: int) -> None:
        """Note that host memory had the next ``tokens`` tokens."""
        self.matched += tokens
        self.evicted = max(self.evicted - tokens, 0)
        if tokens:
            self.cached_next = []
        if not self.evicted:
            self.why, self.evicted_ago = "", 0.0


class RequestCounts(msgspec.Struct, omit_defaults=True):
    """Counts of one request.

    Attributes:
        prompt_tokens: tokens of the context when the request arrived.
        completion_tokens: tokens generated.
        cached_tokens: prompt tokens whose KV was in the cache. This is their only count: the
            planner sets it on first admission and raises it while the prompt is computed.
        loaded_tokens: of these, the tokens whose KV was copied from host memory.
        disk_tokens: of these, the tokens whose KV was read from disk for this request.
        forward_passes: passes that the request took part in.
        forced_tokens: generated tokens that the grammar allowed no alternative to.
        drafted_tokens: tokens proposed ahead of sampling.
        accepted_tokens: drafted tokens that were then sampled.
    """

    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    cached_tokens: Count = 0
    loaded_tokens: Count = 0
    disk_tokens: Count = 0
    forward_passes: Count = 0
    forced_tokens: Count = 0
    drafted_tokens: Count = 0
    accepted_tokens: Count = 0


class RequestStats(RequestCounts, omit_defaults=True):
    """Counts and seconds of one request. Seconds count from its arrival.

    Attributes:
        retractions: times that the request gave its memory back and waited again.
        queue_seconds: until it was first admitted.
        first_token_seconds: until its first token was sampled; 0 before that.
        miss: why the cache held no more of the prompt; None before admission.
    """

    retractions: Count = 0
    queue_seconds: float = 0.0
    first_token_seconds: float = 0.0
    miss: CacheMiss | None = None

    def of_prompt(self) -> RequestStats:
        """Return what does not change after the first sampled token; counts that grow are 0."""
        found = RequestStats(first_token_seconds=self.first_token_seconds)
        for field in _OF_PROMPT:
            setattr(found, field, getattr(self, field))
        return found

    def followed_by(self, later: RequestStats, seconds: float) -> RequestStats:
        """Return the statistics of one completion that took two requests.

        The first computed the prompt, so its facts count, and its first token where it had one; all
        other numbers add up. ``seconds`` lie between the arrivals of the two.
        """
        total = msgspec.structs.replace(later)
        for field in _ADDED:
            setattr(total, field, getattr(self, field) + getattr(later, field))
        for field in _OF_PROMPT:
            setattr(total, field, getattr(self, field))
        if self.first_token_seconds:
            total.first_token_seconds = self.first_token_seconds
        elif later.first_token_seconds:
            total.first_token_seconds += seconds
        return total


_OF_PROMPT = (
    "prompt_tokens", "cached_tokens", "loaded_tokens", "disk_tokens", "queue_seconds", "miss",
)  # fmt: skip
_ADDED = tuple(
    field.name
    for field in msgspec.structs.fields(RequestStats)
    if field.name not in (*_OF_PROMPT, "first_token_seconds")
)
