"""Output: one completion as it grows, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sglang.srt.core.messages import Done, Origin, Prompt, Tokens, TopPairs
from sglang.srt.tokenizer import Detokenizer


@dataclass(slots=True)
class Finish:
    """``reason`` is "stop", "length", "abort" or "error"; ``matched`` the stop string, pattern or
    id; ``message`` why no token could follow."""

    reason: str
    matched: str | int | None = None
    message: str = ""


@dataclass(slots=True)
class PromptLogprobs:
    """Log-probabilities of the prompt's tokens from ``start`` on; None where nothing precedes."""

    start: int = 0
    logprobs: list[float | None] = field(default_factory=list)
    tops: list[TopPairs | None] = field(default_factory=list)
    probes: list[list[float] | None] = field(default_factory=list)

    def extend(self, event: Prompt) -> None:
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
        text: what is certain so far, trimmed of stops, control tokens hidden.
        tokens: all generated ids, the ending one included.
        released: how many of them have all their bytes in ``text`` (or hidden).
        logprobs, tops, probes: per generated token, where asked for.
        prompt_logprobs: where asked for; complete when ``finish`` is set.
        choice_logprobs: log-probability of each choice, where they were scored as wholes.
        finish: None while running.
        cached_tokens: prompt tokens found in the cache; known with the first sampled token.
        passes: forward passes that it took part in, its prompt's included; forced: tokens written
            without a draw; drafted: tokens guessed ahead; accepted: of these, the ones that were
            then drawn. Known when ``finish`` is set.
        retracted: how often it had to wait again; known when ``finish`` is set.
        origin: why the rest of the prompt was not in the cache; known when ``finish`` is set.
        started: time.monotonic() of submission. From there, in seconds: ``scheduled`` to the
            prompt's first pass and ``first`` to the first token drawn, None where there was none
            (both known when ``finish`` is set); ``seconds`` to the last update.
    """

    index: int
    prompt_tokens: int
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    released: int = 0
    logprobs: list[float] = field(default_factory=list)
    tops: list[TopPairs] = field(default_factory=list)
    probes: list[list[float]] = field(default_factory=list)
    prompt_logprobs: PromptLogprobs | None = None
    choice_logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None
    cached_tokens: int = 0
    passes: int = 0
    forced: int = 0
    drafted: int = 0
    accepted: int = 0
    queued_seconds: float = 0.0
    retracted: int = 0
    origin: Origin | None = None
    started: float = 0.0
    scheduled: float | None = None
    first: float | None = None
    seconds: float = 0.0

    @property
    def completion_tokens(self) -> int:
        return len(self.tokens)


class Assembler:
    """Turns the events of one Generate into its Output.

    ``enders`` are the ids that end a generation: a stream holds their bytes back until it is known
    whether they are cut. ``trim`` is whether stops are cut from the text.
    """

    def __init__(
        self,
        output: Output,
        text: Detokenizer,
        table: Sequence[bytes],
        enders: frozenset[int],
        trim: bool,
    ) -> None:
        self.output, self._text, self._table = output, text, table
        self._enders, self._trim = enders, trim

    def prompt(self, event: Prompt) -> None:
        found = self.output.prompt_logprobs
        if found is None:
            found = self.output.prompt_logprobs = PromptLogprobs(event.start)
        found.extend(event)

    def tokens(self, event: Tokens) -> None:
        output = self.output
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

    def done(self, event: Done, began: float) -> None:
        """Take the end of a request that was submitted at ``began`` of the monotonic clock."""
        output = self.output
        found = output.prompt_logprobs
        if found is not None and not found.reaches(output.prompt_tokens):
            output.prompt_logprobs = None
        output.text += self._text.finish(event.cut if self._trim else -1)
        output.released = self._text.released
        output.finish = Finish(event.reason, event.matched, event.message)
        output.passes += event.passes
        output.forced, output.drafted = event.forced, event.drafted
        output.accepted = event.accepted
        output.queued_seconds = event.queued
        output.retracted += event.retracted
        if output.scheduled is None:
            output.scheduled = event.queued
        if event.first:
            output.first = began - output.started + event.first
        output.origin = output.origin or event.origin

    def _ending_bytes(self) -> int:
        """Bytes of the last token, if it is one that ends the text."""
        tokens = self.output.tokens
        if not tokens or tokens[-1] not in self._enders or tokens[-1] >= len(self._table):
            return 0
        return len(self._table[tokens[-1]])
