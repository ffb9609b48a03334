"""The compressed FSM: an automaton over characters as token masks of one vocabulary."""

from sglang.srt.grammar.fsm.choices_grammar import ChoicesGrammar
from sglang.srt.grammar.fsm.fsm_grammar import FsmGrammar
from sglang.srt.grammar.fsm.token_table import TokenTable

__all__ = ["ChoicesGrammar", "FsmGrammar", "TokenTable"]
