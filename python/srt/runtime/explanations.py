"""Explanations: for recent requests, how much of each prompt came from the cache, and the reasons
why the rest was computed."""

from __future__ import annotations

import datetime
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec
from sglang.srt.core.ints import Ints, common_prefix, ints
from sglang.srt.core.media_marks import within
from sglang.srt.core.request_stats import CacheMiss
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output
from sglang.srt.runtime.caller import SHARED, Caller
from sglang.srt.tokenizer import Tokenizer

IMAGE = -1  # in place of a token's id (``core.segments.unmarked``)
MAX_NAMES = 4096
MAX_PROMPTS = 16  # prompts of one request
BEFORE, BEHIND = 24, 16  # tokens kept around the point where a prompt left the cache


class Reason(msgspec.Struct):
    """Reason why ``tokens`` tokens of a prompt were cached or computed.

    ``kind``: "cached", or the reason for computing them: "evicted", "flushed", "failed" (a forward
    pass failed, and the cache was emptied), "never_seen", "adapter" (cached under another adapter,
    or none), "salt" (cached under another salt), "page" (less than a page matched), "wanted" (the
    request needs their outputs), "disabled" (there is no cache).
    """

    kind: str
    tokens: int
    text: str


class Divergence(msgspec.Struct):
    """The point where a prompt differs from the nearest cached path: after ``at`` tokens.
    ``before``: the common text before the point; the other texts follow it."""

    at: int
    before: str
    prompt_text: str
    cached_text: str


class CacheExplanation(msgspec.Struct):
    """Explanation of one prompt."""

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    reasons: list[Reason]
    diverged: Divergence | None
    text: str


class Kept(msgspec.Struct):
    """Facts kept about a prompt.

    ``length``: its tokens. ``around``: the tokens from index ``first`` on, around the point where
    the prompt differs from the cache. ``at``: moment of the answer.
    """

    length: int
    around: Ints
    first: int
    miss: CacheMiss
    at: datetime.datetime


class ExplainedPrompts:
    """The prompts of one request, by their index in the request."""

    def __init__(self) -> None:
        self.prompts: dict[int, Kept] = {}

    def note(self, place: int, request: CompletionRequest, output: Output) -> None:
        """Keep the facts of prompt number ``place``, one of whose completions has ended."""
        miss = output.stats.miss
        if miss is None or place in self.prompts or place >= MAX_PROMPTS:
            return
        first = max(0, miss.matched - BEFORE)
        last = miss.matched + len(miss.cached_next) + BEHIND
        around = request.prompt[first:last]
        for medium in within(request.media, first, last):
            for i in range(max(medium.start, first), min(medium.end, last)):
                around[i - first] = IMAGE
        now = datetime.datetime.now(datetime.timezone.utc)
        self.prompts[place] = Kept(len(request.prompt), around, first, miss, now)


class Explanations:
    """Entries by all names of their request: X-Request-Id, ``rid``, the id of the answer. If a
    tenant reuses a name, the name means the newer request. Names of tenants are independent."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, str], ExplainedPrompts] = (
            OrderedDict()
        )  # by name and tenant

    def begin(self, requests: Sequence[CompletionRequest], caller: Caller) -> ExplainedPrompts:
        """Add and return an empty entry for the caller's request."""
        entry = ExplainedPrompts()
        for name in (caller.request, *(request.rid for request in requests[:MAX_PROMPTS])):
            if name:
                self._entries[name, caller.tenant] = entry
                self._entries.move_to_end((name, caller.tenant))
        while len(self._entries) > MAX_NAMES:
            self._entries.popitem(last=False)
        return entry

    def find(self, name: str, caller: Caller) -> ExplainedPrompts | None:
        """Return the caller's entry of this name, or None. An admin also finds the newest entry of
        any other tenant."""
        own = self._entries.get((name, caller.tenant))
        if own is not None or not caller.admin:
            return own
        others = reversed(self._entries.items())
        return next((entry for (given, _), entry in others if given == name), None)


