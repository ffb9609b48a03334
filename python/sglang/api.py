"""The words of the language: functions that build nodes, and those that act on a backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, overload

from sglang.backend.global_settings import global_config
from sglang.backend.renamed_parameters import renamed
from sglang.ir.choices import ChoicesMethod, token_length_normalized
from sglang.ir.media import medium
from sglang.ir.nodes import (
    Chain,
    Gen,
    Image,
    Node,
    RoleBegin,
    RoleEnd,
    Select,
    SeparateReasoning,
    node_of,
)
from sglang.ir.params import GEN_NAMES, GenParams, Stop, checked
from sglang.program import SglFunction
from sglang.run import reasoning
from sglang.run.resolve import resolve_backend


@overload
def function(func: Callable[..., Any], num_api_spec_tokens: int | None = None) -> SglFunction: ...
@overload
def function(
    func: None = None, num_api_spec_tokens: int | None = None
) -> Callable[[Callable[..., Any]], SglFunction]: ...
def function(
    func: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None
) -> SglFunction | Callable[[Callable[..., Any]], SglFunction]:
    """Make a program of a function whose first parameter is ``s``; bare or called."""
    if func is not None:
        return SglFunction(func, num_api_spec_tokens)
    return lambda f: SglFunction(f, num_api_spec_tokens)


def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    *,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: Stop = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: Stop = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    seed: int | None = None,
    speculation: str | None = None,
    lora_path: str | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesMethod | str = token_length_normalized,
    regex: str | None = None,
    json_schema: Any = None,
    schema: Any = None,
    ebnf: str | None = None,
    structural_tag: Any = None,
    whitespace_pattern: str | None = None,
    max_retries: int | None = None,
) -> Gen | Select:
    """Text drawn by the model, kept in variable ``name``; None inherits from ``run``.

    With ``n`` > 1 the variable is a list and the first text goes on. ``choices`` makes it a select.
    One of ``dtype`` (int, float, str, bool), ``regex`` and ``schema`` (a pydantic model, dataclass,
    TypedDict, Enum, Literal, union, or a JSON schema as dict or text; ``json_schema`` is the same)
    constrains the text; ``s.value(name)`` is the typed object. A backend that cannot enforce it is
    asked again with what was wrong, at most ``max_retries`` times. ``ebnf`` (a GBNF or Lark
    grammar) and ``structural_tag`` (free text in which tags hold JSON) need one that can.
    ``whitespace_pattern``: between two tokens of JSON; "" is compact, None the model's default.
    ``speculation``: "ngram", "draft", "off" or "auto". ``lora_path``: a runtime's adapter."""
    if choices is not None:
        return select(name, choices, temperature or 0.0, choices_method)
    params = GenParams(
        max_new_tokens=max_tokens, min_new_tokens=min_tokens, n=n, stop=stop,
        stop_token_ids=stop_token_ids, stop_regex=stop_regex, temperature=temperature, top_p=top_p,
        top_k=top_k, min_p=min_p, frequency_penalty=frequency_penalty, seed=seed,
        presence_penalty=presence_penalty, repetition_penalty=repetition_penalty, dtype=dtype,
        logit_bias=logit_bias, speculation=speculation, lora_path=lora_path, ignore_eos=ignore_eos,
        return_logprob=return_logprob, logprob_start_len=logprob_start_len, regex=regex, ebnf=ebnf,
        top_logprobs_num=top_logprobs_num, return_text_in_logprobs=return_text_in_logprobs,
        json_schema=json_schema, schema=schema, structural_tag=structural_tag,
        whitespace_pattern=whitespace_pattern, max_retries=max_retries,
    )  # fmt: skip
    return Gen(name, checked(params, GEN_NAMES))


def gen_int(name: str | None = None, max_tokens: int | None = None, **params: Any) -> Node:
    """``gen`` of a whole number; the variable is its text, ``s.value(name)`` the int."""
    return gen(name, max_tokens, dtype=int, **_free_of_constraints("gen_int", params))


def gen_string(name: str | None = None, max_tokens: int | None = None, **params: Any) -> Node:
    """``gen`` of a text in double quotes; ``s.value(name)`` is what stands between them."""
    return gen(name, max_tokens, dtype=str, **_free_of_constraints("gen_string", params))


# ``gen_int`` and ``gen_string`` take what ``gen`` takes, except what says how the text is made.
_FIXED = (
    "min_tokens", "dtype", "choices", "choices_method", "regex", "json_schema", "schema", "ebnf",
    "structural_tag", "whitespace_pattern",
)  # fmt: skip


def _free_of_constraints(function: str, params: dict[str, Any]) -> dict[str, Any]:
    for name in params:
        if name in _FIXED:
            raise TypeError(f"{function} has no parameter {name!r}; use gen")
    return params


