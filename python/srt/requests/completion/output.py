"""Output: the state of one completion, and the Assembler that builds it from events."""

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
    """The end of a completion. ``reason``: "stop", "length", "abort" or "error". ``matched``: the
    stop string, stop pattern or end token. ``message``: for "error", why no token could follow."""

    reason: str
    matched: str | int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class HintAnswer:
    """Answer to one action of ``kv_hints``.

    Attributes:
        action_id: the action's name.
        outcome: "accepted", "clipped", "deferred" or "rejected".
        reason: reason for an outcome other than "accepted".
    """

    action_id: str
    outcome: str
    reason: str = ""


@dataclass(slots=True)
class PromptLogprobs:
    """Log-probabilities of the prompt's tokens from index ``start`` on. The prompt's first token
    has None."""

    start: int = 0
    logprobs: list[float | None] = field(default_factory=list)
    tops: list[TopPairs | None] = field(default_factory=list)
    probes: list[list[float] | None] = field(default_factory=list)

    def extend(self, event: PromptChunk) -> None:
        """Append the entries of the next positions."""
        self.logprobs += event.logprobs
        self.tops += event.tops
        self.probes += event.probes

    def reaches(self, end: int) -> bool:
        """Whether all entries up to index ``end`` have come. An abort leaves some out."""
        return self.start + len(self.logprobs) >= end


@dataclass(slots=True)
class Output:
    """One completion, updated in place while it is generated.

    Attributes:
        index: index among the n completions of the prompt.
        stats: the engine's statistics. The number of prompt tokens is known from the start, the
            rest of the prompt's counts with the first sampled token, all counts when ``finish`` is
            set. Its times are seconds since ``started``.
        prompt_ready: tokens of the prompt that are computed, if the request reports progress.
        text: the text that is certain so far, without stop strings and control tokens.
        tokens: all generated ids, the ending one included.
        released: number of leading tokens whose bytes are all in ``text`` (or hidden).
        logprobs, tops, probes: one entry for each generated token, if requested.
        prompt_logprobs: log-probabilities of the prompt, if requested; complete at the end.
        row_logprobs: log-probabilities of the tokens of each scored row.
        row_tokens: number of tokens of scored rows that were computed.
        choice_logprobs: log-probability of each choice, if choices were scored as wholes.
        finish: the end; None while running.
        started: time.monotonic() of the submission.
        seconds: time from the submission to the last update.
        resume: handle of the context, if it was parked at the end.
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
    """Builds an Output from the events of one Generate.

    Args:
        text: detokenizer of the completion. table: the bytes of every token id.
        enders: ids that end a generation. The bytes of such an id are held back until it is known
            whether they are cut.
        trim: whether stop strings are cut from the text.
        prompt_stats: statistics of the request that computed the prompt, if that was another one.
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
        """Add tokens that the completion has already. Their text is released by the first event,
        which has the number of bytes to hold back."""
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
        """Prepare for the events of another engine, after a loss. The next request continues after
        the tokens so far; without any, it computes the prompt again."""
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
        """Return the number of bytes of the last token if it ends the text, otherwise 0."""
        tokens = self.output.tokens
        if not tokens or tokens[-1] not in self._enders or tokens[-1] >= len(self._table):
            return 0
        return len(self._table[tokens[-1]])
