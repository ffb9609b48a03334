"""GuidanceMatcher: where one generation stands in a grammar of llguidance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from srt.grammar.base import GrammarError
from srt.grammar.guidance.certain import FOLLOWING, LONG, certain, ends_inside, far_from_end
from srt.grammar.guidance.checking import DEAD_END, short

if TYPE_CHECKING:
    from srt.grammar.guidance.grammar import GuidanceGrammar

Run = tuple[list[int], int]
NO_RUN: Run = ([], 0)
LOOSE: Run = ([], 1)  # text is forced, but its first token depends on what follows


class GuidanceMatcher:
    """A Matcher.

    Where the grammar forces text, llguidance says which tokens write it whatever follows: a *run*.
    While a generation keeps to a run its masks are single tokens. The run begun at a state belongs
    to the state: it is found before a token is taken there, asked for or not, so that a mask
    depends on the tokens taken and on nothing else.
    """

    __slots__ = ("_grammar", "_inner", "_runs", "_tokens")

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

    @property
    def accepting(self) -> bool:
        return bool(self._inner.is_accepting())

    @property
    def finished(self) -> bool:
        return bool(self._inner.is_stopped()) and bool(self._inner.is_accepting())

    def mask(self) -> bytes:
        vocabulary = self._grammar.vocabulary
        run, at = self._run()
        if at < len(run):
            data = bytearray(4 * vocabulary.words)
            data[run[at] >> 3] = 1 << (run[at] & 7)
            return bytes(data)
        if self._runs[-1] is LOOSE:
            return self._spellings()
        data = bytearray(self._bits())
        accepting = self._inner.is_accepting()
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
        if self._inner.try_consume_tokens([token]) != 1:
            if not self._inner.is_error():
                return False
            self._restore()
            if self._inner.try_consume_tokens([token]) != 1:
                return self._refused()
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
        if not self._inner.rollback(count):
            self._restore()

    def fork(self) -> GuidanceMatcher:
        inner = self._inner.deep_copy()
        return GuidanceMatcher(self._grammar, inner, self._tokens.copy(), self._runs.copy())

    # -- llguidance ------------------------------------------------------------------------------

    def _run(self) -> Run:
        """The run at this state, and how far in it."""
        run = self._runs[-1]
        if run is None:
            run = NO_RUN
            if self._grammar.canonical and not self._inner.is_stopped():
                found = self._inner.compute_ff_tokens()
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

    def _bits(self) -> bytes:
        """llguidance's mask. A matcher that met an error stays in it, so it is replaced."""
        size = 4 * self._grammar.vocabulary.words  # llguidance's may have one word more
        data = self._inner.compute_bitmask()
        if not self._inner.is_error():
            return bytes(data[:size])
        dead = self._inner.get_error().startswith(DEAD_END)
        self._restore()
        if not dead:
            data = self._inner.compute_bitmask()
            if not self._inner.is_error():
                return bytes(data[:size])
            message = self._inner.get_error()
            self._restore()
            if not message.startswith(DEAD_END):
                raise GrammarError(f"grammar: {short(message)}")
        return bytes(size)

    def _rest(self) -> list[int]:
        """Tokens that may write the forced text ahead, the last of them perhaps cut short."""
        forced = bytes(self._inner.compute_ff_bytes())
        return list(self._grammar.tokenizer.tokenize_bytes(forced)) if forced else []

    def _restore(self) -> None:
        """A new matcher of llguidance at the same state. Raises GrammarError."""
        self._inner = self._grammar.replay(self._tokens)
        if self._inner.is_error():
            raise GrammarError(f"grammar: {short(self._inner.get_error())}")

    def _refused(self) -> bool:
        """False; raises GrammarError where the token was refused for a limit."""
        if self._inner.is_error():
            message = self._inner.get_error()
            self._restore()
            raise GrammarError(f"grammar: {short(message)}")
        return False
