"""Output: one completion as it grows, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from sglang.srt.core.messages import Done, PromptChunk, PromptProgress, Tokens, TopPairs
from sglang.srt.core.request_stats import RequestStats
from sglang.srt.tokenizer import Detokenizer


@dataclass(slots=True)
class Finish:
    """``reason`` is "stop", "length", "abort" or "error"; ``matched`` the stop string, pattern or
    id; ``message`` why no token could follow."""

    reason: str
    matched: str | int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class HintAnswer:
    """Answer to one action of ``kv_hints``.

    Attributes:
        action_id: the action's name.
        outcome: "accepted", "clipped", "deferred" or "rejected".
        reason: of an outcome that is not "accepted".
    """

    action_id: str
    outcome: str
    reason: str = ""


@dataclass(slots=True)
class PromptLogprobs:
    """Log-probabilities of the prompt's tokens from ``start`` on; None where nothing precedes."""

    start: int = 0
    logprobs: list[float | None] = field(default_factory=list)
    tops: list[TopPairs | None] = field(default_factory=list)
    probes: list[list[float] | None] = field(default_factory=list)

    def extend(self, event: PromptChunk) -> None:
        """Take the next run of positions."""
        self.logprobs += event.logprobs
        self.tops += event.tops
        self.probes += event.probes

    def reaches(self, end: int) -> bool:
        """Whether all runs up to the prompt's ``end`` have come. An abort leaves some out."""
        return self.start + len(self.logprobs) >= end


@dataclass(slots=True)
class Output:
    """One completion, updated in place while it streams; text and tokens only ever grow.

    Attributes:
        index: which of the n completions of its prompt.
        stats: what the engine has counted. Its prompt is known from the start, more with the first
            sampled token, all when ``finish`` is set. Its seconds count from ``started``.
        prompt_ready: tokens of the prompt that are computed, where the request wants to know.
        text: what is certain so far, trimmed of stops, control tokens hidden.
        tokens: all generated ids, the ending one included.
        released: how many of them have all their bytes in ``text`` (or hidden).
        logprobs, tops, probes: per generated token, where requested.
        prompt_logprobs: where requested; complete when ``finish`` is set.
        row_logprobs: log-probabilities of the tokens of each row that was to be scored.
        row_tokens: tokens of such rows that were computed.
        choice_logprobs: log-probability of each choice, where they were scored as wholes.
        finish: None while running.
        started: time.monotonic() of submission; seconds: from there to the last update.
        resume: handle of its context, where that was parked at its end.
        hints: answers to the request's ``kv_hints``.
    """

    index: int
    stats: RequestStats = field(default_factory=RequestStats)
    prompt_ready: int = 0
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    released: int = 0
    logprobs: list[float] = field(default_factory=list)
    tops: list[TopPairs] = field(default_factory=list)
    probes: list[list[float]] = field(default_factory=list)
    prompt_logprobs: PromptLogprobs | None = None
    row_logprobs: list[list[float]] = field(default_factory=list)
    row_tokens: int = 0
    choice_logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None
    started: float = 0.0
    seconds: float = 0.0
    resume: str = ""
    hints: list[HintAnswer] = field(default_factory=list)

    @property
    def completion_tokens(self) -> int:
        return len(self.tokens)


class Assembler:
    """Turns the events of one Generate into its Output.

    ``enders`` are the ids that end a generation: a stream holds their bytes back until it is known
    whether they are cut. ``trim`` is whether stops are cut from the text. ``prompt_stats``: of the
    request that computed the prompt, where another one did.
    """

    def __init__(
        self,
        output: Output,
        text: Detokenizer,
        table: Sequence[bytes],
        enders: frozenset[int],
        trim: bool,
        prompt_stats: RequestStats | None,
    ) -> None:
        self._began, self._prompt_stats = time.monotonic(), prompt_stats
        self.output, self._text, self._table = output, text, table
        self._enders, self._trim = enders, trim
        self._given = 0

    def begin_behind(self, tokens: Sequence[int]) -> None:
        """Take tokens that the completion has already. Their text comes with the first event, which
        says how much of it is held back."""
        self._given = len(tokens)
        self.output.tokens += tokens
        held = sum(len(self._table[token]) for token in tokens if token < len(self._table))
        self._text.push(tokens, held)

    def prompt(self, event: PromptChunk) -> None:
        found = self.output.prompt_logprobs
        if found is None:
            found = self.output.prompt_logprobs = PromptLogprobs(event.start)
        found.extend(event)

    def prompt_progress(self, event: PromptProgress) -> None:
        self.output.prompt_ready = event.ready
        self.output.stats.cached_tokens = event.cached

    def tokens(self, event: Tokens) -> None:
        output = self.output
        if event.stats is not None:
            self._count(event.stats.of_prompt())
        taken: list[int] = []
        if event.taken:
            taken = output.tokens[-event.taken :]
            del output.tokens[-event.taken :]
        output.tokens += event.tokens
        if event.logprobs or event.probes:
            output.logprobs += event.logprobs
            output.tops += event.tops
            output.probes += event.probes
        held = max(event.held, self._ending_bytes())
        output.text += self._text.push(event.tokens, held, taken)
        output.released = self._text.released

    def done(self, event: Done) -> None:
        output = self.output
        found = output.prompt_logprobs
        if found is not None and not found.reaches(output.stats.prompt_tokens):
            output.prompt_logprobs = None
        output.text += self._text.finish(event.cut if self._trim else -1)
        output.released = self._text.released
        output.finish = Finish(event.reason, event.matched, event.message)
        self._count(event.stats)

    def resume(self) -> None:
        """The engine was lost: events of another request follow, which goes on after the tokens so
        far, or which computes the prompt again where there are none."""
        output = self.output
        if output.tokens:
            self._began = time.monotonic()
            stats = msgspec.structs.replace(output.stats, completion_tokens=len(output.tokens))
            self._prompt_stats = stats
        elif self._prompt_stats is None:
            output.prompt_logprobs = None

    def _count(self, stats: RequestStats) -> None:
        before = self._prompt_stats
        if self._given:  # tokens of the context when the request arrived, not of its prompt
            prompt = stats.prompt_tokens - self._given
            cached = min(stats.cached_tokens, prompt)
            stats = msgspec.structs.replace(stats, prompt_tokens=prompt, cached_tokens=cached)
        if before is not None:
            stats = before.followed_by(stats, self._began - self.output.started)
        self.output.stats = stats

    def _ending_bytes(self) -> int:
        """Bytes of the last token, if it is one that ends the text."""
        tokens = self.output.tokens
        if not tokens or tokens[-1] not in self._enders or tokens[-1] >= len(self._table):
            return 0
        return len(self._table[tokens[-1]])
