"""FsmGrammar: an automaton as token masks, and the matchers that walk it."""

from __future__ import annotations

from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.automaton import Automaton
from sglang.srt.grammar.fsm.canonical import Canonical
from sglang.srt.grammar.fsm.masks import Masks
from sglang.srt.grammar.fsm.matcher import FsmMatcher
from sglang.srt.grammar.fsm.tokens import TokenTable


class FsmGrammar:
    """Satisfies ``Grammar``. With ``canonical``, narrow masks keep only tokens of the canonical
    tokenisation of some text of the language."""

    path = "fsm"

    def __init__(
        self, automaton: Automaton, vocabulary: Vocabulary, canonical: bool = True
    ) -> None:
        self.masks = Masks(automaton, TokenTable.of(vocabulary))
        self.canonical = Canonical(self.masks) if canonical else None

    @property
    def nbytes(self) -> int:
        """Of the arrays that only this grammar holds; the masks are kept by its table."""
        return self.masks.nbytes

    def matcher(self) -> FsmMatcher:
        return FsmMatcher(self.masks, self.canonical)
