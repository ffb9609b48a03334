"""GenParams: every parameter of a generation, declared once.

``None`` means "inherit": a ``gen`` inherits from its ``run``, a ``run`` from ``DEFAULTS``. Names
are those of the native HTTP interface except where ``WIRE_NAMES`` says otherwise.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Stop = str | Sequence[str] | None


@dataclass(frozen=True)
class GenParams:
    """Sampling, stops, log-probabilities and constraints of one generation.

    ``schema`` is ``json_schema`` by another name: both take a JSON schema (dict or text) or a type
    that ``types`` can turn into one. ``ebnf`` is a grammar, ``structural_tag`` a dict or its text.
    ``whitespace_pattern`` is what a runtime lets the model write between two tokens of JSON.
    ``speculation`` is who guesses tokens ahead there, which changes no text. ``lora_path`` names
    the adapter of a runtime that the model writes with; "" is none.
    ``max_retries`` is how often to ask again where the backend does not enforce a constraint and
    the text does not satisfy it.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    stop: Stop = None
    stop_token_ids: Sequence[int] | None = None
    stop_regex: Stop = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    speculation: str | None = None
    lora_path: str | None = None
    ignore_eos: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    dtype: type | str | None = None
    regex: str | None = None
    json_schema: Any = None
    schema: Any = None
    ebnf: str | None = None
    structural_tag: Any = None
    whitespace_pattern: str | None = None
    max_retries: int | None = None

    def over(self, base: GenParams) -> GenParams:
        """``base``, with whatever is given here instead."""
        return dataclasses.replace(base, **given(self))


def given(params: GenParams) -> dict[str, Any]:
    """The parameters that are not inherited, by name."""
    return {name: value for name, value in vars(params).items() if value is not None}


DEFAULTS = GenParams(
    max_new_tokens=128,
    n=1,
    temperature=1.0,
    top_p=1.0,
    top_k=-1,
    min_p=0.0,
    frequency_penalty=0.0,
    presence_penalty=0.0,
    ignore_eos=False,
    max_retries=2,
)

NAMES = tuple(f.name for f in dataclasses.fields(GenParams))
ALIASES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}  # as ``gen`` calls them
WIRE_NAMES = {"seed": "sampling_seed"}
REQUEST_FIELDS = (
    "return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs",
)  # fmt: skip


_NUMBER = (int, float)
# Of each parameter: its types, least and greatest value (None: no bound), in words.
_RANGES: dict[str, tuple[tuple[type, ...], float | None, float | None, str]] = {
    "max_new_tokens": ((int,), 0, None, "a whole number of at least 0"),
    "min_new_tokens": ((int,), 0, None, "a whole number of at least 0"),
    "n": ((int,), 1, None, "a whole number of at least 1"),
    "temperature": (_NUMBER, 0, None, "a number of at least 0"),
    "top_p": (_NUMBER, 0, 1, "a number above 0 and at most 1"),
    "top_k": ((int,), -1, None, "-1 (all) or a whole number of at least 1"),
    "min_p": (_NUMBER, 0, 1, "a number from 0 to 1"),
    "frequency_penalty": (_NUMBER, -2, 2, "a number from -2 to 2"),
    "presence_penalty": (_NUMBER, -2, 2, "a number from -2 to 2"),
    "repetition_penalty": (_NUMBER, 0, None, "a number above 0"),
    "seed": ((int,), None, None, "a whole number"),
    "max_retries": ((int,), 0, None, "a whole number of at least 0"),
}
SPECULATIONS = ("auto", "off", "ngram", "draft")
_NOT_ZERO = ("top_p", "top_k", "repetition_penalty")


