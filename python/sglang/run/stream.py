"""Stream: the text, turns, variables and media of one state, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sglang.backend.base import Prompt, PromptTools, Ranges
from sglang.ir.prompt_media import Media
from sglang.run.api_speculation import Leftover, Pending
from sglang.run.typed import Typed
from sglang.semantics.transforms import text_of

Content = str | list[Any]


class TextSegment(NamedTuple):
    """A part of the text that is not constant: generated text, a tool's text or a medium.

    ``kind``: "gen", "select", "tool" or "media". ``meta``: meta_info of the node that wrote it.
    """

    kind: str
    start: int
    end: int
    name: str | None
    meta: Any


class ForkPoint(NamedTuple):
    """Begin of a fork: the lengths of its parent's text and lists at that point."""

    text: int = 0
    messages: int = 0
    media: int = 0
    parallel: int = 0
    role: str | None = None


@dataclass
class Stream:
    """Text, turns, variables and media of one state.

    Attributes:
        text: the whole prompt text, with the chat template applied.
        messages: finished turns of a program with roles; see ``Prompt.messages``.
        role: the open role, whose text begins at offset ``role_start``.
        made: names of the variables made since the stream, or its fork, began.
        typed: constraint of each constrained variable, which converts its text to a value.
        segments: ranges of generated text, tools' texts and media.
        media: begin and end offset of each medium's marker, and the medium.
        parallel: groups of ranges that were joined by ``join("concate_and_append")``.
        scopes: names and begin offsets of the open variable scopes, the innermost last.
        partial: text so far of variables that are being streamed.
        leftover: text that a completion model has generated beyond the last gen.
        deferred: gens of the open assistant turn that are not requested yet, and the text
            between them.
        tools: tools that the prompts offer, None for none.
        turn_fields: fields of the open turn's message besides role and content, such as tool calls.
    """

    text: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    role: str | None = None
    role_start: int = 0
    variables: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    made: dict[str, None] = field(default_factory=dict)
    typed: dict[str, Typed] = field(default_factory=dict)
    segments: list[TextSegment] = field(default_factory=list)
    media: list[tuple[int, int, Media]] = field(default_factory=list)
    parallel: list[Ranges] = field(default_factory=list)
    scopes: list[tuple[str, int]] = field(default_factory=list)
    partial: dict[str, str] = field(default_factory=dict)
    leftover: Leftover | None = None
    deferred: list[Pending | str] = field(default_factory=list)
    tools: PromptTools | None = None
    turn_fields: dict[str, Any] = field(default_factory=dict)

    def copy(self) -> Stream:
        """Return an independent copy."""
        return replace(
            self,
            messages=list(self.messages),
            variables=dict(self.variables),
            meta=dict(self.meta),
            made={},
            typed=dict(self.typed),
            segments=list(self.segments),
            media=list(self.media),
            parallel=list(self.parallel),
            scopes=list(self.scopes),
            partial={},
            deferred=list(self.deferred),
            turn_fields=dict(self.turn_fields),
        )

    def define(self, name: str, value: Any, meta: Any = None, typed: Typed | None = None) -> None:
        """Set variable ``name``, which replaces an earlier variable of that name."""
        self.describe(name, meta, typed)
        self.variables[name] = value
        self.made[name] = None

    def describe(self, name: str, meta: Any, typed: Typed | None) -> None:
        """Set meta_info and constraint of a variable, whose value may still be incomplete."""
        for kept, new in ((self.meta, meta), (self.typed, typed)):
            if new is None:
                kept.pop(name, None)
            else:
                kept[name] = new

    def text_of(self, name: str) -> str:
        """Return a variable as text."""
        return text_of(self.variables[name])

    def here(self) -> ForkPoint:
        """Return the current end of the stream, as the begin of a fork."""
        return ForkPoint(
            len(self.text), len(self.messages), len(self.media), len(self.parallel), self.role
        )

    def prompt(self, turn: bool = True) -> Prompt:
        """Return the prompt for the backend. The text of the open role is the last message.

        ``turn``: False leaves out the text of the open role.
        """
        end = len(self.text) if turn or self.role is None else self.role_start
        messages: Sequence[dict[str, Any]] = self.messages
        if self.role is not None and self.role_start < end:
            content = self.content(self.role_start)
            messages = [*messages, {"role": self.role, "content": content}]
        media = tuple(medium for start, _, medium in self.media if start < end)
        prompt = Prompt(self.text[:end], tuple(messages), media, tuple(self.parallel))
        return prompt if self.tools is None else self.tools.introduced(prompt)

    def content(self, start: int) -> Content:
        """Return the text from ``start`` on; a list of texts and media if it contains media."""
        if not self.media or self.media[-1][0] < start:
            return self.text[start:]
        parts: list[Any] = []
        for begin, end, medium in self.media:
            if begin >= start:
                parts += [self.text[start:begin], medium]
                start = end
        parts.append(self.text[start:])
        return [part for part in parts if part != ""]
