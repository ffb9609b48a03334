"""StopWatch: the search for one request's stops in its text, token by token.

This is the home of stops: it alone says which bytes a stop holds back and where it cuts the text.

Stop strings are one Aho-Corasick automaton: its depth after each byte is the length of the longest
suffix that may still become a stop, exactly what a stream has to hold back.

Patterns (``stop_regex``) are in RE2's dialect. ``StopAutomaton`` says after each character whether
a match ends there, at a cost per character that does not depend on the text, so no text is read
twice. Once it says yes, RE2 searches the text from where the oldest open match can have begun, and
its answer is the stop: the leftmost match, as it is in all the text up to this token. So RE2 runs
once a request, and what this one search may cost is bounded (``Patterns._search``).

Both see raw bytes, so a stop is found across token and UTF-8 boundaries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sglang.srt.core.work import TooMuchWork
from sglang.srt.grammar.stop_automaton import EDGE, KIND, OTHER, Matching, StopAutomaton, length

PATTERN_HOLD = 128  # bytes a stream holds back while a pattern may still match them
PATTERN_MEMORY = 1 << 19  # bytes RE2 may use for one pattern
ATOMS_MEMORY = 1 << 24  # and for their classes: more than the longest that are taken need
PROGRAM_LIMIT = 1 << 14  # RE2 instructions of all patterns of a request
SEARCH_WORK = 1 << 17  # what the search for a stop may cost in a short text, see ``_search``
CACHED = 64  # automata kept, and patterns: each may be as large as a request may make it


@dataclass(frozen=True, slots=True)
class FoundStop:
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


def compile_pattern(text: str) -> Any:
    """An RE2 object. Raises ValueError where RE2 does not take the pattern."""
    import re2

    options = re2.Options()
    options.max_mem = PATTERN_MEMORY
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(text.encode(), options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        if isinstance(reason, bytes):
            reason = reason.decode(errors="replace")
        raise ValueError(f"stop_regex {text!r} is not a valid RE2 pattern: {reason}") from None


def compile_atoms(sources: list[str]) -> Matching:
    """One RE2 automaton of all classes and escapes. Raises ValueError where they are too large: an
    atom left out would give its number to the next one."""
    import re2

    options = re2.Options()
    options.max_mem = ATOMS_MEMORY
    options.never_capture = True
    atoms = re2.Set.FullMatchSet(options)
    try:
        for number, source in enumerate(sources):
            if atoms.Add(source.encode()) != number:
                raise re2.error(f"{source!r} was not added")
        atoms.Compile()
    except re2.error as error:
        raise ValueError(
            f"stop_regex has {len(sources)} different classes, which RE2 does not take together in "
            f"{ATOMS_MEMORY} bytes of memory ({error}). Use fewer or simpler classes."
        ) from None
    matching: Matching = atoms.Match
    return matching


def stop_patterns(texts: tuple[str, ...]) -> tuple[list[Any], StopAutomaton]:
    """The patterns for RE2, and their automaton. Raises ValueError."""
    made = _stop_patterns(texts)
    if isinstance(made, str):
        raise ValueError(made)
    return made


@lru_cache(maxsize=CACHED)
def _stop_patterns(texts: tuple[str, ...]) -> tuple[list[Any], StopAutomaton] | str:
    """The same; or why they are refused, which costs as much to find out and is kept likewise."""
    try:
        return _compile(texts), StopAutomaton(texts, compile_atoms)
    except ValueError as error:
        return str(error)


def _compile(texts: tuple[str, ...]) -> list[Any]:
    compiled, size = [], 0
    for text in texts:
        pattern = compile_pattern(text)
        if pattern.search(b"") is not None:
            raise ValueError(
                f"stop_regex {text!r} matches the empty text; make it match something."
            )
        size += pattern.programsize
        if size > PROGRAM_LIMIT:
            raise ValueError(
                f"stop_regex is {size} RE2 instructions long; at most {PROGRAM_LIMIT} in all "
                "patterns. Lower a repeat count."
            )
        compiled.append(pattern)
    return compiled


class Patterns:
    """The patterns of one request, and where its text stands in them."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._compiled, self._automaton = stop_patterns(texts)
        self._text = bytearray()
        self._reached = 0  # positions after the last whole character
        self._before = EDGE  # kind of the last byte
        self._pending = b""  # the beginning of a character
        self._open = 0  # no match that may still come begins before this byte
        self._live = 0  # positions reached since then, added up over the characters
        self.cost = self._automaton.cost

    def feed(self, data: bytes) -> FoundStop | None:
        """The leftmost match of the pattern that ends first in the text so far. Raises
        TooMuchWork."""
        self._text += data
        return self._search() if self._scan(data) else None

    def _scan(self, data: bytes) -> bool:
        """Whether a match ends in ``data``, or at its end."""
        moves, taken = self._automaton.moves, self._automaton.taken
        reached, before, pending = self._reached, self._before, self._pending
        at = len(self._text) - len(data)
        for byte in data:
            at += 1
            kind = KIND[byte]
            if pending and byte & 0xC0 != 0x80:  # the bytes were no character
                reached, before, pending = 0, OTHER, b""
                self._open, self._live = at - 1, 0
            move = moves[4 * before + kind]
            if pending:
                pending += _BYTES[byte]
                if len(pending) < length(pending[0]):
                    continue
                character, pending = pending, b""
            elif reached & move.last or move.empty:
                return True
            elif length(byte) > 1:
                pending = _BYTES[byte]
                continue
            else:
                character = _BYTES[byte]
            reached = (move.step(reached) if reached else move.first) & taken(character)
            before = kind
            if reached:
                self._live += reached.bit_count()
            else:
                self._open, self._live = at, 0
        self._reached, self._before, self._pending = reached, before, pending
        end = moves[4 * before + EDGE]
        return not pending and bool(reached & end.last or end.empty)

    def _search(self) -> FoundStop:
        """The match that ``_scan`` says is there. RE2 at its slowest steps once for each byte and
        each position reached there. Matches that are open two or three times everywhere are always
        found, however long the text is. Raises TooMuchWork."""
        size = len(self._text)
        work, limit = size - self._open + self._live, SEARCH_WORK + 4 * size
        if work > limit:
            raise TooMuchWork(
                f"to find where stop_regex matches takes {work} steps in {size} bytes of text; at "
                f"most {limit}. Use a pattern that begins at fewer places."
            )
        found = [pattern.search(self._text, self._open) for pattern in self._compiled]
        spans = [match.span() for match in found if match is not None]
        if not spans:
            raise RuntimeError("RE2 finds no match where the stop automaton does")
        start, end = min(spans, key=lambda span: span[1])
        return FoundStop(start, end, self._text[start:end].decode(errors="replace"))


