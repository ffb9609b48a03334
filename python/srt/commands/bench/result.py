"""Result: one request, from when it was due to its last token. Times are ``perf_counter`` seconds.

due -- sent -- first token ... last token -- end
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class TurnPart:
    """Text of one turn: ``tokens`` is empty where only the text is known."""

    role: str
    tokens: tuple[int, ...]
    text: str


@dataclass(slots=True)
class BenchCall:
    """One request: the conversation so far, the last part by the user, and tokens to generate."""

    conversation: int
    turn: int
    parts: list[TurnPart]
    output: int

    @property
    def tokens(self) -> list[int]:
        """The prompt as ids. Raises ValueError where a part is known as text only."""
        if not all(part.tokens for part in self.parts):
            raise ValueError("the endpoint answers in text, so later turns cannot be sent as ids")
        return [token for part in self.parts for token in part.tokens]

    @property
    def text(self) -> str:
        return " ".join(part.text for part in self.parts)


@dataclass(slots=True)
class Result:
    """``gaps`` are seconds between two chunks that brought tokens; a chunk of several tokens is one
    gap, as its reader sees it. ``cached`` is -1 where the endpoint does not tell."""

    conversation: int
    turn: int
    asked: int
    due: float = 0.0
    sent: float = 0.0
    first: float = 0.0
    last: float = 0.0
    end: float = 0.0
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached: int = -1
    text: str = ""
    ids: tuple[int, ...] = ()
    finish: str = ""
    error: str = ""

    def arrived(self, now: float) -> None:
        """A chunk with at least one token came at ``now``."""
        if not self.first:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now

    @property
    def key(self) -> tuple[int, int]:
        return self.conversation, self.turn

    @property
    def ttft(self) -> float:
        """Seconds from sending to the first token."""
        return self.first - self.sent

    @property
    def tpot(self) -> float:
        """Mean seconds a token after the first; 0 for a single token."""
        return (self.last - self.first) / max(1, self.output_tokens - 1)

    @property
    def latency(self) -> float:
        """Seconds from sending to the end of the answer."""
        return self.end - self.sent
