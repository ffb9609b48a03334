"""Unparse a pattern of Python's ``re`` into a form that means the same to other regex engines.

The text is printed from our own syntax tree. Sets are ranges of code points, so that neither flags
nor Unicode tables nor escapes of another engine matter. Assertions are refused, except those at the
ends, which have no effect where the whole text must match.
"""

from __future__ import annotations

from functools import lru_cache

from sglang.srt.grammar.regex.budget import BeyondBudget, Budget
from sglang.srt.grammar.regex.charset import CharSet
from sglang.srt.grammar.regex.parser import parse
from sglang.srt.grammar.regex.tree import Assert, Chars, Concat, Either, Look, Node, Repeat

LONGEST = 256 << 10  # bytes of the result; a set such as \w has 13 kB
SURROGATES = (0xD800, 0xE000)


def portable(pattern: str) -> str:
    """Return a pattern with the same whole-text matches that consists only of ASCII letters and
    digits, ``\\u{X}`` and ``[ ] ( ) ? : | { } , -``.

    Raises GrammarError for an invalid pattern, and for assertions that this form cannot express.
    """
    return _Printer().text(parse(pattern, Budget()), True, True) or "(?:)"


class _Printer:
    def __init__(self) -> None:
        self.size = 0

    def text(self, node: Node, first: bool, last: bool) -> str:
        """Return the node's pattern. ``first``: the node begins the whole text; ``last``: the node
        ends it."""
        if isinstance(node, Chars):
            return self._set(node.members)
        if isinstance(node, Concat):
            ends = range(len(node.parts))
            return "".join(
                self.text(part, first and at == ends[0], last and at == ends[-1])
                for at, part in enumerate(node.parts)
            )
        if isinstance(node, Either):
            return "(?:" + "|".join(self.text(part, first, last) for part in node.parts) + ")"
        if isinstance(node, Repeat):
            part = self.text(node.part, False, False)
            if not isinstance(node.part, Chars):
                part = f"(?:{part})"
            return f"{part}{{{node.low},{'' if node.high is None else node.high}}}"
        return self._condition(node, first, last)

    def _set(self, members: CharSet) -> str:
        text = _ranges(members)
        self.size += len(text)
        if self.size > LONGEST:
            raise BeyondBudget(
                f"regex: its sets of characters take more than {LONGEST} bytes to write out; "
                "use fewer of them, or smaller ones such as [0-9]"
            )
        return text

    @staticmethod
    def _condition(node: Assert | Look, first: bool, last: bool) -> str:
        if isinstance(node, Assert) and (
            (first and node.kind == "start") or (last and node.kind in ("end", "tail"))
        ):
            return ""
        raise BeyondBudget(
            "regex: an assertion in the middle is not supported by llguidance; "
            "rewrite the pattern without it"
        )


@lru_cache(maxsize=256)
def _ranges(members: CharSet) -> str:
    out = []
    for begin, end in members.ranges():
        for low, high in ((begin, min(end, SURROGATES[0])), (max(begin, SURROGATES[1]), end)):
            if low + 1 < high:
                out.append(f"{_point(low)}-{_point(high - 1)}")
            elif low < high:
                out.append(_point(low))
    if not out:
        raise BeyondBudget("regex: a set without characters matches nothing; remove it")
    return out[0] if len(out) == 1 and "-" not in out[0] else f"[{''.join(out)}]"


def _point(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\u{{{code:x}}}"
