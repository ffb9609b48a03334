"""Choices: which option a select takes, decided from log-probabilities.

The backend scores every option as the continuation of the same prompt; a method is a function from
these scores to a Decision. Token entries are ``[logprob, token_id, text]`` as the native interface
gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Entry = Sequence[Any]


@dataclass(frozen=True)
class OptionScores:
    """Log-probabilities of each option, index by index.

    Attributes:
        options: the texts.
        tokens: entries of the option's tokens given the prompt, from the first token at which any
            option's tokenization leaves the prompt's own (token healing): all options are scored
            from the same context.
        output: log-probabilities after the option, where the backend gave them.
        unconditional: entries of the same tokens without the prompt, if the method needs them.
    """

    options: Sequence[str]
    tokens: Sequence[Sequence[Entry]]
    output: Sequence[Any] = ()
    unconditional: Sequence[Sequence[Entry]] = ()

    def logprobs(self, index: int) -> list[float]:
        """Log-probabilities by token; a first token has none and counts as certain."""
        return [_value(entry) for entry in self.tokens[index]]


@dataclass(frozen=True)
class Decision:
    """The option taken and what it was decided on."""

    text: str
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ChoicesMethod:
    """A named rule by which ``select`` decides among its options.

    Calling it takes the options' scores and returns the decision.

    Attributes:
        unconditional: the rule needs the options' log-probabilities without the prompt as well.
        generates: no option is scored; a runtime generates text constrained to the options.
    """

    name: str
    decide: Callable[[OptionScores], Decision]
    unconditional: bool = False
    generates: bool = False

    def __call__(self, scores: OptionScores) -> Decision:
        return self.decide(scores)

    def __repr__(self) -> str:
        return self.name


def _value(entry: Entry) -> float:
    return 0.0 if entry[0] is None else float(entry[0])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _argmax(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _meta(scores: OptionScores, **more: Any) -> dict[str, Any]:
    means = [_mean(scores.logprobs(i)) for i in range(len(scores.options))]
    return {
        "normalized_prompt_logprobs": means,
        "input_token_logprobs": [list(entries) for entries in scores.tokens],
        "output_token_logprobs": list(scores.output),
        **more,
    }


def _by_length(scores: OptionScores) -> Decision:
    meta = _meta(scores)
    return Decision(scores.options[_argmax(meta["normalized_prompt_logprobs"])], meta)


def _greedy(scores: OptionScores) -> Decision:
    """Follow the options token by token, as greedy decoding restricted to them would.

    A row that has ended goes on with its own mean, so that an option which begins another one can
    still win.
    """
    rows = [scores.logprobs(i) for i in range(len(scores.options))]
    width = max(len(row) for row in rows)
    matrix = [row + [_mean(row)] * (width - len(row)) for row in rows]
    # Options are compared by token first: two that share one must not differ by rounding.
    ids = [[e[1] for e in entries] + [None] * (width - len(entries)) for entries in scores.tokens]
    alive = list(range(len(rows)))
    for column in range(width):
        best = max(alive, key=lambda i: matrix[i][column])
        same = (ids[best][column], matrix[best][column])
        alive = [
            i for i in alive
            if matrix[i][column] == same[1] or (same[0] is not None and ids[i][column] == same[0])
        ]  # fmt: skip
        if len(alive) == 1:
            break
    return Decision(scores.options[alive[0]], _meta(scores, greedy_logprob_matrix=matrix))


def _unconditional(scores: OptionScores) -> Decision:
    """Mean over tokens of log P(token | prompt) - log P(token): what the prompt adds.

    log P is that of the option's tokens alone, so its first one, which nothing precedes, has none
    and nothing is subtracted there.
    """
    gains = [
        _mean([a - _value(b) for a, b in zip(scores.logprobs(i), alone)])
        for i, alone in enumerate(scores.unconditional)
    ]
    meta = _meta(
        scores,
        unconditional_token_logprobs=[list(entries) for entries in scores.unconditional],
        normalized_unconditional_prompt_logprobs=gains,
    )
    return Decision(scores.options[_argmax(gains)], meta)


token_length_normalized = ChoicesMethod("token_length_normalized", _by_length)
greedy_token_selection = ChoicesMethod("greedy_token_selection", _greedy)
unconditional_likelihood_normalized = ChoicesMethod(
    "unconditional_likelihood_normalized", _unconditional, unconditional=True
)
# A runtime writes one option under a constraint; other backends have ``_greedy`` follow the scores.
constrained_decoding = ChoicesMethod("constrained_decoding", _greedy, generates=True)
METHODS = {
    m.name: m
    for m in (
        token_length_normalized, greedy_token_selection, unconditional_likelihood_normalized,
        constrained_decoding,
    )
}  # fmt: skip
