"""Submission: a whole program in the form in which a client sends it before it runs (Parrot paper,
4.1).

A submission has streams. Stream 0 is the program's own; the others begin as a branch of a fork or
as a call of another program. A stream is a text that grows step by step. A step is the action of
one node of a program's graph: it appends text, makes variables, or both.
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
    """A reference to a value. It has one of three forms: `step` and `name` (a variable that a step
    makes), `argument` (an argument of the program), or `var` (the id of a semantic variable of the
    same session)."""

    step: Number | None = None
    name: Name | None = None
    argument: Name | None = None
    var: Name | None = None

    @property
    def sound(self) -> bool:
        """Return whether the Ref has exactly one of the three forms."""
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
    """Base of all steps. `at`: file and line of the program that the step comes from."""

    number: Number
    at: tuple[Annotated[str, Meta(max_length=1024)], int] | None = None

    def values(self) -> tuple[Any, ...]:
        """Return the values that the step reads."""
        return ()

    def made(self) -> tuple[str, ...]:
        """Return the names of the variables that the step makes."""
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
    model's type, if the reasoning before the answer is split off."""

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
    """Append the most likely of several texts."""

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
    """Set a variable to a value."""

    name: Name
    value: Any

    def values(self) -> tuple[Any, ...]:
        return (self.value,)

    def made(self) -> tuple[str, ...]:
        return (self.name,)


class ScopeBeginStep(ProgramStep, tag="scope_begin"):
    """Begin a variable that is the text from here on."""

    name: Name


class ScopeEndStep(ProgramStep, tag="scope_end"):
    """End a variable: it is the text since the scope of its name began."""

    name: Name

    def made(self) -> tuple[str, ...]:
        return (self.name,)


class TransformStep(ProgramStep, tag="transform"):
    """Set a variable to another value after transforms."""

    name: Name
    of: Ref
    transform: Transforms

    def values(self) -> tuple[Any, ...]:
        return (self.of,)

    def made(self) -> tuple[str, ...]:
        return (self.name,)


class ToolStep(ProgramStep, tag="tool"):
    """Append the result of a function as text, and set a variable to it. The function's argument is
    the text of `of`.

    `where`: the function runs at the client, which sets the variable, or in the server's toolbox.
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
    """Wait for steps, which are the last ones of branches. gather_variable sets each name to the
    list of the branches' variables, by branch. concate_and_append appends the branches' texts, each
    encoded independently."""

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
    """The begin of a stream: branch `index` of the fork of step `fork`, or a `call` of the program
    with this name. `number`: the number of the step that begins the stream, if something waits for
    that step."""

    fork: Number | None = None
    index: Number | None = None
    call: Annotated[str, Meta(max_length=MAX_NAME)] | None = None
    number: Number | None = None


class ProgramStream(msgspec.Struct, forbid_unknown_fields=True):
    """A stream: a text and its steps, in order. `begin`: null for the program's own stream 0."""

    stream: Number
    steps: list[AnyStep]
    begin: StreamBegin | None = None


class Submission(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A program with its arguments. `result` is the client's; the server does not read it."""

    version: Literal[1] = 1
    name: Annotated[str, Meta(max_length=MAX_NAME)] = ""
    streams: list[ProgramStream]
    arguments: Annotated[dict[str, Any], Meta(max_length=MAX_ARGUMENTS)] = msgspec.field(
        default_factory=dict
    )
    result: Any = None

    def steps(self) -> dict[int, AnyStep]:
        """Return all steps by number, in the order of the submission."""
        return {step.number: step for stream in self.streams for step in stream.steps}


def value_of(value: Any) -> Any:
    """Return a value of a submission, with a Ref in place of each object.

    Raises ValueError for an object that is no Ref, and for lists that are nested too deeply.
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
    """Yield the Refs in a value that ``value_of`` has returned."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from refs_in(item)