def explain(kept: Kept, tokenizer: Tokenizer, caller: Caller, shared: bool) -> CacheExplanation:
    """Return the explanation in words. Only an admin learns what other tenants have cached.
    ``shared``: the radix cache is enabled."""
    miss = kept.miss
    reasons = list(_reasons(kept, caller, shared))
    may_know = miss.cached_next and _knows(caller)
    diverged = _diverged(kept, tokenizer) if may_know else None
    share = miss.matched / kept.length if kept.length else 0.0
    lines = [
        f"{miss.matched} of {kept.length} prompt tokens came from the cache ({share:.1%}); "
        f"{kept.length - miss.matched} were computed."
    ]
    if diverged is not None:
        lines += [
            f"After {diverged.at} tokens the prompt left the nearest cached path:",
            f"  both     {diverged.before!r}",
            f"  prompt   {diverged.prompt_text!r}",
            f"  cached   {diverged.cached_text!r}",
        ]
    lines += [f"{reason.tokens:>6}  {reason.text}" for reason in reasons]
    computed = kept.length - miss.matched
    return CacheExplanation(
        kept.length, miss.matched, computed, reasons, diverged, "\n".join(lines)
    )


def read(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of tokens, with "[image]" for each run of tokens of images or videos."""
    runs = groupby(ids, key=lambda token: token < 0)
    return "".join("[image]" if seen else tokenizer.decode(list(run)) for seen, run in runs)


def _knows(caller: Caller) -> bool:
    """Whether the caller may read cached text: not if other tenants share the cache."""
    return caller.admin or caller.namespace != SHARED


def _reasons(kept: Kept, caller: Caller, shared: bool) -> Iterator[Reason]:
    miss = kept.miss
    if miss.matched:
        yield Reason("cached", miss.matched, "came from the cache")
    missing = miss.limit - miss.matched
    if not shared and missing:
        yield Reason("disabled", missing, "the cache is off (--disable-radix-cache)")
        missing = 0
    lost = min(miss.evicted, missing)
    if lost:
        then = kept.at - datetime.timedelta(seconds=miss.evicted_ago)
        yield Reason(miss.why, lost, f"{_WHY[miss.why]} at {then:%Y-%m-%d %H:%M:%S} UTC")
        missing -= lost
    adapted = min(max(miss.adapter - miss.matched - lost, 0), missing) if _knows(caller) else 0
    if adapted:
        yield Reason("adapter", adapted, "cached under another adapter, or none: it has other KV")
        missing -= adapted
    elsewhere = miss.other - miss.matched - lost - adapted if caller.admin else 0
    elsewhere = min(max(elsewhere, 0), missing)
    if elsewhere:
        yield Reason("salt", elsewhere, "cached under another cache_salt, which is kept apart")
        missing -= elsewhere
    elsewhere += adapted
    part = 0 if lost or elsewhere or not _knows(caller) else min(_agreed(kept), missing)
    if part:
        yield Reason("page", part, "agreed with a cached text, but not for a whole page")
        missing -= part
    if missing:
        yield Reason("never_seen", missing, "not seen before, or too long ago to remember")
    wanted = kept.length - miss.limit
    if wanted == 1:
        yield Reason("wanted", 1, "the last token is always computed: the first new one needs it")
    elif wanted > 1:
        yield Reason("wanted", wanted, "their log-probabilities or hidden states were requested")


_WHY = {
    "evicted": "evicted to make room",
    "flushed": "flushed on request",
    "failed": "lost when a forward pass failed",
}


def _agreed(kept: Kept) -> int:
    """Return the number of tokens after the matched prefix that the cache holds too."""
    behind = kept.around[kept.miss.matched - kept.first :]
    agreed = common_prefix(ints(kept.miss.cached_next), behind)
    texts = behind[:agreed]
    return texts.index(IMAGE) if IMAGE in texts else agreed  # an image may differ


def _diverged(kept: Kept, tokenizer: Tokenizer) -> Divergence:
    agreed = _agreed(kept)
    place = kept.miss.matched - kept.first + agreed
    return Divergence(
        kept.miss.matched + agreed,
        read(tokenizer, kept.around[max(0, place - BEFORE) : place]),
        read(tokenizer, kept.around[place : place + BEHIND]),
        read(tokenizer, kept.miss.cached_next[agreed : agreed + BEHIND]),
    )
