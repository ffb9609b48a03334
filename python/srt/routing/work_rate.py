"""WorkRate: seconds that an engine needs for a token, estimated from the times of first tokens."""

from __future__ import annotations

FIRST_GUESS = 5e-5  # seconds for a token, before any measurement
KEPT = 0.97  # decay of earlier observations at each new one
PRIOR = 2000.0  # weight of a guess, in tokens
LEARNT = 0.02  # weight of one observation in a running mean


class WorkRate:
    """Estimate: seconds of waiting for first tokens divided by the tokens computed meanwhile.

    Both are decaying sums. So large prompts have more weight than small ones, whose time is mostly
    that of passes that compute few tokens.
    """

    __slots__ = ("_seconds", "_tokens")

    def __init__(self) -> None:
        self._seconds = self._tokens = 0.0

    def observe(self, seconds: float, tokens: int) -> None:
        """Add an observation: a first token came after ``seconds``, in which ``tokens`` tokens were
        computed, those of other prompts included."""
        self._seconds = KEPT * self._seconds + seconds
        self._tokens = KEPT * self._tokens + tokens

    def per_token(self, guess: float) -> float:
        """Return the seconds for a token. ``guess`` counts as one observation."""
        return (self._seconds + PRIOR * guess) / (self._tokens + PRIOR)


class Averages:
    """Running means over the requests of all engines of a router.

    Attributes:
        rate: seconds for a token over all engines.
        service: mean seconds from the first token of a request to its end.
        generated: mean number of generated tokens of a request.
    """

    __slots__ = ("generated", "rate", "service")

    def __init__(self) -> None:
        self.rate = WorkRate()
        self.service = 1.0
        self.generated = 128.0

    @property
    def per_token(self) -> float:
        """Mean seconds for a token."""
        return self.rate.per_token(FIRST_GUESS)

    def ended(self, seconds: float, generated: int) -> None:
        """Count a request that has ended after its first token."""
        self.service += LEARNT * (seconds - self.service)
        self.generated += LEARNT * (generated - self.generated)
