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

from sglang.ir.sampling import PARAMETERS

Stop = str | Sequence[str] | None


@dataclass(frozen=True)
class TypedSchema:
    """A Python type and its JSON schema: the form that ``schema`` takes in a graph."""

    source: Any
    schema: Mapping[str, Any]

    def __repr__(self) -> str:
        return repr(self.source)


@dataclass(frozen=True)
class GenParams:
    """Sampling, stops, log-probabilities and constraints of one generation.

    ``schema`` is ``json_schema`` by another name: both take a JSON schema (dict or text) or a type
    that ``output_types`` can turn into one. ``ebnf`` is a grammar, ``structural_tag`` a dict or its
    text. ``one_of``: the text is one of these, written token by token.
    ``whitespace_pattern`` is what a runtime lets the model write between two tokens of JSON.
    ``speculation`` names the source of draft tokens there, which changes no text. ``lora_path``
    names an adapter of the runtime; "" is none.
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
    one_of: Sequence[str] | None = None
    whitespace_pattern: str | None = None
    max_retries: int | None = None

    def over(self, base: GenParams) -> GenParams:
        """``base``, with whatever is given here instead."""
        return dataclasses.replace(base, **given(self))


def given(params: GenParams) -> dict[str, Any]:
    """The parameters that are not inherited, by name."""
    return {name: value for name, value in vars(params).items() if value is not None}


# Parameters that every backend is sent, unless a program sets them.
_ALWAYS = (
    "max_new_tokens", "n", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "ignore_eos",
)  # fmt: skip
DEFAULTS = GenParams(**{name: PARAMETERS[name].default for name in _ALWAYS}, max_retries=2)

NAMES = tuple(f.name for f in dataclasses.fields(GenParams))
ALIASES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}  # as ``gen`` calls them
WIRE_NAMES = {"seed": "sampling_seed", "one_of": "choices"}
REQUEST_FIELDS = (
    "return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs",
)  # fmt: skip


def neutral(*names: str) -> dict[str, Any]:
    """The values of sampling parameters with which they change nothing: their defaults."""
    return {name: PARAMETERS[name].default for name in names}


def lacking(*taken: str) -> dict[str, Any]:
    """The neutral values of a gen's sampling parameters, for an API that takes ``taken`` alone."""
    return neutral(*(name for name in PARAMETERS if name in NAMES and name not in taken))


def checked(params: GenParams, shown: Mapping[str, str] | None = None) -> GenParams:
    """``params``, if each has a value that some backend could take.

    ``shown``: names that the caller knows parameters by. Raises TypeError or ValueError that names
    the parameter, the value and the limit.
    """
    for name, value in given(params).items():
        shown_name = shown.get(name, name) if shown else name
        if (parameter := PARAMETERS.get(name)) is not None:
            if not _fits(value, parameter.type):
                raise TypeError(f"{shown_name} is {value!r:.80}; give {parameter.expected}")
            many = strings(value) if name in ("stop", "stop_regex") else value
            if complaint := parameter.complaint(many, shown_name):
                raise ValueError(complaint)
        elif name == "max_retries":
            if not _fits(value, int):
                raise TypeError(f"max_retries is {value!r:.80}; give a whole number of at least 0")
            if value < 0:
                raise ValueError(f"max_retries is {value}; it must be at least 0.")
        elif name == "lora_path" and not isinstance(value, str):
            raise TypeError(f"lora_path is {value!r:.60}; give the name of an adapter")
        elif name == "whitespace_pattern" and not isinstance(value, str):
            raise TypeError(f"whitespace_pattern is {value!r:.60}; give a str, such as ' ?'")
    return params


# Types of parameters that are no classes.
_TEXTS, _IDS, _BIASES, _SEED = tuple[str, ...], tuple[int, ...], dict[int, float], int | None


def _fits(value: Any, kind: Any) -> bool:
    """Return whether a value is of a parameter's type. An int is a float too, a bool neither."""
    if kind is int or kind == _SEED:
        return isinstance(value, int) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == _TEXTS:
        return isinstance(value, str) or _are(value, str)
    if kind == _IDS:
        return _are(value, int)
    if kind == _BIASES:
        return isinstance(value, Mapping)
    return isinstance(value, kind)


def _are(values: Any, kind: type) -> bool:
    return isinstance(values, Iterable) and all(isinstance(one, kind) for one in values)


GEN_NAMES = {name: alias for alias, name in ALIASES.items()}


def split(arguments: Mapping[str, Any]) -> tuple[GenParams, dict[str, Any]]:
    """Sort keyword arguments into generation parameters and everything else."""
    chosen = {name: value for name, value in arguments.items() if name in NAMES}
    rest = {name: value for name, value in arguments.items() if name not in NAMES}
    return GenParams(**chosen), rest


def params_and_arguments(
    kwargs: Mapping[str, Any], arg_names: Sequence[str]
) -> tuple[GenParams, dict[str, Any]]:
    """Return the complete generation parameters of a run, and the arguments of its program.

    A name in ``arg_names`` is an argument, even if a parameter is called so, too. Raise TypeError
    where a parameter is given under its name and under an alias.
    """
    own = {name: value for name, value in kwargs.items() if name in arg_names}
    rest = {name: value for name, value in kwargs.items() if name not in own}
    for alias, name in ALIASES.items():
        if alias in rest:
            if name in rest:
                raise TypeError(f"{alias} and {name} are the same parameter; give one of them")
            rest[name] = rest.pop(alias)
    params, arguments = split(rest)
    return checked(params).over(DEFAULTS), {**own, **arguments}


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

    Constraints must have been resolved to ``regex``, ``json_schema``, ``ebnf``, ``structural_tag``
    or ``one_of``.
    """
    values = given(params)
    for name in ("max_retries", "lora_path"):  # the latter is the prompt's
        values.pop(name, None)
    body = {name: values.pop(name) for name in REQUEST_FIELDS if name in values}
    for name in ("stop", "stop_regex"):
        if name in values:
            values[name] = list(strings(values[name]))
    for name in ("stop_token_ids", "one_of"):
        if name in values:
            values[name] = list(values[name])
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
