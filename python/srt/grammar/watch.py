"""Watch: a byte automaton over generated text that tells where a stop begins.

Stop strings are one Aho-Corasick automaton: its depth after each byte is the length of the longest
suffix that may still become a stop, exactly what a stream has to hold back. Patterns go to RE2,
which is linear in the text whatever the pattern. Both see raw bytes, so a stop is found across
token and UTF-8 boundaries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

PATTERN_HOLD = 128  # bytes a stream holds back while a pattern may still match them
PATTERN_MEMORY = 1 << 22  # bytes RE2 may use for one pattern
CACHED = 64  # automata kept, and patterns: each may be as large as a request may make it


@dataclass(frozen=True, slots=True)
class Hit:
    """A stop was found: the bytes before it, and the stop as text."""

    cut: int
    end: int
    matched: str


class StopStrings:
    """Aho-Corasick over bytes. State 0 is the root; ``depth`` and ``found`` are per state."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.depth = [0]
        self.found: list[str | None] = [None]
        for stop in stops:
            state = 0
            for byte in stop.encode():
                if byte not in self.next[state]:
                    self.next[state][byte] = len(self.next)
                    self.next.append({})
                    self.depth.append(self.depth[state] + 1)
                    self.found.append(None)
                state = self.next[state][byte]
            self.found[state] = stop
        self.fail = [0] * len(self.next)
        self._link()

    def _link(self) -> None:
        queue = deque(self.next[0].values())
        while queue:
            state = queue.popleft()
            for byte, child in self.next[state].items():
                self.fail[child] = self.step(self.fail[state], byte)
                if self.found[child] is None:
                    self.found[child] = self.found[self.fail[child]]
                queue.append(child)

    def step(self, state: int, byte: int) -> int:
        while byte not in self.next[state]:
            if state == 0:
                return 0
            state = self.fail[state]
        return self.next[state][byte]


@lru_cache(maxsize=CACHED)
def stop_strings(stops: tuple[str, ...]) -> StopStrings:
    return StopStrings(stops)


@lru_cache(maxsize=CACHED)
def pattern(text: str) -> Any:
    """Raises ValueError where RE2 does not take the pattern."""
    import re2

    options = re2.Options()
    options.max_mem = PATTERN_MEMORY
    options.log_errors = False
    try:
        compiled = re2.compile(text.encode(), options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        if isinstance(reason, bytes):
            reason = reason.decode(errors="replace")
        raise ValueError(f"stop_regex {text!r} is not a valid RE2 pattern: {reason}") from None
    if compiled.search(b"") is not None:
        raise ValueError(f"stop_regex {text!r} matches the empty text; make it match something.")
    return compiled


class Watch:
    """The stops of one request, fed with its text as it is drawn.

    Raises ValueError for a pattern that is not one.
    """

    def __init__(self, stops: Sequence[str] = (), patterns: Sequence[str] = ()) -> None:
        self._strings = stop_strings(tuple(stops)) if stops else None
        self._patterns = [pattern(text) for text in patterns]
        self._state = 0
        self._text = bytearray()  # all of it, but only where patterns are watched
        self.length = 0

    @property
    def held(self) -> int:
        """Trailing bytes that may belong to a stop."""
        strings = self._strings.depth[self._state] if self._strings else 0
        return max(strings, min(self.length, PATTERN_HOLD) if self._patterns else 0)

    def feed(self, data: bytes) -> Hit | None:
        """Take the next bytes. The first stop to end in them wins; of those the longest."""
        hit = self._feed_strings(data) if self._strings else None
        if self._patterns:
            self._text += data
            text = bytes(self._text)
            for compiled in self._patterns:
                found = compiled.search(text)
                if found and (hit is None or found.end() < hit.end):
                    matched = found.group().decode(errors="replace")
                    hit = Hit(found.start(), found.end(), matched)
        self.length += len(data)
        return hit

    def _feed_strings(self, data: bytes) -> Hit | None:
        strings, state = self._strings, self._state
        assert strings is not None
        hit = None
        for at, byte in enumerate(data):
            state = strings.step(state, byte)
            stop = strings.found[state]
            if stop is not None:
                end = self.length + at + 1
                hit = Hit(end - len(stop.encode()), end, stop)
                break
        self._state = state
        return hit
