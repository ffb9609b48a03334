"""Submission: a program as a client sends it, whole, before any of it runs (Parrot paper, 4.1).

A submission has streams; 0 is the program's own, the others begin as a branch of a fork or as a
call of another program. A stream is a text that grows step by step. A step is what one node of a
program's graph does: it appends text, makes variables, or both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

VERSION = 1
MAIN = 0
REASONING = "_reasoning_content"  # after a gen's name: the variable of its reasoning
MAX_NAME = 256  # characters of a variable, an argument, a tool
MAX_OPTIONS = 1024  # of one choose
MAX_TRANSFORMS = 32  # in a row
MAX_VALUE_DEPTH = 32  # of lists in a value
MAX_ARGUMENTS = 4096  # of one submission

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Number: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 53)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=86400)]
Transforms: TypeAlias = Annotated[list[dict[str, Any]], Meta(max_length=MAX_TRANSFORMS)]
Key: TypeAlias = tuple[int, str]
"""A variable of a submission: the step that makes it, and its name ("" for none)."""


class Ref(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A value that is made elsewhere: `step` and `name`, or `argument`, or `var`, the id of a
    semantic variable of the same session."""

    step: Number | None = None
    name: Name | None = None
    argument: Name | None = None
    var: Name | None = None

    @property
    def sound(self) -> bool:
        """Whether it has exactly one of the three forms."""
        made = self.step is not None and self.name is not None
        forms = made + (self.argument is not None) + (self.var is not None)
        return forms == 1 and (made or (self.step is None and self.name is None))

    def __str__(self) -> str:
        if self.step is not None:
            return f"variable {self.name!r} of step {self.step}"
        if self.argument is not None:
            return f"argument {self.argument!r}"
        return f"semantic variable {self.var!r}"


