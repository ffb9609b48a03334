"""GuidanceGrammar and GuidanceMatcher: a CompiledGrammar and its Matcher by llguidance."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, TypeVar

import numpy as np
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.fsm.token_table import TokenTable
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.guidance.canonical_run import (
    FOLLOWING,
    LONG,
    certain,
    ends_inside,
    far_from_end,
)
from sglang.srt.grammar.guidance.guidance_tokenizer import TOKENIZERS
from sglang.srt.grammar.guidance.tag_rules import for_vocabulary
from sglang.srt.grammar.guidance.work_limits import (
    DEAD_END,
    POISONED,
    RULES,
    StepLimits,
    is_final,
    is_panic,
    limits,
    short,
)

NOT_CANONICAL = '%llguidance {"no_forcing": true}\n'
Run = tuple[list[int], int]
T = TypeVar("T")
NO_RUN: Run = ([], 0)
LOOSE: Run = ([], 1)  # text is forced, but its first token depends on what follows
PANICKED: Run = ([], 2)  # llguidance panics on a call for forced tokens here
MOST_PANICS = 8  # limit of the panics of one text; each costs a compilation and a replay
KNOWN_PANICS = 16  # limit of the states with a panic that a generation and its forks remember
_MASK: Callable[[Any], bytes] = methodcaller("compute_bitmask")
_FORCED: Callable[[Any], list[int]] = methodcaller("compute_ff_tokens")


@dataclass(slots=True)
class Root:
    """A matcher of llguidance before the first token. Its copies share its lexer, so a panic of one
    copy breaks the lexer for all copies: ``sound`` is False then."""

    inner: Any
    sound: bool = True


class GuidanceGrammar:
    """A compiled grammar. ``text``: a grammar in llguidance's Lark, from ``grammar_of``.

    The matchers share a lexer, which makes its states at their first use. If the lexer exceeds its
    limit, a matcher continues with a new lexer.

    Raises GrammarError if the grammar does not compile, or names a token that does not exist.
    """

    path = "llguidance"

    def __init__(
        self,
        text: str,
        vocabulary: Vocabulary,
        canonical: bool = True,
        step: StepLimits = RULES,
    ) -> None:
        self.vocabulary = vocabulary
        self.table = TokenTable.of(vocabulary)
        self.tokenizer, complete = TOKENIZERS.get(vocabulary)
        self.canonical = canonical and complete
        if self.canonical:
            self.table.prepare()
        self._text = for_vocabulary(text, vocabulary)
        if not self.canonical:
            self._text = NOT_CANONICAL + self._text
        self._step = step
        self._lock = threading.Lock()
        self._root = Root(self._compile())

    def matcher(self) -> GuidanceMatcher:
        return GuidanceMatcher(self, *self._begin())

    def replay(self, tokens: Sequence[int], afresh: bool = False) -> tuple[Root, Any]:
        """Return the root and a matcher of llguidance after ``tokens``, which may be in error.
        ``afresh``: with a new lexer, which later matchers share."""
        root, inner = self._begin(afresh)
        inner.try_consume_tokens(list(tokens))
        return root, inner

    def _begin(self, afresh: bool = False) -> tuple[Root, Any]:
        """Return the root and a copy of it. An unsound root is first replaced by a new one."""
        with self._lock:
            if afresh or not self._root.sound:
                self._root = Root(self._compile())
            return self._root, self._root.inner.deep_copy()

    def _compile(self) -> Any:
        from llguidance import LLMatcher

        inner = LLMatcher(self.tokenizer, self._text, log_level=0, limits=limits(self._step))
        if inner.is_error():
            raise GrammarError(f"grammar: {short(inner.get_error())}")
        return inner


class GuidanceMatcher:
    """The state of one generation in a grammar. Implements ``Matcher``.

    For forced text, llguidance returns the tokens that encode it whatever text follows: a *run*.
    While a generation follows a run, each mask allows only the run's next token. The run of a state
    is always computed before a token is accepted there. So a mask depends only on the accepted
    tokens.

    llguidance panics in rare states of free text with several ends, on a call for forced tokens or
    for a mask. A state whose forced tokens panic has no run; after more than MOST_PANICS such
    states the text ends. A panic for a mask ends the text at once. All forks share the known
    states, so that each state panics only once."""

    __slots__ = (
        "_accepted", "_copy", "_failure", "_grammar", "_panics", "_root", "_runs", "_tokens"
    )  # fmt: skip

    def __init__(
        self,
        grammar: GuidanceGrammar,
        root: Root,
        inner: Any,
        tokens: list[int] | None = None,
        runs: list[Run | None] | None = None,
    ) -> None:
        self._grammar = grammar
        self._root, self._copy = root, inner  # an LLMatcher made of the root
        self._tokens = tokens or []
        # For each state so far, its run and the index in the run; None: not computed yet.
        self._runs: list[Run | None] = runs or [None]
        self._failure = ""  # the error of ``inner``
        self._accepted = False  # True if the text was complete before that error
        self._panics: dict[tuple[Any, ...], str] = {}  # messages by call and tokens taken

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
        data = bytearray((self._call_once(_MASK) or b"")[:size].ljust(size, b"\0"))
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
        try:
            while len(found) < limit:
                if not all(ahead.advance(token) for token in run[at:]):
                    break
                run, at = ahead._run()
                if at >= len(run):
                    break
                found += run[at : at + limit - len(found)]
        except GrammarError:
            pass  # the tokens found so far are valid; the mask after them raises the error again
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
            elif ahead._runs[-1] is PANICKED:
                break
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
        return 0, []  # only the compressed FSM has string-level jumps

    def rollback(self, count: int) -> None:
        if not 0 <= count <= len(self._tokens):
            raise ValueError(f"rollback of {count} tokens; {len(self._tokens)} were taken.")
        if count == 0:
            return
        del self._tokens[-count:], self._runs[-count:]
        if self._failure or not self._inner.rollback(count):
            self._replay()

    def fork(self) -> GuidanceMatcher:
        inner = self._inner.deep_copy()
        tokens, runs = self._tokens.copy(), self._runs.copy()
        other = GuidanceMatcher(self._grammar, self._root, inner, tokens, runs)
        other._failure, other._accepted = self._failure, self._accepted
        other._panics = self._panics
        return other

    # -- llguidance ------------------------------------------------------------------------------

    @property
    def _inner(self) -> Any:
        """The LLMatcher. It is made anew after a panic of another matcher broke the lexer."""
        if not self._root.sound and not self._failure:
            self._replay()
        return self._copy

    def _run(self) -> Run:
        """Return the run at this state, and the index of the next token in the run."""
        run = self._runs[-1]
        if run is None:
            run = NO_RUN
            if self._grammar.canonical and not self._failure and not self._inner.is_stopped():
                run = self._new_run()
            self._runs[-1] = run
        return run

    def _new_run(self) -> Run:
        """Compute the run that begins at this state."""
        found = self._forced()
        if found is None:
            return PANICKED
        ends = self._grammar.vocabulary.eos
        stop = next((at for at, token in enumerate(found) if token in ends), len(found))
        if stop == 0:
            return NO_RUN
        kept = self._certain(found[:stop])
        return (kept, 0) if kept else LOOSE

    def _certain(self, run: list[int]) -> list[int]:
        """Return the leading tokens of a run that are canonical whatever text follows."""
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
        """Return the mask of all tokens that spell a part of the forced text, or extend past it by
        text that may follow."""
        forced = bytes(self._inner.compute_ff_bytes())
        ahead, table = self._behind(forced), self._grammar.table
        found = table.beginning(forced)
        for rest in table.beyond(forced, self._following(ahead) or ()):
            tokens = self._grammar.tokenizer.tokenize_bytes(rest)
            if ahead.validate_tokens(tokens) == len(tokens):
                found += table.numbers[forced + rest]
        return table.row(np.array(found, dtype=np.int64), False).mask(table.words, table.eos)

    def _following(self, ahead: Any) -> list[bytes] | None:
        """Return the texts of the tokens that a matcher allows; None for more than FOLLOWING."""
        bits = np.unpackbits(np.frombuffer(ahead.compute_bitmask(), np.uint8), bitorder="little")
        table = self._grammar.table
        found = [token for token in np.flatnonzero(bits).tolist() if token < len(table.tokens)]
        if ahead.is_error() or len(found) > FOLLOWING:
            return None
        return [table.tokens[token] for token in found if table.tokens[token]]

    def _behind(self, forced: bytes) -> Any:
        """Return a copy of llguidance's matcher after the forced text."""
        ahead = self._inner.deep_copy()
        ahead.try_consume_tokens(self._grammar.tokenizer.tokenize_bytes(forced))
        return ahead

    def _forced(self) -> list[int] | None:
        """Return llguidance's forced tokens; None if it panics. Raises GrammarError."""
        try:
            return self._call_once(_FORCED) or []
        except GrammarError:
            if not is_panic(self._failure) or self._runs.count(PANICKED) >= MOST_PANICS:
                raise
        if self._copy.is_error():
            self._replay()
        self._failure = ""
        return None

    def _rest(self) -> list[int]:
        """Return likely tokens of the forced text ahead. The last token may prove too short."""
        forced = bytes(self._inner.compute_ff_bytes())
        return list(self._grammar.tokenizer.tokenize_bytes(forced)) if forced else []

    def _call_once(self, call: Callable[[Any], T]) -> T | None:
        """Call as ``_call`` does, but raise at once if the call is known to panic at this state."""
        if self._panics and not self._failure:
            self._failure = self._panics.get((call, *self._tokens), "")
        try:
            return self._call(call)
        except GrammarError:
            if is_panic(self._failure):
                state = (call, *self._tokens)
                self._panics[state] = self._failure
                if len(self._panics) > KNOWN_PANICS:
                    del self._panics[next(iter(self._panics))]
            raise

    def _call(self, call: Callable[[Any], T]) -> T | None:
        """Call llguidance's matcher. Returns None at a dead end.

        Raises GrammarError, also at every later call, if a limit of the step is exceeded. If a
        limit of the lexer is exceeded, the matcher continues with a new lexer.
        """
        if self._failure:
            self._raise()
            return None
        self._accepted = bool(self._inner.is_accepting())
        found = call(self._inner)
        if self._met_error() and not is_final(self._failure) and not is_panic(self._failure):
            self._replay(afresh=self._root.sound)
            self._accepted = bool(self._inner.is_accepting())
            found = call(self._inner)
            self._met_error()
        if not self._failure:
            return found
        self._raise()
        return None

    def _met_error(self) -> bool:
        """Return True if llguidance's matcher is in error, and record the error."""
        if not self._copy.is_error():
            return False
        self._failure = self._copy.get_error()
        if is_panic(self._failure) or POISONED in self._failure:
            self._root.sound = False
        return True

    def _raise(self) -> None:
        """Raise the matcher's error unless it is a dead end."""
        if not self._failure.startswith(DEAD_END):
            raise GrammarError(f"grammar: {short(self._failure)}")

    def _replay(self, afresh: bool = False) -> None:
        """Replace llguidance's matcher by one without an error, at the same state. Raises
        GrammarError."""
        self._root, self._copy = self._grammar.replay(self._tokens, afresh)
        self._failure = ""
        if self._met_error() and not self._root.sound:
            self._root, self._copy = self._grammar.replay(self._tokens)
            self._failure = ""
            self._met_error()
        if self._failure:
            raise GrammarError(f"grammar: {short(self._failure)}")