def checked(params: GenParams, shown: Mapping[str, str] | None = None) -> GenParams:
    """``params``, if each has a value that some backend could take.

    ``shown``: names that the caller knows parameters by. Raises TypeError or ValueError that names
    the parameter, the value and the limit.
    """
    for name, value in given(params).items():
        if name in _RANGES:
            types, least, most, words = _RANGES[name]
            complaint = f"{(shown or {}).get(name, name)} is {value!r}; give {words}"
            if not isinstance(value, types) or isinstance(value, bool):
                raise TypeError(complaint)
            assert isinstance(value, (int, float))
            low = (least is not None and value < least) or (name in _NOT_ZERO and value == 0)
            if low or (most is not None and value > most) or value != value:
                raise ValueError(complaint)
        elif name == "speculation" and value not in SPECULATIONS:
            raise ValueError(f"speculation is {value!r}; use one of {', '.join(SPECULATIONS)}")
        elif name == "lora_path" and not isinstance(value, str):
            raise TypeError(f"lora_path is {value!r:.60}; give the name of an adapter")
        elif name == "whitespace_pattern" and not isinstance(value, str):
            raise TypeError(f"whitespace_pattern is {value!r:.60}; give a str, such as ' ?'")
        elif name in ("stop", "stop_regex") and not _are(value, str):
            raise TypeError(f"{name} is {value!r}; give a text or a list of texts")
        elif name == "stop_token_ids" and not (_are(value, int) and not isinstance(value, int)):
            raise TypeError(f"stop_token_ids is {value!r}; give a list of token ids")
    return params


def _are(value: Any, kind: type) -> bool:
    many = not isinstance(value, kind) and isinstance(value, Iterable)
    return all(isinstance(one, kind) for one in (value if many else (value,)))


GEN_NAMES = {name: alias for alias, name in ALIASES.items()}


def split(arguments: Mapping[str, Any]) -> tuple[GenParams, dict[str, Any]]:
    """Sort keyword arguments into generation parameters and everything else."""
    chosen = {name: value for name, value in arguments.items() if name in NAMES}
    rest = {name: value for name, value in arguments.items() if name not in NAMES}
    return GenParams(**chosen), rest


def signature_parameters() -> list[inspect.Parameter]:
    """Keyword-only parameters for the signature of a function that takes all of them."""
    return [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(DEFAULTS, f.name),
            annotation=f.type,
        )
        for f in dataclasses.fields(GenParams)
    ]


def chosen(params: GenParams) -> dict[str, Any]:
    """The parameters that are set to other than their defaults."""
    return {n: value for n, value in given(params).items() if value != getattr(DEFAULTS, n)}


def document(method: Callable[..., Any]) -> None:
    """Show the generation parameters, which are declared once, in the method's signature."""
    signature = inspect.signature(method)
    own = [p for p in signature.parameters.values() if p.name != "kwargs"]
    rest = [p for p in signature.parameters.values() if p.name == "kwargs"]
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*own, *signature_parameters(), *rest]
    )


def strings(value: Stop) -> tuple[str, ...]:
    """A stop list from one string, several or none."""
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def to_wire(params: GenParams) -> dict[str, Any]:
    """Fields of a native ``/generate`` request: ``sampling_params`` and the log-probability ones.

    Constraints must have been resolved to ``regex``, ``json_schema``, ``ebnf`` or
    ``structural_tag``.
    """
    values = given(params)
    for name in ("max_retries", "lora_path"):  # the latter is the prompt's
        values.pop(name, None)
    body = {name: values.pop(name) for name in REQUEST_FIELDS if name in values}
    for name in ("stop", "stop_regex"):
        if name in values:
            values[name] = list(strings(values[name]))
    if "stop_token_ids" in values:
        values["stop_token_ids"] = list(values["stop_token_ids"])
    if "logit_bias" in values:
        values["logit_bias"] = {str(token): bias for token, bias in values["logit_bias"].items()}
    for name in ("json_schema", "structural_tag"):
        if not isinstance(values.get(name, ""), str):
            import json

            values[name] = json.dumps(values[name])
    if not {"json_schema", "structural_tag"} & values.keys():
        values.pop("whitespace_pattern", None)
    body["sampling_params"] = {WIRE_NAMES.get(name, name): v for name, v in values.items()}
    return body
