"""OutlinesGrammar: a CompiledGrammar by outlines-core, for ``--grammar-backend outlines``. The full
index, of states times tokens, is built before the first mask.

outlines-core 0.2.14 drops tokens that lead from a final state to a state that is not final. So END,
a character that no text contains, is appended to a pattern if a legal text is a prefix of another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from sglang.ir.constraint import Constraint
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.character_dfa import DEAD, CharacterDfa
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.regex import BeyondBudget, Budget, compile_regex
from sglang.srt.grammar.regex.unparse import portable
from sglang.srt.grammar.schema import Refusal, compile_schema, whitespace_pattern
from sglang.srt.grammar.schema.outlines_subset import plain

MOST_STATES = 1000
MOST_WORK = 1 << 25  # states times tokens: some 30 s
MASKS = 256  # cached masks per grammar
END = "\U0010ffff"  # a noncharacter; tokens with any character of its plane are excluded
LEAD = END.encode()[:1]
BUDGET = Budget(pattern=256 << 10, dfa=4 * MOST_STATES)


def pattern_of(constraint: Constraint, whitespace: str) -> str:
    """Return the pattern of a regex or JSON schema in the dialect of outlines-core.

    Raises GrammarError for unsupported constraints, and if the index would be too large.
    """
    if constraint.kind == "regex":
        pattern = portable(constraint.text)
    elif constraint.kind == "json_schema":
        space = whitespace if constraint.whitespace is None else constraint.whitespace
        pattern = _schema_pattern(constraint.text, space)
    else:
        raise GrammarError(
            f"outlines-core does not support constraints of kind {constraint.kind!r}; "
            "use --grammar-backend auto."
        )
    _automaton(pattern, constraint.kind)
    return pattern


def _schema_pattern(text: str, space: str) -> str:
    from outlines_core.json_schema import build_regex_from_schema

    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"json_schema is not JSON: {error}") from None
    whitespace_pattern(space)
    compile_schema(schema)
    simple = plain(schema)
    try:
        return str(build_regex_from_schema(json.dumps(simple), space))
    except (ValueError, TypeError) as error:
        raise Refusal("", f"outlines-core refuses it: {error}") from None


def _automaton(pattern: str, kind: str) -> CharacterDfa:
    """Return our automaton of the pattern, whose number of states predicts that of the index.
    Raises GrammarError if the automaton has too many states."""
    ours = re.sub(r"\\u\{([0-9a-f]+)\}", lambda found: f"\\U{int(found[1], 16):08x}", pattern)
    try:
        found = compile_regex(ours, BUDGET)
    except BeyondBudget as error:
        raise GrammarError(
            f"{kind}: outlines-core would take long to index it ({error}); "
            "use --grammar-backend auto."
        ) from None
    if found.states > MOST_STATES:
        raise GrammarError(
            f"{kind} has {found.states} states; outlines-core indexes at most {MOST_STATES} here. "
            "Use --grammar-backend auto."
        )
    return found


class OutlinesGrammar:
    """Implements CompiledGrammar. ``pattern``: from ``pattern_of``. Raises GrammarError."""

    path = "outlines"

    def __init__(self, pattern: str, vocabulary: Vocabulary) -> None:
        from outlines_core import Index

        automaton = _automaton(pattern, "regex")
        work = automaton.states * len(vocabulary.tokens)
        if work > MOST_WORK:
            raise GrammarError(
                f"regex: states times tokens are {work}; outlines-core indexes at most "
                f"{MOST_WORK} here. Use --grammar-backend auto."
            )
        self.vocabulary = vocabulary
        goes_on = bool((automaton.next[automaton.final] != DEAD).any())
        self._end = vocabulary.size + 1 if goes_on else None
        whole = f"(?:{pattern}){END}" if goes_on else pattern
        try:
            self.index: Any = Index(whole, _outlines_vocabulary(vocabulary))
        except ValueError as error:
            raise GrammarError(f"regex: outlines-core refuses it: {error}") from None
        self._masks: dict[int, bytes] = {}
        self._allowed: dict[int, tuple[int, ...]] = {}

    def matcher(self) -> OutlinesMatcher:
        return OutlinesMatcher(self, [self.index.get_initial_state()])

    def final(self, state: int) -> bool:
        """Return True if the text may end in a state."""
        if self._end is None:
            return bool(self.index.is_final_state(state))
        after = self.index.get_next_state(state, self._end)
        return after is not None and bool(self.index.is_final_state(after))

    def allowed(self, state: int) -> tuple[int, ...]:
        """Return the tokens allowed in a state, without end tokens."""
        found = self._allowed.get(state)
        if found is None:
            tokens = self.index.get_allowed_tokens(state) or ()
            found = tuple(token for token in tokens if token < self.vocabulary.size)
            self._allowed[state] = found
        return found

    def mask(self, state: int) -> bytes:
        found = self._masks.get(state)
        if found is None:
            ends = self.vocabulary.eos if self.final(state) else ()
            found = _bits((*self.allowed(state), *ends), self.vocabulary.words)
            if len(self._masks) >= MASKS:
                self._masks.pop(next(iter(self._masks)))
            self._masks[state] = found
        return found


class OutlinesMatcher:
    """Implements Matcher. ``_states``: the index's states so far, the current one last."""

    __slots__ = ("_grammar", "_states")

    def __init__(self, grammar: OutlinesGrammar, states: list[int]) -> None:
        self._grammar = grammar
        self._states = states

    @property
    def accepting(self) -> bool:
        return self._grammar.final(self._states[-1])

    @property
    def finished(self) -> bool:
        return self.accepting and not self._grammar.allowed(self._states[-1])

    def mask(self) -> bytes:
        return self._grammar.mask(self._states[-1])

    def advance(self, token: int) -> bool:
        vocabulary = self._grammar.vocabulary
        if token in vocabulary.eos or not 0 <= token < vocabulary.size:
            return False
        after = self._grammar.index.get_next_state(self._states[-1], token)
        if after is None:
            return False
        self._states.append(after)
        return True

    def forced(self, limit: int) -> list[int]:
        found: list[int] = []
        state = self._states[-1]
        while len(found) < limit and not self._grammar.final(state):
            allowed = self._grammar.allowed(state)
            if len(allowed) != 1:
                break
            found.append(allowed[0])
            state = self._grammar.index.get_next_state(state, allowed[0])
        return found

    def draft(self, limit: int) -> list[int]:
        return self.forced(limit)

    def rewrite(self) -> tuple[int, list[int]]:
        return 0, []  # only the compressed FSM has string-level jumps

    def rollback(self, count: int) -> None:
        if not 0 <= count < len(self._states):
            raise ValueError(f"rollback of {count} tokens; {len(self._states) - 1} were taken.")
        del self._states[len(self._states) - count :]

    def fork(self) -> OutlinesMatcher:
        return OutlinesMatcher(self._grammar, self._states.copy())


def _outlines_vocabulary(vocabulary: Vocabulary) -> Any:
    """Return the plain tokens and END, with the last id; the library's end token is not used."""
    from outlines_core import Vocabulary as Theirs

    out = {*vocabulary.special, *vocabulary.eos}
    ids: dict[bytes, list[int]] = {}
    for token, data in enumerate(vocabulary.tokens):
        if data and token not in out and LEAD not in data:
            ids.setdefault(bytes(data), []).append(token)
    ids[END.encode()] = [vocabulary.size + 1]
    return Theirs(vocabulary.size, ids)


def _bits(tokens: Sequence[int], words: int) -> bytes:
    data = bytearray(4 * words)
    for token in tokens:
        data[token >> 3] |= 1 << (token & 7)
    return bytes(data)
