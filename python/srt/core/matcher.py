"""Matcher: state of one generation in its grammar (``grammar/grammar_protocol``)."""

from __future__ import annotations

from typing import Protocol

POSTPONED = "the budget of the pass for masks is spent; the next pass samples this token"


class GrammarError(ValueError):
    """A constraint cannot be enforced. The message gives problem, position, limit and fix."""


class CompilerBusy(Exception):
    """The grammar was not compiled in time, or the compiler's process was lost. The constraint is
    not the cause: the same request may succeed later."""


class Postponed(GrammarError):
    """No mask was made in this pass, since its budget is spent. The next pass makes the mask."""

    def __init__(self) -> None:
        super().__init__(POSTPONED)


class Matcher(Protocol):
    """State of one generation in its grammar. A new one is before the first generated token."""

    @property
    def accepting(self) -> bool:
        """Whether the text so far satisfies the constraint: an end token may follow."""
        ...

    @property
    def finished(self) -> bool:
        """Whether nothing but an end token may follow."""
        ...

    def mask(self) -> bytes:
        """Return the allowed ids as ``Vocabulary.words`` little-endian int32 words, low bit first.
        End tokens are allowed if ``accepting``. All zero: no token may follow.

        Raises GrammarError if a limit of the step is exceeded.
        """
        ...

    def advance(self, token: int) -> bool:
        """Advance by a token, not an end token. Return False, changing nothing, if the grammar does
        not allow it. (A token that only a canonical mask excludes is accepted.)"""
        ...

    def forced(self, limit: int) -> list[int]:
        """Return the next tokens, at most ``limit``, as long as each is the only one that its mask
        allows. Does not advance."""
        ...

    def draft(self, limit: int) -> list[int]:
        """Return likely next tokens, at most ``limit``, each allowed after the ones before: the
        forced tokens, then the probable tokens of the forced text after them. Does not
        advance."""
        ...

    def rewrite(self) -> tuple[int, list[int]]:
        """Return, for ``--jump-forward string``, how many of the last tokens to remove and the
        tokens that replace them: the text is extended by the forced text and tokenized anew as a
        whole. (0, []) if nothing is forced, or too much text would be tokenized anew. Does not
        advance."""
        ...

    def rollback(self, count: int) -> None:
        """Undo the last ``count`` advances."""
        ...

    def fork(self) -> Matcher:
        """Return an independent copy."""
        ...
