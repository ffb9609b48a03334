"""WorkRate: seconds that an engine needs for a token, learnt from the moments of first tokens."""

from __future__ import annotations

FIRST_GUESS = 5e-5  # seconds a token, until something was measured
KEPT = 0.97  # weight of what was measured before, at each observation
PRIOR = 2000.0  # tokens that a guess counts for
LEARNT = 0.02  # weight of one observation in a running mean


class WorkRate:
    """The seconds of waiting for first tokens over the tokens computed meanwhile.

    A ratio of decaying sums: large prompts count more than small ones, which wait for passes that
    compute little.
    """

    __slots__ = ("_seconds", "_tokens")

    def __init__(self) -> None:
        self._seconds = self._tokens = 0.0

    def observe(self, seconds: float, tokens: int) -> None:
        """Count a first token that came after ``seconds``; ``tokens`` were to be computed before
        it, those of other prompts included."""
        self._seconds = KEPT * self._seconds + seconds
        self._tokens = KEPT * self._tokens + tokens

    def per_token(self, guess: float) -> float:
        """Return the seconds a token. ``guess`` counts as one observation."""
        return (self._seconds + PRIOR * guess) / (self._tokens + PRIOR)


class Averages:
    """Running means over the requests of all engines of a router.

    Attributes:
        service: seconds from the first token of a request to its end.
        generated: generated tokens of a request.
    """

    __slots__ = ("generated", "rate", "service")

    def __init__(self) -> None:
        self.rate = WorkRate()
        self.service = 1.0
        self.generated = 128.0

    @property
    def per_token(self) -> float:
        """Seconds a token."""
        return self.rate.per_token(FIRST_GUESS)

    def ended(self, seconds: float, generated: int) -> None:
        """Count a request that has ended after its first token."""
        self.service += LEARNT * (seconds - self.service)
        self.generated += LEARNT * (generated - self.generated)
