"""Matcher: where one generation stands in its grammar (``grammar/grammar_protocol``)."""

from __future__ import annotations

from typing import Protocol

POSTPONED = "the budget of the pass for masks is spent; the next pass samples this token"


class GrammarError(ValueError):
    """A constraint that cannot be enforced. Says what, where, the limit and the fix."""


class CompilerBusy(Exception):
    """The grammar was not made in time, or its process was lost, through no fault of the
    constraint: the same request may succeed later."""


class Postponed(GrammarError):
    """No mask in this pass, whose budget is spent. The next pass makes it."""

    def __init__(self) -> None:
        super().__init__(POSTPONED)


class Matcher(Protocol):
    """Position of one generation in its grammar. Begins before the first generated token."""

    @property
    def accepting(self) -> bool:
        """Whether the text so far satisfies the constraint: an end token may follow."""
        ...

    @property
    def finished(self) -> bool:
        """Whether nothing but an end token may follow."""
        ...

    def mask(self) -> bytes:
        """Allowed ids as little-endian int32 words, low bit first, ``Vocabulary.words`` of them.
        End tokens are allowed where ``accepting``. All zero: a dead end.

        Raises GrammarError where a limit of the step is exceeded.
        """
        ...

    def advance(self, token: int) -> bool:
        """Take the next token, not an end token. False, and no change, where it is not allowed by
        the grammar (a token that is only left out of a canonical mask may be taken)."""
        ...

    def forced(self, limit: int) -> list[int]:
        """The next tokens, at most ``limit``, as long as each is the only one its mask would allow.
        Does not advance."""
        ...

    def draft(self, limit: int) -> list[int]:
        """A guess at the next tokens, at most ``limit``, all of them allowed one after the other:
        the forced ones, then those that most likely write the forced text after them. Does not
        advance."""
        ...

    def rewrite(self) -> tuple[int, list[int]]:
        """Result for ``--jump-forward string``: how many of the last tokens to take back and the
        tokens to put in their place, so that the text goes on with what is forced and is tokenized
        anew as a whole. (0, []) where nothing is forced, or too much text would be tokenized anew.
        Does not advance."""
        ...

    def rollback(self, count: int) -> None:
        """Undo the last ``count`` advances."""
        ...

    def fork(self) -> Matcher:
        """An independent copy."""
        ...
