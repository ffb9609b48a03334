"""The compressed FSM: an automaton over characters as token masks of one vocabulary."""

from srt.grammar.fsm.choices import ChoicesGrammar
from srt.grammar.fsm.grammar import FsmGrammar
from srt.grammar.fsm.tokens import TokenTable

__all__ = ["ChoicesGrammar", "FsmGrammar", "TokenTable"]
