"""Whether a grammar lets a JSON value through, in whatever order its properties stand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.grammar_protocol import Matcher

END = 256
BYTES = Vocabulary(
    tokens=(*(bytes([byte]) for byte in range(256)), b"<end>"),
    size=257,
    eos=(END,),
    special=frozenset({END}),
    encode=lambda texts: [list(text.encode()) for text in texts],
)
TRIES = 3000  # properties tried in an order that is not likely


def accepts_text(matcher: Matcher, text: str) -> bool:
    """Whether ``text`` is in the language of a grammar over BYTES."""
    return all(matcher.advance(byte) for byte in text.encode()) and matcher.accepting


def accepts(matcher: Matcher, value: Any) -> bool:
    """Whether some way to write ``value`` compactly is. The matcher is left where it was.

    A grammar fixes the order of the properties that its schema mentions and takes the others behind
    them in any order. So a property that may stand after another need not be tried before it, but
    where two alternatives of the schema have orders of their own: these are tried too, TRIES times.
    """
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 200_000))
    try:
        return any(
            _Search(matcher, tries).write(value, _accepting(matcher)) for tries in (0, TRIES)
        )
    finally:
        sys.setrecursionlimit(limit)


def _accepting(matcher: Matcher) -> Callable[[], bool]:
    return lambda: matcher.accepting


class _Search:
    def __init__(self, matcher: Matcher, tries: int) -> None:
        self._matcher = matcher
        self._tries = tries

    def write(self, value: Any, then: Callable[[], bool]) -> bool:
        if isinstance(value, dict):
            return self._take("{", lambda: self._fields(value, list(value), "", then))
        if isinstance(value, list):
            return self._take("[", lambda: self._items(value, 0, then))
        return self._take(json.dumps(value, ensure_ascii=False), then)

    def _fields(
        self, value: dict[str, Any], left: list[str], comma: str, then: Callable[[], bool]
    ) -> bool:
        if not left:
            return self._take("}", then)
        after: set[str] = set()  # names that may stand behind one that was tried
        for name in left:
            if name in after:
                if self._tries <= 0:
                    continue
                self._tries -= 1
            rest = [other for other in left if other != name]

            def behind(rest: list[str] = rest) -> bool:
                after.update(other for other in rest if self._take(_name(",", other), _yes))
                return self._fields(value, rest, ",", then)

            def go_on(name: str = name, behind: Callable[[], bool] = behind) -> bool:
                return self.write(value[name], behind)

            if self._take(_name(comma, name), go_on):
                return True
        return False

    def _items(self, value: list[Any], at: int, then: Callable[[], bool]) -> bool:
        if at == len(value):
            return self._take("]", then)
        return self._take(
            "," if at else "",
            lambda: self.write(value[at], lambda: self._items(value, at + 1, then)),
        )

    def _take(self, text: str, then: Callable[[], bool]) -> bool:
        """Advance over a text and go on; back again."""
        taken = 0
        found = False
        for byte in text.encode():
            if not self._matcher.advance(byte):
                break
            taken += 1
        else:
            found = then()
        self._matcher.rollback(taken)
        return found


def _name(comma: str, name: str) -> str:
    return f"{comma}{json.dumps(name, ensure_ascii=False)}:"


def _yes() -> bool:
    return True
