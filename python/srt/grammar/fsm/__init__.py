"""The compressed FSM: an automaton over characters as token masks of one vocabulary."""

from sglang.srt.grammar.fsm.choices import ChoicesGrammar
from sglang.srt.grammar.fsm.grammar import FsmGrammar
from sglang.srt.grammar.fsm.tokens import TokenTable

__all__ = ["ChoicesGrammar", "FsmGrammar", "TokenTable"]