class ProgramStep(msgspec.Struct, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    """Base of all steps. `at`: file and line of the program that made it."""

    number: Number
    at: tuple[Annotated[str, Meta(max_length=1024)], int] | None = None

    def values(self) -> tuple[Any, ...]:
        """Values that the step reads."""
        return ()

    def made(self) -> tuple[str, ...]:
        """Names of the variables that the step makes."""
        return ()

    @property
    def op(self) -> str:
        return str(self.__struct_config__.tag)

    def __str__(self) -> str:
        named = next((f" {name!r}" for name in self.made()), "")
        line = f" at {self.at[0]}:{self.at[1]}" if self.at else ""
        return f"step {self.number} ({self.op}{named}){line}"


class TextStep(ProgramStep, tag="text"):
    """Append a constant text."""

    text: str


class ValueStep(ProgramStep, tag="value"):
    """Append the text of a value."""

    of: Ref
    transform: Transforms | None = None

    def values(self) -> tuple[Any, ...]:
        return (self.of,)


class GenStep(ProgramStep, tag="gen"):
    """Append generated text. `body`: the fields of `/generate` except the prompt. `reasoning`: the
    model's type, where the reasoning before the answer is split off."""

    body: dict[str, Any]
    name: Name | None = None
    reasoning: Name | None = None

    def made(self) -> tuple[str, ...]:
        if self.name is None:
            return ()
        return (self.name, self.name + REASONING) if self.reasoning else (self.name,)


class Adapter(msgspec.Struct, forbid_unknown_fields=True):
    lora_path: Name | None = None


class ChooseStep(ProgramStep, tag="choose"):
    """Append the most likely of texts."""

    options: Annotated[list[str], Meta(min_length=1, max_length=MAX_OPTIONS)]
    method: Literal[
        "token_length_normalized",
        "greedy_token_selection",
        "unconditional_likelihood_normalized",
        "constrained_decoding",
    ]
    name: Name | None = None
    adapter: Adapter | None = None

    def made(self) -> tuple[str, ...]:
        return () if self.name is None else (self.name,)


class MediaStep(ProgramStep, tag="media"):
    """Append an image or a video; `marker` is the text that stands for it. `source`: its address,
    or a Ref to it."""

    kind: Literal["image", "video"]
    source: Any
    marker: str
    num_frames: Annotated[int, Meta(ge=0, le=1 << 16)] = 0

    def values(self) -> tuple[Any, ...]:
        return (self.source,)


class SetStep(ProgramStep, tag="set"):
    """Make a variable of a value."""

    name: Name
    value: Any

    def values(self) -> tuple[Any, ...]:
        return (self.value,)

    def made(self) -> tuple[str, ...]:
        return (self.name,)


class ScopeBeginStep(ProgramStep, tag="scope_begin"):
    """A variable of the text from here on begins."""

    name: Name


class ScopeEndStep(ProgramStep, tag="scope_end"):
    """Make a variable of the text since the scope of its name began."""

    name: Name

    def made(self) -> tuple[str, ...]:
        return (self.name,)


class TransformStep(ProgramStep, tag="transform"):
    """Make a variable of another one's value."""

    name: Name
    of: Ref
    transform: Transforms

    def values(self) -> tuple[Any, ...]:
        return (self.of,)

    def made(self) -> tuple[str, ...]:
        return (self.name,)


class ToolStep(ProgramStep, tag="tool"):
    """Append the text of a function's result, given the text of `of`; make a variable of it.

    `where`: the function is the client's, which sets the variable, or of the server's toolbox.
    """

    name: Name
    tool: Name
    of: Ref | None = None
    timeout: Seconds | None = None
    where: Literal["client", "server"] = "client"

    def values(self) -> tuple[Any, ...]:
        return () if self.of is None else (self.of,)

    def made(self) -> tuple[str, ...]:
        return (self.name,)


class ForkStep(ProgramStep, tag="fork"):
    """Begin streams, each with a copy of the text so far."""

    children: Annotated[list[Number], Meta(min_length=1)]


class JoinStep(ProgramStep, tag="join"):
    """Wait for steps, the last ones of branches. gather_variable makes of each name the list, by
    branch, of their variables; concate_and_append appends the branches' texts side by side."""

    ends: Annotated[list[Number], Meta(min_length=1)]
    mode: Literal["gather_variable", "concate_and_append"] = "gather_variable"
    names: list[Name] = msgspec.field(default_factory=list, name="made")

    def made(self) -> tuple[str, ...]:
        return tuple(self.names)


AnyStep: TypeAlias = (
    TextStep | ValueStep | GenStep | ChooseStep | MediaStep | SetStep | ScopeBeginStep
    | ScopeEndStep | TransformStep | ToolStep | ForkStep | JoinStep
)  # fmt: skip
CALLS = (GenStep, ChooseStep, ToolStep)
"""Steps that take time: those of a model, and tools."""


class StreamBegin(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The begin of a stream: branch `index` of the fork of step `fork`, or a `call` of a program of
    this name. `number`: that of the step which begins it, where something waits for that."""

    fork: Number | None = None
    index: Number | None = None
    call: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    number: Number | None = None


class ProgramStream(msgspec.Struct, forbid_unknown_fields=True):
    """A text and its steps, in order. `begin`: null for the program's own, stream 0."""

    stream: Number
    steps: list[AnyStep]
    begin: StreamBegin | None = None


class Submission(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A program with its arguments. `result` is the client's own and is not read."""

    version: Literal[1] = 1
    name: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    streams: list[ProgramStream]
    arguments: Annotated[dict[str, Any], Meta(max_length=MAX_ARGUMENTS)] = msgspec.field(
        default_factory=dict
    )
    result: Any = None

    def steps(self) -> dict[int, AnyStep]:
        """All steps by number, in the order of the submission."""
        return {step.number: step for stream in self.streams for step in stream.steps}


def value_of(value: Any) -> Any:
    """A value as it was sent, with a Ref in place of each object.

    Raises ValueError for an object that is no Ref, and for lists that are too deep.
    """
    return _value(value, 0)


def _value(value: Any, depth: int) -> Any:
    if isinstance(value, (Ref, str, int, float)) or value is None:  # a bool is an int
        return value
    if depth > MAX_VALUE_DEPTH:
        raise ValueError(f"lists are nested deeper than {MAX_VALUE_DEPTH}")
    if isinstance(value, list):
        return [_value(item, depth + 1) for item in value]
    try:
        ref = msgspec.convert(value, Ref)
    except msgspec.ValidationError as error:
        raise ValueError(
            f"an object in a value is {{step, name}}, {{argument}} or {{var}}: {error}"
        ) from None
    if not ref.sound:
        raise ValueError("an object in a value has one form: {step, name}, {argument} or {var}")
    return ref


def refs_in(value: Any) -> Iterator[Ref]:
    """The Refs in a value that ``value_of`` has read."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from refs_in(item)
