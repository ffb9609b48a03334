"""Constraint: what generated text must be, as the user gave it."""

from __future__ import annotations

import json
from dataclasses import dataclass

KINDS = ("regex", "json_schema", "ebnf", "structural_tag", "choices")
MAX_BYTES = {
    "regex": 4 << 10,
    "json_schema": 256 << 10,
    "ebnf": 256 << 10,
    "structural_tag": 256 << 10,
    "choices": 256 << 10,
}
MAX_CHOICES = 10_000
MAX_CHOICE = 4096  # bytes of one
MAX_WHITESPACE = 256  # characters of its pattern


@dataclass(frozen=True)
class Constraint:
    """A language that generated text must belong to. Equal constraints are compiled once.

    Attributes:
        kind: one of ``KINDS``.
        text: by kind: a pattern in Python's ``re`` syntax that the whole text must match; a JSON
            schema as JSON; a grammar, GBNF where it has ``::=``, else Lark; a structural tag as
            JSON; a JSON list of the strings to choose from.
        whitespace: for JSON, the pattern allowed between two tokens of it; None: the server's own
            setting, "" none at all.
    """

    kind: str
    text: str
    whitespace: str | None = None

    def verify(self) -> None:
        """Raise ValueError where the kind is unknown or a text is too long or is not Unicode."""
        if self.kind not in KINDS:
            raise ValueError(f"constraint is of kind {self.kind!r}; use one of {', '.join(KINDS)}.")
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError:
            raise ValueError(f"{self.kind} holds a lone surrogate.") from None
        if size > MAX_BYTES[self.kind]:
            raise ValueError(f"{self.kind} has {size} bytes; at most {MAX_BYTES[self.kind]}.")
        if len(self.whitespace or "") > MAX_WHITESPACE:
            raise ValueError(
                f"whitespace_pattern has {len(self.whitespace or '')} characters; "
                f"at most {MAX_WHITESPACE}."
            )

    def choices(self) -> list[str]:
        """The texts of a constraint of kind "choices". Raises ValueError."""
        try:
            found = json.loads(self.text)
            json.dumps(found, ensure_ascii=False).encode()  # JSON can spell lone surrogates
        except (ValueError, RecursionError) as error:
            raise ValueError(f"choices must be a JSON list of strings: {error}.") from None
        if not (isinstance(found, list) and all(isinstance(one, str) for one in found)):
            raise ValueError(f"choices must be a JSON list of strings, not {self.text:.80}")
        if not 1 <= len(found) <= MAX_CHOICES:
            raise ValueError(f"choices has {len(found)} entries; give 1 to {MAX_CHOICES}.")
        first: dict[str, int] = {}
        for at, choice in enumerate(found):
            size = len(choice.encode())
            if not choice:
                raise ValueError(f"choices[{at}] is empty; a choice needs at least one character.")
            if size > MAX_CHOICE:
                raise ValueError(f"choices[{at}] has {size} bytes; at most {MAX_CHOICE}.")
            if first.setdefault(choice, at) != at:
                raise ValueError(
                    f"choices[{at}] is the same as choices[{first[choice]}]; drop one."
                )
        return found
