"""StopWatch: the search for one request's stops in its text, token by token.

Only this module decides which bytes a stream holds back, and where a stop cuts the text.

Stop strings are one Aho-Corasick automaton. Its depth after each byte is the length of the longest
suffix that may still become a stop, which a stream must hold back.

Patterns (``stop_regex``) are in RE2's dialect. ``StopAutomaton`` reports after each character
whether a match ends there, at a cost that does not depend on the text, so no text is read twice.
After a report, RE2 searches the text from the first byte at which an open match can begin. The stop
is the leftmost match in the text up to this token. So RE2 runs once per request, and the cost of
that search is bounded (``Patterns._search``).

Both read raw bytes, so a stop may cross token and UTF-8 boundaries."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sglang.srt.core.work import TooMuchWork
from sglang.srt.grammar.stop_automaton import EDGE, KIND, OTHER, Matching, StopAutomaton, length

PATTERN_HOLD = 128  # bytes that a stream with patterns holds back
PATTERN_MEMORY = 1 << 19  # limit of RE2's memory for one pattern, in bytes
ATOMS_MEMORY = 1 << 24  # limit of RE2's memory for the atoms: more than the largest ones need
PROGRAM_LIMIT = 1 << 14  # limit of the RE2 instructions of all patterns of a request
SEARCH_WORK = 1 << 17  # limit of the cost of a search in a short text, see ``_search``
CACHED = 64  # cached automata of stop strings, and of patterns; each has the size limits above


@dataclass(frozen=True, slots=True)
class FoundStop:
    """A stop in the text. ``cut``, ``end``: byte offsets of its begin and end; ``matched``: its
    text."""

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
    """Compile a pattern by RE2. Raises ValueError if RE2 refuses the pattern."""
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
    """Compile all atoms into one RE2 set. Return its match function. Raises ValueError if RE2
    refuses an atom, because the numbers of later atoms would then be wrong."""
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
    """Return the compiled patterns and their automaton, cached. Raises ValueError."""
    made = _stop_patterns(texts)
    if isinstance(made, str):
        raise ValueError(made)
    return made


@lru_cache(maxsize=CACHED)
def _stop_patterns(texts: tuple[str, ...]) -> tuple[list[Any], StopAutomaton] | str:
    """Return the result of ``stop_patterns``, or its error as text, so that errors are cached."""
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
    """The patterns of one request, and the state of their automaton after its text."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._compiled, self._automaton = stop_patterns(texts)
        self._text = bytearray()
        self._reached = 0  # bits of the positions reached after the last whole character
        self._before = EDGE  # kind of the last byte
        self._pending = b""  # bytes of an incomplete character
        self._open = 0  # byte offset before which no future match begins
        self._live = 0  # sum, over the characters since ``_open``, of the positions reached
        self.cost = self._automaton.cost

    def feed(self, data: bytes) -> FoundStop | None:
        """Append ``data`` to the text. Return the first match to end, if any: the leftmost one of
        its pattern. Raises TooMuchWork."""
        self._text += data
        return self._search() if self._scan(data) else None

    def _scan(self, data: bytes) -> bool:
        """Advance the automaton over ``data``. Return True if a match ends in or after it."""
        moves, taken = self._automaton.moves, self._automaton.taken
        reached, before, pending = self._reached, self._before, self._pending
        at = len(self._text) - len(data)
        for byte in data:
            at += 1
            kind = KIND[byte]
            if pending and byte & 0xC0 != 0x80:  # the pending bytes are not a valid character
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
        """Return the match that ``_scan`` has reported. At worst, RE2 takes one step per byte and
        reached position. The limit grows with the text, so that two or three open matches at every
        byte never exceed it. Raises TooMuchWork."""
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
    """Searches the text of one generation for its stops while it is generated.

    Attributes:
        length: number of bytes of text so far.
        cost: limit of the operations per byte; 0 without patterns.

    Raises ValueError for a pattern that is invalid or costs too much.
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
        """Number of trailing bytes that may belong to a stop; after a stop was found, the number
        of bytes from its first byte on."""
        if self._hit is not None:
            return self.length - self._hit.cut
        strings = self._strings.depth[self._state] if self._strings else 0
        return max(strings, min(self.length, PATTERN_HOLD) if self._patterns else 0)

    def feed(self, data: bytes) -> FoundStop | None:
        """Append bytes to the text. Return the stop that ends first; among stops that end there,
        the longest. Raises TooMuchWork if a pattern matches, the search for its begin exceeds the
        limit, and no stop string ends in ``data``."""
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
