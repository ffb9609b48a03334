"""The methods of ``select`` under upstream's names."""

from sglang.ir.choices import (
    ChoicesMethod,
    Decision,
    constrained_decoding,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)

ChoicesSamplingMethod = ChoicesMethod
ChoicesDecision = Decision

__all__ = [
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "constrained_decoding",
    "greedy_token_selection",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
]