def _document(function: Any) -> None:
    """Show the parameters of ``gen`` that the function passes on, in its signature."""
    signature = inspect.signature(gen)
    taken = [p for p in signature.parameters.values() if p.name not in _FIXED]
    function.__signature__ = signature.replace(parameters=taken, return_annotation="Node")


_document(gen_int)
_document(gen_string)


def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | str = token_length_normalized,
) -> Select:
    """The choice the model finds most likely here, kept in variable ``name``."""
    if isinstance(choices, str) or not choices:
        raise ValueError(f"choices is {choices!r}; give a list of at least one text")
    if any(not isinstance(c, str) or c == "" for c in choices):
        raise ValueError(f"choices are texts that are not empty; got {list(choices)!r}")
    if temperature > 1e-5:
        raise ValueError(f"temperature is {temperature}; a choice is never drawn: leave it at 0")
    return Select(name, tuple(choices), _method(choices_method))


def _method(method: ChoicesMethod | str) -> ChoicesMethod:
    from sglang.ir.choices import METHODS

    if isinstance(method, ChoicesMethod):
        return method
    if method not in METHODS:
        raise ValueError(f"choices_method is {method!r}; use one of {sorted(METHODS)}")
    return METHODS[method]


@renamed(expr="path")
def image(expr: Any) -> Node:
    """An image: a path, bytes, a PIL image, a ``data:`` URL or an http(s) URL.

    Read at once. Raises OSError where there is no such file, TypeError or ValueError where it is no
    image that can be sent.
    """
    return Image(expr if isinstance(expr, Node) else medium("image", expr))


def video(path: Any, num_frames: int = 8) -> Node:
    """A video, of which the model is shown ``num_frames`` frames. Raises as ``image`` does."""
    if num_frames < 1:
        raise ValueError(f"num_frames is {num_frames}; it must be at least 1")
    source = path if isinstance(path, Node) else medium("video", path, num_frames)
    return Image(source, "video", num_frames)


def separate_reasoning(expr: object, model_type: str) -> SeparateReasoning:
    """``expr``, whose gens write their reasoning first, as models of ``model_type`` do.

    The variable of a gen is its answer alone, and so is what stays in the text; its reasoning is
    the variable ``NAME_reasoning_content``. Raises ValueError for an unknown type.
    """
    reasoning.split("", model_type)
    return SeparateReasoning(tuple(node_of(expr).flat()), model_type)


def _turn(role: str, expr: object) -> Chain:
    inside = () if expr is None else tuple(node_of(expr).flat())
    return Chain((RoleBegin(role), *inside, RoleEnd(role)))


def system(expr: object = None) -> Chain:
    """A system turn around ``expr``."""
    return _turn("system", expr)


def user(expr: object = None) -> Chain:
    """A user turn around ``expr``."""
    return _turn("user", expr)


def assistant(expr: object = None) -> Chain:
    """An assistant turn around ``expr``."""
    return _turn("assistant", expr)


def system_begin() -> Node:
    """Open a system turn."""
    return RoleBegin("system")


def system_end() -> Node:
    """Close the system turn."""
    return RoleEnd("system")


def user_begin() -> Node:
    """Open a user turn."""
    return RoleBegin("user")


def user_end() -> Node:
    """Close the user turn."""
    return RoleEnd("user")


def assistant_begin() -> Node:
    """Open an assistant turn."""
    return RoleBegin("assistant")


def assistant_end() -> Node:
    """Close the assistant turn."""
    return RoleEnd("assistant")


def set_default_backend(backend: Any) -> None:
    """Use ``backend`` wherever ``run`` is given none; None takes it back."""
    global_config.default_backend = None if backend is None else resolve_backend(backend)


def flush_cache(backend: Any = None, empty_cache: bool = True) -> Any:
    """Empty the backend's prefix cache. ``empty_cache`` is upstream's and changes nothing: the
    cache is one block of memory, which stays allocated."""
    return resolve_backend(backend).flush_cache()


def inspect_history(n: int = 1, file: TextIO | None = None) -> None:
    """Print the last ``n`` calls of this process's programs to their backends: what was asked, the
    parameters that were set, and the answer or error. The last hundred calls are kept."""
    from sglang.inspect.display import print_history
    from sglang.run.history import HISTORY

    if n < 1:
        raise ValueError(f"n is {n}; give how many calls to print, at least 1")
    print_history(HISTORY.last(n), file)


def get_server_info(backend: Any = None) -> dict[str, Any]:
    """Settings and counters of the backend's runtime."""
    return resolve_backend(backend).get_server_info()
