"""SamplingParams: the parameters of one generation, each declared once.

Type, bounds, default and description of a parameter stand here and nowhere else. What reads them:
the checks of the language (``params``) and of the runtime, the bodies and limits of the HTTP
interface, its OpenAPI document, and the tables of the pages. A new parameter is a new line here;
besides, a parameter of ``gen`` is named in its signature.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from sglang.ir.constraint import Constraint

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


@dataclass(frozen=True)
class Bounds:
    """The values that a parameter may have.

    Attributes:
        least: smallest number; of a mapping, smallest of its values.
        most: largest number, likewise.
        open: ``least`` itself is refused.
        entries: most entries of a list or mapping.
        characters: most characters of each text; an empty text is refused where this is given.
        one_of: the texts that are allowed.
        words: what to say instead of the words made from the numbers.
        refused: a number between ``least`` and ``most`` that is refused.
    """

    least: float | None = None
    most: float | None = None
    open: bool = False
    entries: int | None = None
    characters: int | None = None
    one_of: tuple[str, ...] = ()
    words: str = ""
    refused: float | None = None

    def allow(self, number: float) -> bool:
        """Return whether a number is within the bounds. NaN and infinity are not."""
        if (isinstance(number, float) and not math.isfinite(number)) or number == self.refused:
            return False
        if self.least is not None and (number < self.least or (self.open and number == self.least)):
            return False
        return self.most is None or number <= self.most


_COUNT = Bounds(least=0)
_PENALTY = Bounds(least=-2, most=2)
_TEXTS = "a text or a list of texts"


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Parameters of sampling, and of the end of a generation.

    ``stop`` strings and ``stop_regex`` patterns are matched on the generated text, control tokens
    included, across the borders of tokens and of UTF-8 characters.
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
    ] = 1.0
    top_p: Annotated[
        float,
        Bounds(0, 1, open=True),
        "Sample among the most likely tokens whose probabilities sum to this.",
    ] = 1.0
    top_k: Annotated[
        int,
        Bounds(-1, refused=0, words="-1 (all) or a whole number of at least 1"),
        "Sample among this many of the most likely tokens; -1: all.",
    ] = -1
    min_p: Annotated[
        float,
        Bounds(0, 1),
        "Drop tokens less likely than this times the most likely one.",
    ] = 0.0
    frequency_penalty: Annotated[
        float, _PENALTY, "Subtracted from a token's logit for each time it was generated."
    ] = 0.0
    presence_penalty: Annotated[
        float, _PENALTY, "Subtracted from the logit of each token that was generated."
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        Bounds(MIN_REPETITION, 2),
        "Divides positive logits of tokens that were seen, multiplies negative ones.",
    ] = 1.0
    logit_bias: Annotated[
        dict[int, float],
        Bounds(-100, 100, entries=MAX_LOGIT_BIAS, words="numbers from -100 to 100 by token ids"),
        "Added to the logits of tokens, by their ids.",
    ] = field(default_factory=dict)
    seed: Annotated[
        int | None,
        Bounds(-SEED_LIMIT, SEED_LIMIT - 1, words="a signed 64-bit whole number"),
        "The same seed gives the same text, whatever else is in the batch; null: any.",
    ] = None
    speculation: Annotated[
        str,
        Bounds(one_of=SPECULATIONS),
        "Which drafts are verified; no draft changes the text. `auto`: as the server does.",
    ] = "auto"
    constraint: Annotated[Constraint | None, None, "What the whole text must be."] = None

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


@dataclass(frozen=True)
class Parameter:
    """The declaration of one parameter, read from ``SamplingParams``."""

    name: str
    type: Any
    bounds: Bounds
    default: Any
    description: str

    @property
    def expected(self) -> str:
        """The allowed values in words, such as "a number from 0 to 1"."""
        bounds = self.bounds
        if bounds.words:
            return bounds.words
        if bounds.one_of:
            return "one of " + ", ".join(bounds.one_of)
        if self.type is bool:
            return "true or false"
        noun = "a number" if self.type is float else "a whole number"
        if bounds.least is None:
            return noun
        least = f"above {bounds.least:g}" if bounds.open else f"{bounds.least:g}"
        if bounds.most is None:
            return f"{noun} of at least {least}"
        most = f"{bounds.most:.0f}" if bounds.most == int(bounds.most) else f"{bounds.most:g}"
        if bounds.open:
            return f"{noun} {least} and at most {most}"
        return f"{noun} from {least} to {most}"

    def complaint(self, value: Any, name: str = "") -> str:
        """Say why a value of the right type is refused; "" where it is allowed.

        ``name``: what the caller knows the parameter by.
        """
        name, bounds = name or self.name, self.bounds
        if bounds.one_of or isinstance(value, (int, float)):
            fits = value in bounds.one_of if bounds.one_of else bounds.allow(value)
            return "" if fits else f"{name} is {value!r:.80}; it must be {self.expected}."
        if isinstance(value, Mapping):
            return self._entries(name, value) or self._values(name, value)
        if isinstance(value, Sequence):
            return self._entries(name, value) or self._texts(name, value)
        return ""

    def _entries(self, name: str, value: Sequence[Any] | Mapping[Any, Any]) -> str:
        most = self.bounds.entries
        if most is not None and len(value) > most:
            return f"{name} has {len(value)} entries; at most {most}."
        return ""

    def _values(self, name: str, value: Mapping[Any, Any]) -> str:
        for key, number in value.items():
            if not self.bounds.allow(number):
                least, most = self.bounds.least, self.bounds.most
                return f"{name} of token {key} is {number}; it must be from {least} to {most}."
        return ""

    def _texts(self, name: str, value: Iterable[Any]) -> str:
        most = self.bounds.characters
        if most is None:
            return ""
        for text in value:
            if text == "":
                return f"{name} contains an empty string; remove it."
            if len(text) > most:
                return f"{name} has an entry of {len(text)} characters; at most {most}."
        return ""

    def schema(self) -> dict[str, Any]:
        """The JSON schema of a value, with its bounds and without null."""
        kind = _inner(self.type)
        bounds = self.bounds
        if get_origin(kind) is tuple:
            items: dict[str, Any] = {"type": _JSON[get_args(kind)[0]]}
            if bounds.characters is not None:
                items |= {"minLength": 1, "maxLength": bounds.characters}
            return {"type": "array", "items": items, "maxItems": bounds.entries}
        if get_origin(kind) is dict:
            return {
                "type": "object",
                "additionalProperties": {"type": "number", **self._numbers()},
                "propertyNames": {"pattern": "^[0-9]{1,18}$"},
                "maxProperties": bounds.entries,
            }
        found = {"type": _JSON[kind], **self._numbers()}
        if bounds.one_of:
            found["enum"] = list(bounds.one_of)
        return found

    def _numbers(self) -> dict[str, Any]:
        bounds, found = self.bounds, dict[str, Any]()
        if bounds.least is not None:
            found["exclusiveMinimum" if bounds.open else "minimum"] = bounds.least
        if bounds.most is not None:
            found["maximum"] = bounds.most
        if bounds.refused is not None:
            found["not"] = {"const": bounds.refused}
        return found


_JSON = {int: "integer", float: "number", str: "string", bool: "boolean"}


def _inner(kind: Any) -> Any:
    """A type without ``| None``."""
    options = [one for one in get_args(kind) if one is not type(None)]
    return options[0] if len(options) == 1 and type(None) in get_args(kind) else kind


def _declared() -> dict[str, Parameter]:
    hints = get_type_hints(SamplingParams, include_extras=True)
    found = {}
    for one in fields(SamplingParams):
        if one.name != "constraint":
            kind, bounds, description = get_args(hints[one.name])
            default = {} if one.default is MISSING else one.default
            found[one.name] = Parameter(one.name, kind, bounds or Bounds(), default, description)
    return found


PARAMETERS = _declared()
"""By name: every parameter but the constraint, in the order of declaration."""
