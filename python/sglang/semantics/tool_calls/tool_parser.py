"""ToolParser: splits a growing text into plain text, names of tool calls and pieces of their
arguments.

The text is read character by character. So the output depends only on the text, however it is cut
into pieces.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from typing import Protocol

from sglang.semantics.tool_calls.deltas import AnswerWords, Arguments, Begin, Delta
from sglang.semantics.tool_calls.json_scan import SPACE, CallObject

_SPACE = re.compile(r"[ \t\r\n]+")


class ToolParser(Protocol):
    """Parser of one text."""

    @property
    def cut(self) -> bool:
        """Return whether the text so far ends inside the arguments of a call."""
        ...

    def feed(self, text: str) -> list[Delta]:
        """Return the deltas of the next piece of the text."""
        ...

    def finish(self, cut: bool = False) -> list[Delta]:
        """Return the text that was held back, after all text was fed. ``cut``: a limit ended the
        text, so the beginning of a call at its end is dropped."""
        ...


class CallParser:
    """Base of the parsers of all formats: it handles plain text, the marks that begin a call, and
    space around calls.

    A call is *emitted* when its name and the beginning of its arguments are known. Characters up to
    that point are held. If they turn out to be no call, they are emitted as text. Space before and
    after a call is dropped. No character is held or read again more often than a mark has
    characters.

    A format defines ``marks``, ``line_marks`` and ``_open``. ``marks`` are texts that begin a call
    anywhere; the first character of a mark occurs nowhere else in it. Each character of
    ``line_marks`` begins a call at the start of a line. ``_open`` is called after a mark and
    chooses the next step. A step is called with one character; the last one calls ``_close`` or
    ``_refuse``.
    """

    marks: tuple[str, ...] = ()
    line_marks = ""

    def __init__(self, names: Collection[str], any_name: bool = False) -> None:
        """``any_name``: after one of ``marks`` a call may have a name that is not in ``names``."""
        self._names, self._any_name, self._marked = names, any_name, False
        self._words = _words("".join(mark[0] for mark in self.marks), bool(self.line_marks))
        self._out: list[Delta] = []
        self._calls = 0
        self._step = self._between
        self._space: list[str] = []  # space that a call would swallow
        self._tag = ""  # characters that may become a mark
        self._held: list[str] = []  # characters of a call that may turn out to be text
        self._inside = False  # a call was begun and not closed
        self._fresh = True  # nothing stands before on this line

    @property
    def cut(self) -> bool:
        return self._inside

    def feed(self, text: str) -> list[Delta]:
        at = 0
        while at < len(text):
            end = self._run(text, at)
            if end == at:
                self._step(text[at])
                end = at + 1
            at = end
        return self._taken()

    def finish(self, cut: bool = False) -> list[Delta]:
        begun = bool(self._held) or self._calls > 0
        rest = "".join(self._space) + "".join(self._held) + self._tag
        if not (cut and begun) and (not self._calls or rest.strip(SPACE)):
            self._say(rest)
        self._space, self._held, self._tag = [], [], ""
        return self._taken()

    def _run(self, text: str, at: int) -> int:
        """Read a run of characters that need no step of their own, from index ``at`` of ``text``.
        Return the index after the run."""
        if self._step != self._between or self._tag:
            return at
        if self._fresh and text[at] in self.line_marks:
            return at
        found = self._words.match(text, at)
        if found is None:
            return self._run_of_space(text, at)
        self._say("".join(self._space) + found[0])
        self._space = []
        return found.end()

    def _run_of_space(self, text: str, at: int) -> int:
        found = _SPACE.match(text, at)
        if found is None:
            return at
        self._space.append(found[0])
        self._fresh = self._fresh or "\n" in found[0]
        return found.end()

    def _knows(self, name: str | None) -> bool:
        """Return whether an object or a call with this name is the call of a tool."""
        return name in self._names or (self._any_name and self._marked and bool(name))

    def _open(self, mark: str) -> None:
        """Choose the step that reads what follows the opening mark ``mark``."""
        raise NotImplementedError

    def _taken(self) -> list[Delta]:
        """Return the deltas since the last call, with neighbours of one kind merged, and forget
        them."""
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
            self._out.append(AnswerWords(text))
            self._fresh = text[-1] == "\n"

    def _between(self, char: str) -> None:
        """Read plain text. Space and the possible beginning of a mark are held back."""
        if not self._tag and char in SPACE:
            self._space.append(char)
            self._fresh = self._fresh or char == "\n"
            return
        self._tag += char
        if self._tag in self.marks or (self._fresh and self._tag in self.line_marks):
            mark, self._tag = self._tag, ""
            self._held, self._space = [*self._space, mark], []
            self._marked = mark in self.marks
            self._open(mark)
        elif not any(mark.startswith(self._tag) for mark in self.marks):
            self._say("".join(self._space) + self._tag[:-1])
            self._space, self._tag = [], ""
            if char in SPACE or any(mark[0] == char for mark in self.marks):
                self._between(char)
            else:
                self._say(char)

    def _tell(self, name: str, arguments: str) -> None:
        """Emit the beginning of a call of ``name``. Nothing is held after that."""
        self._out.append(Begin(self._calls, name))
        self._calls, self._held, self._inside = self._calls + 1, [], True
        self._argue(arguments)

    def _argue(self, text: str) -> None:
        if text:
            self._out.append(Arguments(self._calls - 1, text))

    def _close(self) -> None:
        """End a call: its arguments are complete."""
        self._inside = False

    def _refuse(self, char: str) -> None:
        """Emit the held characters as text, and read ``char``, the next one, as text."""
        held, self._held = self._held, []
        self._say("".join(held))
        self._step = self._between
        self._between(char)

    def _to_end(self, char: str, mark: str) -> None:
        """Read ``mark``, which ends a call and may be missing; then read text."""
        self._tag += char
        if self._tag == mark:
            self._tag = ""
            self._resume()
        elif not mark.startswith(self._tag):
            rest, self._tag = self._tag, ""
            self._resume(rest)

    def _resume(self, rest: str = "") -> None:
        """Read text again after a call, beginning with ``rest``."""
        self._step, self._fresh = self._between, True
        for char in rest:
            self._step(char)


@lru_cache(maxsize=16)
def _words(marks: str, lines: bool) -> re.Pattern[str]:
    """Return a pattern of words and the space between them that contain no mark. ``lines``: the
    pattern stays within one line."""
    word, space = rf"[^ \t\r\n{re.escape(marks)}]+", r"[ \t]+" if lines else r"[ \t\r\n]+"
    return re.compile(f"{word}(?:{space}{word})*")


class ObjectParser(CallParser):
    """Base of the parsers of formats whose calls are JSON objects. ``_behind`` reads the characters
    after an object."""

    arguments: tuple[str, ...] = ("arguments",)
    keys: tuple[str, ...] = ()

    def _begin_object(self, first: str = "") -> None:
        """Begin to read an object. ``first``: its first character, which is held already."""
        self._object = CallObject(self.arguments, self.keys)
        self._step = self._in_object
        if first:
            self._object.take(first)

    def _behind(self, char: str) -> None:
        raise NotImplementedError

    def _called(self, found: CallObject) -> bool:
        """Return whether ``found``, an object whose name is known, is the call of a tool."""
        return self._knows(found.name) or (self._any_name and bool(found.arguments))

    def _run(self, text: str, at: int) -> int:
        if self._step != self._in_object or self._held:
            return super()._run(text, at)
        end = self._object.run(text, at)
        self._argue(text[at:end])
        return end

    def _in_object(self, char: str) -> None:
        found = self._object
        fresh = found.take(char)
        if not self._held:  # the call is emitted: the rest of its arguments follows as it comes
            self._argue(fresh)
            self._inside = found.open
            if found.done or found.wrong:
                self._step = self._behind
            if found.wrong:
                self._behind(char)
        elif found.wrong or (found.ready and not self._called(found)):
            self._refuse(char)
        else:
            self._held.append(char)
            if found.ready:
                self._tell(found.name or "", "".join(found.arguments) or "{}")
                self._inside = found.open
                self._step = self._behind if found.done else self._in_object
