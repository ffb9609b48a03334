"""FsmGrammar and FsmMatcher: an automaton as token masks, and the state of one generation in it."""

from __future__ import annotations

from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.character_dfa import CharacterDfa
from sglang.srt.grammar.fsm.canonical import Canonical
from sglang.srt.grammar.fsm.mask_cache import MaskRow
from sglang.srt.grammar.fsm.state_masks import START, State, StateMasks
from sglang.srt.grammar.fsm.token_table import TokenTable, difference

REWRITTEN = 1024  # limit of the characters of forced text that one step appends
RETOKENIZED = 4096  # limit of the bytes of earlier text that one step tokenizes again


class FsmGrammar:
    """Implements ``CompiledGrammar``. With ``canonical``, masks of few tokens allow only tokens of
    the canonical tokenisation of some text of the language."""

    path = "fsm"

    def __init__(
        self, automaton: CharacterDfa, vocabulary: Vocabulary, canonical: bool = True
    ) -> None:
        self.masks = StateMasks(automaton, TokenTable.of(vocabulary))
        self.canonical = Canonical(self.masks) if canonical else None

    @property
    def nbytes(self) -> int:
        """Bytes of this grammar's arrays, without the masks, which the table stores."""
        return self.masks.nbytes

    def matcher(self) -> FsmMatcher:
        return FsmMatcher(self.masks, self.canonical)


class FsmMatcher:
    """Implements ``Matcher``. All states since the start are kept for ``rollback``.

    ``_heads``: for each state, the index of the token at which ``head`` begins (see ``canonical``).
    The prompt's end counts as a boundary.
    """

    __slots__ = ("_canonical", "_heads", "_masks", "_states", "_tokens")

    def __init__(self, masks: StateMasks, canonical: Canonical | None) -> None:
        self._masks, self._canonical = masks, canonical
        self._states: list[State] = [START]
        self._heads = [0]
        self._tokens: list[int] = []

    @property
    def accepting(self) -> bool:
        return self._masks.accepting(self._states[-1])

    @property
    def finished(self) -> bool:
        return self._masks.ended(self._states[-1])

    def mask(self) -> bytes:
        table = self._masks.table
        return self._row().mask(table.words, table.eos)

    def advance(self, token: int) -> bool:
        table = self._masks.table
        data = table.tokens[token] if 0 <= token < len(table.tokens) else b""
        state = self._masks.walk(self._states[-1], data) if data else None
        if state is None:
            return False
        head = self._heads[-1]
        if self._tokens:
            left = table.tokens[self._tokens[-1]][-1]
            if table.boundary[left << 8 | data[0]]:
                head = len(self._tokens)
        self._heads.append(head)
        self._states.append(state)
        self._tokens.append(token)
        return True

    def forced(self, limit: int) -> list[int]:
        found = self._force(limit)
        self.rollback(len(found))
        return found

    def draft(self, limit: int) -> list[int]:
        if self._row().ids is None:
            return []
        found = self._force(limit)
        rest = b"" if len(found) == limit else self._masks.run(self._states[-1])[0]
        if rest:
            head, table = self._head(), self._masks.table
            whole = table.spell(table.text(head) + rest)
            if whole[: len(head)] == head:
                found += self._follow(whole[len(head) :][: limit - len(found)])
        self.rollback(len(found))
        return found

    def rewrite(self) -> tuple[int, list[int]]:
        rest = self.string_forced()
        if not rest or len(self._tokens) - self._heads[-1] > RETOKENIZED:
            return 0, []
        head, table = self._head(), self._masks.table
        before = table.text(head)
        if len(before) > RETOKENIZED:
            return 0, []
        return difference(head, table.spell(before + rest))

    def string_forced(self) -> bytes:
        """Return the bytes that must follow, up to ``REWRITTEN`` characters."""
        return self._masks.run(self._states[-1], REWRITTEN)[0]

    def rollback(self, count: int) -> None:
        if count:
            del self._states[-count:]
            del self._heads[-count:]
            del self._tokens[-count:]

    def fork(self) -> FsmMatcher:
        other = FsmMatcher(self._masks, self._canonical)
        other._states = self._states.copy()
        other._heads = self._heads.copy()
        other._tokens = self._tokens.copy()
        return other

    def _head(self) -> list[int]:
        return self._tokens[self._heads[-1] :]

    def _row(self) -> MaskRow:
        row = self._masks.row(self._states[-1])
        if row.ids is None or self._canonical is None:  # wide rows are not made canonical
            return row
        return self._canonical.row(self._states[-1], tuple(self._head()))

    def _force(self, limit: int) -> list[int]:
        """Advance while only one token is allowed, at most ``limit`` times. Return the tokens."""
        found: list[int] = []
        eos = len(self._masks.table.eos)
        while len(found) < limit:
            token = self._row().sole(eos)
            if token is None or not self.advance(token):
                break
            found.append(token)
        return found

    def _follow(self, tokens: list[int]) -> list[int]:
        """Advance over the leading ``tokens`` that are allowed, and return these tokens."""
        found: list[int] = []
        for token in tokens:
            if not self._row().allows(token) or not self.advance(token):
                break
            found.append(token)
        return found