_BYTES = [bytes((byte,)) for byte in range(256)]


class StopWatch:
    """The stops of one generation, fed with its text as it is generated.

    Attributes:
        length: bytes of text so far.
        cost: most operations that a byte costs; 0 without patterns.

    Raises ValueError for a pattern that is invalid, or costs too much.
    """

    def __init__(self, stops: Sequence[str] = (), patterns: Sequence[str] = ()) -> None:
        self._strings = stop_strings(tuple(stops)) if stops else None
        self._patterns = Patterns(tuple(patterns)) if patterns else None
        self._state = 0
        self._hit: FoundStop | None = None
        self.length = 0
        self.cost = self._patterns.cost if self._patterns else 0

    @property
    def held(self) -> int:
        """Number of trailing bytes that may belong to a stop; once it is found, all bytes from its
        first one on."""
        if self._hit is not None:
            return self.length - self._hit.cut
        strings = self._strings.depth[self._state] if self._strings else 0
        return max(strings, min(self.length, PATTERN_HOLD) if self._patterns else 0)

    def feed(self, data: bytes) -> FoundStop | None:
        """Take the next bytes. The first stop to end in them wins; of those the longest. Raises
        TooMuchWork where a pattern matches, finding where costs too much, and no string is there
        to stop at."""
        hit = self._feed_strings(data) if self._strings else None
        if self._patterns:
            try:
                found = self._patterns.feed(data)
            except TooMuchWork:
                if hit is None:
                    raise
                found = None
            if found is not None and (hit is None or found.end < hit.end):
                hit = found
        self.length += len(data)
        self._hit = hit
        return hit

    def _feed_strings(self, data: bytes) -> FoundStop | None:
        strings, state = self._strings, self._state
        assert strings is not None
        hit = None
        for at, byte in enumerate(data):
            state = strings.step(state, byte)
            stop = strings.found[state]
            if stop is not None:
                end = self.length + at + 1
                hit = FoundStop(end - len(stop.encode()), end, stop)
                break
        self._state = state
        return hit
