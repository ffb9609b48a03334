"""AttainedService: number of tokens computed for each program, for the order ``attained``.

Programs with the fewest computed tokens go first, so that small programs do not wait for large ones
of unknown size (Agentix, NSDI'26: program-level attained service). Levels double in size; within a
level the longest cached prefix goes first, so that programs do not alternate at every token.
"""

from __future__ import annotations

from collections import OrderedDict

from sglang.srt.core.call_hints import CallHint

FIRST = 2048  # tokens of the first level
PROGRAMS = 4096  # most programs that are counted: the most recently served


class AttainedService:
    """Tokens computed for each program, cached ones left out."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[str, int] = OrderedDict()

    def serve(self, hint: CallHint | None, tokens: int) -> None:
        """Count tokens that a pass computes for a request. Without a program nothing is counted."""
        if hint is not None and hint.program:
            self._tokens[hint.program] = self._tokens.pop(hint.program, 0) + tokens
            if len(self._tokens) > PROGRAMS:
                self._tokens.popitem(last=False)

    def level(self, hint: CallHint | None) -> int:
        """Return the level of a request's program, 0 for the least served ones."""
        served = 0 if hint is None else self._tokens.get(hint.program, 0)
        return (served // FIRST).bit_length()
