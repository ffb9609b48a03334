"""Semantic functions: programs written as a docstring with placeholders (Parrot paper, 4.1).

    @sgl.semantic_function
    def engineer(task):
        \"\"\"Write Python code of {{input:task}}.
        Code: {{output:code}}\"\"\"

is the program that appends the text and argument ``task`` and generates variable ``code``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, overload

from sglang.ir.nodes import Gen
from sglang.ir.params import ALIASES, GEN_NAMES, GenParams, checked
from sglang.program import SglFunction
from sglang.semantics.transform_words import Transforms

PLACEHOLDER = re.compile(r"\{\{\s*(\w*)\s*:?\s*(.*?)\s*\}\}", re.DOTALL)
MOST_CHARS = 1 << 20  # characters of a docstring
RAW = "_text"  # after the name of an output that is transformed: the variable of its text


@dataclass(frozen=True)
class PromptOutput:
    """Output ``name``: the gen of its text, and the transforms that make its value of it."""

    name: str
    node: Gen
    transforms: Transforms | None = None


@dataclass(frozen=True)
class PromptInput:
    """Input ``name``: an argument, or an output further up."""

    name: str


Piece = str | PromptInput | PromptOutput


@overload
def semantic_function(func: Callable[..., Any]) -> SglFunction: ...
@overload
def semantic_function(
    func: None = None, **params: Any
) -> Callable[[Callable[..., Any]], SglFunction]: ...
def semantic_function(
    func: Callable[..., Any] | None = None, **params: Any
) -> SglFunction | Callable[[Callable[..., Any]], SglFunction]:
    """Make a program of a function whose docstring is its prompt; bare or called.

    ``{{input:x}}`` is the argument x, or an output further up; ``{{output:x}}`` is generated and
    kept in variable x. The program returns its output, or a dict of several.

    Args:
        params: parameters of ``gen``, for all outputs; or for one, as a dict by its name. Such a
            dict may also have ``transform``, transforms that make the variable of the text, which
            stays in the prompt as it was generated.

    Raises:
        ValueError: the function has no docstring, or its placeholders are not its parameters.
        TypeError: a parameter of ``gen`` that does not exist.
    """
    if func is None:
        return lambda f: _program(f, params)
    return _program(func, params)


def _program(func: Callable[..., Any], params: Mapping[str, Any]) -> SglFunction:
    name = func.__name__
    text = inspect.cleandoc(func.__doc__ or "")
    if not text:
        raise ValueError(f"{name} has no docstring, which is the prompt of a semantic function")
    if len(text) > MOST_CHARS:
        raise ValueError(f"the prompt of {name} has {len(text)} characters; at most {MOST_CHARS}")
    parameters = list(inspect.signature(func).parameters.values())
    pieces = _pieces(name, text, params, [p.name for p in parameters])
    return program_of_pieces(name, pieces, parameters)


def program_of_pieces(
    name: str, pieces: list[Piece], parameters: list[inspect.Parameter]
) -> SglFunction:
    """Return the program that appends ``pieces``; ``parameters``: without the state."""
    state = inspect.Parameter("s", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature([state, *parameters])
    outputs = [piece.name for piece in pieces if isinstance(piece, PromptOutput)]

    def prompt(s: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(s, *args, **kwargs)
        bound.apply_defaults()
        for piece in pieces:
            if isinstance(piece, str):
                s += piece
            elif isinstance(piece, PromptInput):
                known = piece.name in bound.arguments
                s += bound.arguments[piece.name] if known else s[piece.name]
            else:
                s += piece.node
                if piece.transforms is not None:
                    s[piece.name] = piece.transforms.of(piece.name + RAW)
        if len(outputs) == 1:
            return s[outputs[0]]
        return {output: s[output] for output in outputs}

    prompt.__name__ = prompt.__qualname__ = name
    prompt.__signature__ = signature  # type: ignore[attr-defined]
    return SglFunction(prompt)


def _pieces(name: str, text: str, params: Mapping[str, Any], parameters: list[str]) -> list[Piece]:
    pieces: list[Piece] = []
    outputs, used, end = dict[str, None](), set[str](), 0
    own = {found[2] for found in PLACEHOLDER.finditer(text) if found[1] == "output"}
    common = {key: value for key, value in params.items() if key not in own}
    for found in PLACEHOLDER.finditer(text):
        kind, variable = found[1], found[2]
        if kind not in ("input", "output") or not variable.isidentifier():
            raise ValueError(
                f"{name} has placeholder {found[0]!r:.60}; it is {{{{input:name}}}} or "
                "{{output:name}}"
            )
        pieces.append(text[end : found.start()])
        end = found.end()
        if kind == "output":
            if variable in outputs or variable in parameters:
                raise ValueError(f"{name} has output {variable!r} twice, or as an input too")
            outputs[variable] = None
            pieces.append(prompt_output(variable, {**common, **params.get(variable, {})}))
            continue
        if variable not in parameters and variable not in outputs:
            raise ValueError(
                f"{name} has input {variable!r}, which is none of its parameters {parameters} and "
                "no output further up"
            )
        used.add(variable)
        pieces.append(PromptInput(variable))
    if unused := [parameter for parameter in parameters if parameter not in used]:
        raise ValueError(f"{name} has parameter {unused[0]!r}, but no {{{{input:{unused[0]}}}}}")
    if not outputs:
        raise ValueError(f"{name} generates nothing; write {{{{output:name}}}} where it is to")
    return [piece for piece in [*pieces, text[end:]] if piece != ""]


def prompt_output(name: str, given: Mapping[str, Any]) -> PromptOutput:
    """Return an output with the parameters of its gen, and ``transform``. Raise TypeError."""
    own = dict(given)
    transforms = own.pop("transform", None)
    if transforms is not None and not isinstance(transforms, Transforms):
        raise TypeError(
            f"transform of output {name!r} is {transforms!r:.60}; give sgl.transforms.strip(), ..."
        )
    params = GenParams(**{ALIASES.get(key, key): value for key, value in own.items()})
    gen = Gen(name + RAW if transforms else name, checked(params, GEN_NAMES))
    return PromptOutput(name, gen, transforms)
