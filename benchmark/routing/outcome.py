"""Outcome: what became of the requests of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sglang.srt.commands.bench.stats import percentile


@dataclass(frozen=True, slots=True)
class Answered:
    """An answered request. Moments and times in seconds.

    Attributes:
        ttft: from when it was due to the first token.
        prompt, tokens: of the prompt, and with the answer.
        cached: tokens of the prompt that were cached at its first admission.
        computed: tokens of prompts computed, more than one prompt where an engine was lost.
        front: index of the router that has sent it.
        moved: whether it went on at another engine than the conversation's last answer; None for a
            first request.
    """

    due: float
    ttft: float
    ended: float
    prompt: int
    tokens: int
    cached: int
    computed: int
    front: int
    moved: bool | None


@dataclass
class Outcome:
    """All answers, and the processor seconds of ``chosen`` choices."""

    answers: list[Answered] = field(default_factory=list, repr=False)
    chosen: int = 0
    choosing: float = 0.0

    def due(self, begin: float, end: float = float("inf"), front: int | None = None) -> Outcome:
        """Return the outcome of the requests that were due in a span, at one front or at all."""
        return Outcome(
            [
                answer
                for answer in self.answers
                if begin <= answer.due < end and front in (None, answer.front)
            ],
            self.chosen,
            self.choosing,
        )

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that were cached."""
        prompts = sum(answer.prompt for answer in self.answers)
        return sum(answer.cached for answer in self.answers) / max(prompts, 1)

    @property
    def computed(self) -> int:
        """Tokens of prompts computed."""
        return sum(answer.computed for answer in self.answers)

    @property
    def moved(self) -> float:
        """Share of the conversations' later requests that went to another engine."""
        resumed = [answer.moved for answer in self.answers if answer.moved is not None]
        return sum(resumed) / max(len(resumed), 1)

    def ttft(self, share: float) -> float:
        """Return a quantile of the seconds to the first token."""
        return percentile(sorted(answer.ttft for answer in self.answers) or [0.0], 100 * share)

    def throughput(self, begin: float, end: float) -> float:
        """Return the tokens a second, prompts and answers, of the answers that ended in a span."""
        tokens = sum(answer.tokens for answer in self.answers if begin <= answer.ended < end)
        return tokens / (end - begin)

    @property
    def choice_us(self) -> float:
        """Microseconds of processor time of a choice, mean."""
        return 1e6 * self.choosing / max(self.chosen, 1)


def mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)
