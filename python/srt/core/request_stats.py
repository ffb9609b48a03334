"""RequestStats: resources that one request used, one object from the engine to every API.

A statistic is declared here and counted where it occurs; no code between copies it by name.
``/generate`` shows each field of ``RequestCounts`` under its name. The other APIs have their own
names for some of them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]


class CacheMiss(msgspec.Struct, omit_defaults=True):
    """Reason why the rest of a prompt was not cached, found when its request was first admitted.

    Attributes:
        matched: number of prompt tokens that were cached; later tokens were computed.
        limit: most prompt tokens that could have been cached; the last token is computed for its
            output.
        cached_next: tokens that the cache has after ``matched`` instead of the prompt's own, on the
            nearest path.
        evicted: number of prompt tokens after ``matched`` that were cached before.
        why: reason of their loss: "evicted", "flushed" or "failed" (a forward pass failed).
        evicted_ago: seconds since the loss.
        other: most prompt tokens that another namespace has cached, if more than ``matched``.
        adapter: the same for namespaces with this salt and another adapter, or none.
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
        loaded_tokens: those of ``cached_tokens`` whose KV was copied from host memory.
        disk_tokens: those of ``loaded_tokens`` whose KV was read from disk for this request.
        forward_passes: number of passes with rows of the request.
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
        retractions: number of times that the request was moved back to the queue.
        queue_seconds: seconds until the request was first admitted.
        first_token_seconds: seconds until its first token was sampled; 0 before that.
        miss: why no longer prefix was cached; None before admission.
    """

    retractions: Count = 0
    queue_seconds: float = 0.0
    first_token_seconds: float = 0.0
    miss: CacheMiss | None = None

    def of_prompt(self) -> RequestStats:
        """Return a copy with only the statistics that are final at the first sampled token."""
        found = RequestStats(first_token_seconds=self.first_token_seconds)
        for field in _OF_PROMPT:
            setattr(found, field, getattr(self, field))
        return found

    def followed_by(self, later: RequestStats, seconds: float) -> RequestStats:
        """Return the statistics of one completion that took two requests.

        Facts about the prompt are those of the first request (``self``), and so is the time of the
        first token if it had one; other numbers are summed. ``seconds``: time between the arrivals
        of the two requests.
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
