"""ToolParser: the calls in a text that is still growing, as text, names and pieces of arguments.

Character by character: what comes out is a function of the text alone, however it is cut up.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol

from srt.program.deltas import Arguments, Begin, Delta, Words


class ToolParser(Protocol):
    """Reads one text."""

    @property
    def cut(self) -> bool:
        """Whether the text so far ends inside the arguments of a call."""
        ...

    def feed(self, text: str) -> list[Delta]:
        """What the next piece of the text adds."""
        ...

    def finish(self) -> list[Delta]:
        """What was held back, once the text has ended."""
        ...


BEGIN, END = "<tool_call>", "</tool_call>"
SPACE = " \t\r\n"


class HermesParser:
    """JSON objects with ``name`` and ``arguments`` between ``<tool_call>`` and ``</tool_call>``.

    A block that names no known function, or has no object for arguments, is text. Space before and
    behind a call is dropped.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._out: list[Delta] = []
        self._calls = 0
        self._step = self._between
        self._space: list[str] = []  # that a call would swallow
        self._tag = ""  # what may become a tag
        self._block: list[str] = []  # of a call, as long as it may turn out to be text

    @property
    def cut(self) -> bool:
        return self._step == self._in_object and self._object.ready and self._object.open

    def feed(self, text: str) -> list[Delta]:
        for char in text:
            self._step(char)
        return self._taken()

    def finish(self) -> list[Delta]:
        if self._step == self._behind:
            self._tag = ""  # a part of the end tag
        space = "".join(self._space)
        rest = space + "".join(self._block) + self._tag
        if not self._calls or rest.strip(SPACE):
            self._say(rest)
        self._space, self._block, self._tag = [], [], ""
        return self._taken()

    def _taken(self) -> list[Delta]:
        """Neighbours of one kind are one."""
        merged: list[Delta] = []
        for _, same in groupby(self._out, lambda delta: (type(delta), getattr(delta, "call", 0))):
            deltas = list(same)
            first = deltas[0]
            if isinstance(first, Begin):
                merged += deltas
            else:
                text = "".join(delta.text for delta in deltas if not isinstance(delta, Begin))
                merged.append(replace(first, text=text))
        self._out = []
        return merged

    def _say(self, text: str) -> None:
        if text:
            self._out.append(Words(text))

    def _between(self, char: str) -> None:
        """Text: space and what may be the tag are held back."""
        if not self._tag and char in SPACE:
            self._space.append(char)
            return
        self._tag += char
        if self._tag == BEGIN:
            self._block, self._space, self._tag = [*self._space, BEGIN], [], ""
            self._object, self._step = _Object(), self._in_object
        elif not BEGIN.startswith(self._tag):
            self._say("".join(self._space) + self._tag[:-1])
            self._space, self._tag = [], ""
            if char in SPACE or char == BEGIN[0]:
                self._between(char)
            else:
                self._say(char)

    def _in_object(self, char: str) -> None:
        found, call = self._object, self._calls - 1
        fresh = found.take(char)
        if not self._block:  # the call is told: the rest of its arguments follows as it comes
            if fresh:
                self._out.append(Arguments(call, fresh))
            if found.done or found.wrong:
                self._step = self._behind
            return
        if found.wrong or (found.ready and found.name not in self._names):
            self._say("".join(self._block))
            self._block, self._step = [], self._between
            self._between(char)
            return
        self._block.append(char)
        if found.ready:
            self._out.append(Begin(call + 1, found.name or ""))
            self._out.append(Arguments(call + 1, "".join(found.arguments) or "{}"))
            self._calls, self._block = self._calls + 1, []
            self._step = self._behind if found.done else self._in_object

    def _behind(self, char: str) -> None:
        """Behind the object: space, and the end tag."""
        if not self._tag and char in SPACE:
            return
        self._tag += char
        if self._tag == END:
            self._tag, self._step = "", self._between
        elif not END.startswith(self._tag):
            rest, self._tag, self._step = self._tag, "", self._between
            for each in rest:
                self._step(each)


class _Object:
    """The top level of one JSON object that is still growing.

    Attributes:
        name: value of ``name``, once it is complete.
        arguments: text of the value of ``arguments`` so far, kept until ``ready``.
        ready: the name is known, and that there are arguments or none.
        done: the object is closed. wrong: it is none, or not that of a call.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.arguments: list[str] = []
        self.done = self.wrong = False
        self._state = "open"  # then "first", "colon", "value", "comma", "key", "colon", ...
        self._key = ""
        self._kept: list[str] = []  # of a key or the name
        self._inside = self._string = self._escaped = False
        self._depth = 0

    @property
    def ready(self) -> bool:
        return self.done or (self.name is not None and bool(self.arguments))

    @property
    def open(self) -> bool:
        """Whether the text so far ends inside ``arguments``."""
        return self._inside and self._state == "value" and self._key == "arguments"

    def take(self, char: str) -> str:
        """Read the next character; what it adds to ``arguments``."""
        if self._inside:
            return self._further(char)
        if char in SPACE:
            return ""
        state = self._state
        if state in ("first", "comma") and char == "}":
            self.done = True
        elif (state, char) in _NEXT:
            self._state = _NEXT[state, char]
        elif state in ("first", "key") and char == '"':
            self._state = "key"
            self._enter(char)
        elif state == "value" and char == _OPENS.get(self._key, char) and char not in ",:}]":
            self._enter(char)
            return self._added(char)
        else:
            self.wrong = True
        return ""

    def _enter(self, char: str) -> None:
        """The first character of a key or value."""
        self._inside, self._escaped, self._kept = True, False, [char]
        self._string, self._depth = char == '"', int(char in "{[")

    def _further(self, char: str) -> str:
        """A further character of a key or value."""
        plain = not self._string and not self._depth  # a number, true, false or null
        if plain and char in SPACE + ",}":
            self._leave()
            return self.take(char)
        if self._string:
            if self._escaped or char == "\\":
                self._escaped = not self._escaped
            elif char == '"':
                self._string = False
        elif char == '"':
            self._string = True
        else:
            self._depth += (char in "{[") - (char in "}]")
        if self._state == "key" or self._key == "name":
            self._kept.append(char)
        added = self._added(char)
        if not plain and not self._string and not self._depth:
            self._leave()
        return added

    def _added(self, char: str) -> str:
        if self._state != "value" or self._key != "arguments":
            return ""
        if not self.ready:
            self.arguments.append(char)
        return char

    def _leave(self) -> None:
        """The key or value is complete."""
        self._inside = False
        if self._state == "value":
            self._state = "comma"
            if self._key == "name":
                self.name = _string(self._kept)
            return
        key, self._state = _string(self._kept), "colon"
        self._key = key or ""
        known = {"name": self.name is not None, "arguments": bool(self.arguments)}
        self.wrong = key is None or known.get(key, False)  # or it is there twice


_NEXT = {("open", "{"): "first", ("colon", ":"): "value", ("comma", ","): "key"}
_OPENS = {"name": '"', "arguments": "{"}


def _string(text: Sequence[str]) -> str | None:
    """The string that JSON text says, None where it says none."""
    try:
        found: str = json.loads("".join(text))
    except ValueError:
        return None
    return found
