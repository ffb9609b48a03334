"""GuidanceMatcher: where one generation stands in a grammar of llguidance."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from srt.grammar.base import GrammarError
from srt.grammar.guidance.certain import FOLLOWING, LONG, certain, ends_inside, far_from_end
from srt.grammar.guidance.checking import DEAD_END, is_final, short

if TYPE_CHECKING:
    from srt.grammar.guidance.grammar import GuidanceGrammar

Run = tuple[list[int], int]
T = TypeVar("T")
NO_RUN: Run = ([], 0)
PANIC = "panic"
MOST_PANICS = 8  # in one generation: each costs a compilation and a walk over its tokens
LOOSE: Run = ([], 1)  # text is forced, but its first token depends on what follows
_MASK: Callable[[Any], bytes] = methodcaller("compute_bitmask")
_FORCED: Callable[[Any], list[int]] = methodcaller("compute_ff_tokens")


class GuidanceMatcher:
    """A Matcher.

    Where the grammar forces text, llguidance says which tokens write it whatever follows: a *run*.
    While a generation keeps to a run its masks are single tokens. The run begun at a state belongs
    to the state: it is found before a token is taken there, asked for or not, so that a mask
    depends on the tokens taken and on nothing else.
    """

    __slots__ = ("_accepted", "_failure", "_grammar", "_inner", "_panics", "_runs", "_tokens")

    def __init__(
        self,
        grammar: GuidanceGrammar,
        inner: Any,
        tokens: list[int] | None = None,
        runs: list[Run | None] | None = None,
    ) -> None:
        self._grammar = grammar
        self._inner = inner  # an LLMatcher
        self._tokens = tokens or []
        # For each state passed, the run it is in and how far; None: not looked for yet.
        self._runs: list[Run | None] = runs or [None]
        self._failure = ""  # the error that ``inner`` has met
        self._accepted = False  # whether the text was whole before that
        self._panics = 0  # of llguidance, when it was asked for forced tokens

    @property
    def accepting(self) -> bool:
        return self._accepted if self._failure else bool(self._inner.is_accepting())

    @property
    def finished(self) -> bool:
        return bool(self._inner.is_stopped()) and self.accepting

    def mask(self) -> bytes:
        vocabulary = self._grammar.vocabulary
        run, at = self._run()
        if at < len(run):
            data = bytearray(4 * vocabulary.words)
            data[run[at] >> 3] = 1 << (run[at] & 7)
            return bytes(data)
        if self._runs[-1] is LOOSE and not self._failure:
            return self._spellings()
        size = 4 * vocabulary.words  # llguidance's may have one word more
        data = bytearray((self._call(_MASK) or b"")[:size].ljust(size, b"\0"))
        accepting = self.accepting
        for token in vocabulary.eos:
            if accepting:
                data[token >> 3] |= 1 << (token & 7)
            else:
                data[token >> 3] &= ~(1 << (token & 7))
        return bytes(data)

    def advance(self, token: int) -> bool:
        if not 0 <= token < self._grammar.vocabulary.size:
            return False
        if token in self._grammar.vocabulary.eos:
            return False
        run, at = self._run()
        if self._call(lambda inner: inner.try_consume_tokens([token])) != 1:
            return False
        self._tokens.append(token)
        kept = at + 1 < len(run) and run[at] == token
        self._runs.append((run, at + 1) if kept else None)
        return True

    def forced(self, limit: int) -> list[int]:
        run, at = self._run()
        found = run[at : at + limit]
        if not found or len(found) == limit:
            return found
        ahead = self.fork()
        while found and len(found) < limit:
            if not all(ahead.advance(token) for token in run[at:]):
                break
            run, at = ahead._run()
            if at == len(run):
                break
            found += run[at : at + limit - len(found)]
        return found

    def draft(self, limit: int) -> list[int]:
        found: list[int] = []
        ahead = self.fork()
        rest: list[int] = []
        while len(found) < limit:
            run, at = ahead._run()
            if at < len(run):
                token, rest = run[at], []
            elif rest:
                token = rest.pop()
            else:
                rest = ahead._rest()[::-1]
                if not rest:
                    break
                token = rest.pop()
            if not ahead.advance(token):
                break
            found.append(token)
        return found

    def rewrite(self) -> tuple[int, list[int]]:
        return 0, []  # the string-level jump is that of the compressed FSM

    def rollback(self, count: int) -> None:
        if not 0 <= count <= len(self._tokens):
            raise ValueError(f"rollback of {count} tokens; {len(self._tokens)} were taken.")
        if count == 0:
            return
        del self._tokens[-count:], self._runs[-count:]
        if self._failure or not self._inner.rollback(count):
            self._replay(afresh=False)

    def fork(self) -> GuidanceMatcher:
        inner = self._inner.deep_copy()
        other = GuidanceMatcher(self._grammar, inner, self._tokens.copy(), self._runs.copy())
        other._failure, other._accepted = self._failure, self._accepted
        other._panics = self._panics
        return other

    # -- llguidance ------------------------------------------------------------------------------

    def _run(self) -> Run:
        """The run at this state, and how far in it."""
        run = self._runs[-1]
        if run is None:
            run = NO_RUN
            if self._grammar.canonical and not self._failure and not self._inner.is_stopped():
                found = self._forced()
                ends = self._grammar.vocabulary.eos
                stop = next((at for at, token in enumerate(found) if token in ends), len(found))
                if found[:stop]:
                    kept = self._certain(found[:stop])
                    run = (kept, 0) if kept else LOOSE
            self._runs[-1] = run
        return run

    def _certain(self, run: list[int]) -> list[int]:
        """The tokens of a run that are canonical whatever follows."""
        forced = bytes(self._inner.compute_ff_bytes()) if run else b""
        if not ends_inside(forced):
            return run
        if len(forced) > LONG:
            return run[: far_from_end(self._grammar.table, run, forced)]
        ahead = self._behind(forced)
        following = self._following(ahead)
        if following is None:
            return run
        texts = [*following, b""] if ahead.is_accepting() else following
        return run[: certain(self._grammar.table, self._tokens, run, forced, texts)]

    def _spellings(self) -> bytes:
        """The mask of all tokens that write forced text, or it and what may follow it."""
        forced = bytes(self._inner.compute_ff_bytes())
        ahead, table = self._behind(forced), self._grammar.table
        found = table.beginning(forced)
        for rest in table.beyond(forced, self._following(ahead) or ()):
            tokens = self._grammar.tokenizer.tokenize_bytes(rest)
            if ahead.validate_tokens(tokens) == len(tokens):
                found += table.numbers[forced + rest]
        return table.row(np.array(found, dtype=np.int64), False).mask(table.words, table.eos)

    def _following(self, ahead: Any) -> list[bytes] | None:
        """What the tokens that a matcher allows write; None where there are more than FOLLOWING."""
        bits = np.unpackbits(np.frombuffer(ahead.compute_bitmask(), np.uint8), bitorder="little")
        table = self._grammar.table
        found = [token for token in np.flatnonzero(bits).tolist() if token < len(table.tokens)]
        if ahead.is_error() or len(found) > FOLLOWING:
            return None
        return [table.tokens[token] for token in found if table.tokens[token]]

    def _behind(self, forced: bytes) -> Any:
        """A copy of llguidance's matcher that has taken the forced text."""
        ahead = self._inner.deep_copy()
        ahead.try_consume_tokens(self._grammar.tokenizer.tokenize_bytes(forced))
        return ahead

    def _forced(self) -> list[int]:
        """The tokens that llguidance says are forced; none where it panics, which it does in rare
        states of free text that ends in several ways. Raises GrammarError."""
        try:
            return self._call(_FORCED) or []
        except GrammarError:
            if not self._failure.startswith(PANIC) or self._panics >= MOST_PANICS:
                raise
            self._panics += 1
            self._replay(afresh=True)
            return []

    def _rest(self) -> list[int]:
        """Tokens that may write the forced text ahead, the last of them perhaps cut short."""
        forced = bytes(self._inner.compute_ff_bytes())
        return list(self._grammar.tokenizer.tokenize_bytes(forced)) if forced else []

    def _call(self, call: Callable[[Any], T]) -> T | None:
        """What ``call`` of llguidance's matcher returns; None at a dead end. Raises GrammarError
        where a limit is exceeded, now and at every later call: a matcher of llguidance that met an
        error stays in it. Only where that was not of the step, but of the lexer, it goes on, with
        a new one.
        """
        if self._failure:
            self._raise()
            return None
        self._accepted = bool(self._inner.is_accepting())
        found = call(self._inner)
        if self._inner.is_error() and not is_final(self._inner.get_error()):
            self._replay(afresh=True)
            found = call(self._inner)
        if not self._inner.is_error():
            return found
        self._failure = self._inner.get_error()
        self._raise()
        return None

    def _raise(self) -> None:
        """The error that was met, unless it was a dead end."""
        if not self._failure.startswith(DEAD_END):
            raise GrammarError(f"grammar: {short(self._failure)}")

    def _replay(self, afresh: bool) -> None:
        """A matcher of llguidance that is not in error, at the same state. Raises GrammarError."""
        self._inner = self._grammar.replay(self._tokens, afresh)
        self._failure = ""
        if self._inner.is_error():
            self._failure = self._inner.get_error()
            raise GrammarError(f"grammar: {short(self._failure)}")
