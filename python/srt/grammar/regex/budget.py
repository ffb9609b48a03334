"""Budget: the limits of one pattern, in steps and sizes, not in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.grammar.grammar_protocol import GrammarError


class InvalidPattern(GrammarError):
    """The pattern is invalid: ``re`` does not compile it either."""


class BeyondBudget(GrammarError):
    """The pattern is too large, or uses a feature that is not supported here; another engine may
    accept it."""


@dataclass(frozen=True)
class Budget:
    """Limits of one compilation. A pattern reaches the same limit on every machine.

    Attributes:
        pattern: bytes of the pattern in UTF-8.
        depth: groups inside each other.
        nfa: states of the nondeterministic automaton.
        dfa: states of the deterministic automaton before it is minimised.
        cells: states times classes of the deterministic automaton.
        steps: units of work, of about 0.1 us each, over all stages.
        strings: texts of a finite language that is listed.
        string_bytes: UTF-8 bytes of these texts in all.
    """

    pattern: int = 4 << 10
    depth: int = 64
    nfa: int = 100_000
    dfa: int = 20_000
    cells: int = 8_000_000
    steps: int = 4_000_000
    strings: int = 4096
    string_bytes: int = 64 << 10


class Meter:
    """Counts the steps of one compilation."""

    __slots__ = ("budget", "spent")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.spent = 0

    def spend(self, steps: int) -> None:
        """Count steps of compiling. Raises BeyondBudget if their sum exceeds the limit."""
        self.spent += steps
        if self.spent > self.budget.steps:
            raise BeyondBudget(
                f"regex takes more than {self.budget.steps} steps to compile; "
                "make its repetitions smaller, or their parts easier to tell apart"
            )
