"""GuidanceGrammar: a grammar of llguidance, compiled for a vocabulary."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.fsm.token_table import TokenTable
from sglang.srt.grammar.guidance.checking import RULES, StepLimits, limits, short
from sglang.srt.grammar.guidance.matcher import GuidanceMatcher
from sglang.srt.grammar.guidance.tag_rules import for_vocabulary
from sglang.srt.grammar.guidance.tokens import TOKENIZERS
from sglang.srt.grammar.protocol import GrammarError

NOT_CANONICAL = '%llguidance {"no_forcing": true}\n'


@dataclass(slots=True)
class Root:
    """A matcher of llguidance before the first token, and the lexer that its copies share. A panic
    of one copy breaks the lexer for all: ``sound`` is False then."""

    inner: Any
    sound: bool = True


class GuidanceGrammar:
    """``text`` is Lark as llguidance reads it, which ``grammar_of`` writes.

    The matchers share a lexer, whose states are made when first met. Where it outgrows its limit a
    matcher goes on with one of its own.

    Raises GrammarError where the grammar does not compile, or names a token that there is not.
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
        """The root and a matcher of llguidance after ``tokens``, which may be in error. ``afresh``:
        with a lexer of its own, which the matchers made from now on share."""
        root, inner = self._begin(afresh)
        inner.try_consume_tokens(list(tokens))
        return root, inner

    def _begin(self, afresh: bool = False) -> tuple[Root, Any]:
        """The root and a copy of it. A root that is not sound is compiled again, once for all."""
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
