"""SamplingParams: the parameters of one generation, each declared once.

Type, bounds, default and description of a parameter stand here and nowhere else, in the form of
``declaration``. What reads them: the checks of the language (``params``) and of the runtime, the
bodies and limits of the HTTP interface, its OpenAPI document, and the tables of the pages. A new
parameter is a new line here; besides, a parameter of ``gen`` is named in its signature.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated

from sglang.ir.constraint import Constraint
from sglang.ir.declaration import Bounds, declared

MAX_STOPS = 128
MAX_STOP_CHARS = 1024
MAX_STOP_TOTAL = 4096  # characters of all stop strings: one automaton holds them
MAX_PATTERNS = 16  # one automaton holds them; its size has limits too (grammar/stop_automaton)
MAX_LOGIT_BIAS = 4096
MAX_N = 128
MAX_TOP_LOGPROBS = 128
SEED_LIMIT = 2**63
GREEDY_TEMPERATURE = 1e-6
MAX_TEMPERATURE = 1e6  # far from where float32 ends
MIN_REPETITION = 1e-3
SPECULATIONS = ("auto", "off", "ngram", "draft")


LOGITS = "logits"  # role of parameters that change the logits of single tokens
CHOICE = "choice"  # role of parameters that say which token is taken by given logits

_COUNT = Bounds(least=0)
_PENALTY = Bounds(least=-2, most=2)
_TEXTS = "a text or a list of texts"


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Parameters of sampling, and of the end of a generation.

    ``stop`` strings and ``stop_regex`` patterns are matched on the generated text, control tokens
    included, across the borders of tokens and of UTF-8 characters. ``constraint`` is what the whole
    text must be.
    """

    max_new_tokens: Annotated[int, _COUNT, "Most tokens to generate."] = 128
    min_new_tokens: Annotated[int, _COUNT, "Tokens to generate before the text may end."] = 0
    n: Annotated[int, Bounds(1, MAX_N), "Number of completions of the prompt."] = 1
    stop: Annotated[
        tuple[str, ...],
        Bounds(entries=MAX_STOPS, characters=MAX_STOP_CHARS, words=_TEXTS),
        "Strings that end the text; they are not part of it.",
    ] = ()
    stop_token_ids: Annotated[
        tuple[int, ...],
        Bounds(entries=MAX_STOPS, words="a list of token ids"),
        "Token ids that end the text.",
    ] = ()
    stop_regex: Annotated[
        tuple[str, ...],
        Bounds(entries=MAX_PATTERNS, characters=MAX_STOP_CHARS, words=_TEXTS),
        "Patterns whose match ends the text; it is not part of it.",
    ] = ()
    ignore_eos: Annotated[bool, None, "Generate on after an end-of-text token."] = False
    no_stop_trim: Annotated[bool, None, "Keep the matched stop at the end of the text."] = False
    skip_special_tokens: Annotated[bool, None, "Leave control tokens out of the text."] = True
    temperature: Annotated[
        float,
        Bounds(0, MAX_TEMPERATURE),
        "Divisor of the logits; below 1e-6 the most likely token is taken.",
        CHOICE,
    ] = 1.0
    top_p: Annotated[
        float,
        Bounds(0, 1, open=True),
        "Sample among the most likely tokens whose probabilities sum to this.",
        CHOICE,
    ] = 1.0
    top_k: Annotated[
        int,
        Bounds(-1, refused=0, words="-1 (all) or a whole number of at least 1"),
        "Sample among this many of the most likely tokens; -1: all.",
        CHOICE,
    ] = -1
    min_p: Annotated[
        float, Bounds(0, 1), "Drop tokens less likely than this times the most likely one.", CHOICE
    ] = 0.0
    frequency_penalty: Annotated[
        float, _PENALTY, "Subtracted from a token's logit for each time it was generated.", LOGITS
    ] = 0.0
    presence_penalty: Annotated[
        float, _PENALTY, "Subtracted from the logit of each token that was generated.", LOGITS
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        Bounds(MIN_REPETITION, 2),
        "Divides positive logits of tokens that were seen, multiplies negative ones.",
        LOGITS,
    ] = 1.0
    logit_bias: Annotated[
        dict[int, float],
        Bounds(-100, 100, entries=MAX_LOGIT_BIAS, words="numbers from -100 to 100 by token ids"),
        "Added to the logits of tokens, by their ids.",
        LOGITS,
    ] = field(default_factory=dict)
    seed: Annotated[
        int | None,
        Bounds(-SEED_LIMIT, SEED_LIMIT - 1, words="a signed 64-bit whole number"),
        "The same seed gives the same text, whatever else is in the batch; null: any.",
        CHOICE,
    ] = None
    speculation: Annotated[
        str,
        Bounds(one_of=SPECULATIONS),
        "Which drafts are verified; no draft changes the text. `auto`: as the server does.",
    ] = "auto"
    constraint: Constraint | None = None

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1

    @property
    def penalised(self) -> bool:
        """Whether the distribution depends on earlier tokens beyond what the model computes."""
        return (
            self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or self.repetition_penalty != 1.0
        )

    def verify(self, vocab_size: int) -> None:
        """Raise ValueError, naming value, limit and fix, where a parameter is out of bounds."""
        for name, parameter in PARAMETERS.items():
            value = getattr(self, name)
            if value != parameter.default and (complaint := parameter.complaint(value)):
                raise ValueError(complaint)
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens is {self.min_new_tokens}; it must be at most "
                f"max_new_tokens ({self.max_new_tokens})."
            )
        total = sum(map(len, self.stop))
        if total > MAX_STOP_TOTAL:
            raise ValueError(f"stop has {total} characters in all; at most {MAX_STOP_TOTAL}.")
        if self.constraint is not None:
            self.constraint.verify()
        for name in ("logit_bias", "stop_token_ids"):
            for token in getattr(self, name):
                if not 0 <= token < vocab_size:
                    raise ValueError(
                        f"{name} names token {token}; the vocabulary ends at {vocab_size - 1}."
                    )


PARAMETERS = declared(
    SamplingParams,
    {one.name: {} if one.default is MISSING else one.default for one in fields(SamplingParams)},
)
"""By name: every parameter but the constraint, in the order of declaration."""


def names_of(role: str) -> list[str]:
    """The names of the parameters of a role, in the order of declaration."""
    return [name for name, parameter in PARAMETERS.items() if parameter.role == role]
