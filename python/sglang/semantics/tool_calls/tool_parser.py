"""ToolParser: the calls in a text that is still growing, as text, names and pieces of arguments.

Character by character: what comes out is a function of the text alone, however it is cut up.
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
    """Reads one text."""

    @property
    def cut(self) -> bool:
        """Whether the text so far ends inside the arguments of a call."""
        ...

    def feed(self, text: str) -> list[Delta]:
        """Additions of the next piece of the text."""
        ...

    def finish(self, cut: bool = False) -> list[Delta]:
        """Text that was held back, once all has been fed. ``cut``: a limit ended it, so that the
        beginning of a call is no text."""
        ...


class CallParser:
    """Base of the parsers of all formats: text, the marks that begin a call, space around calls.

    A call is *emitted* when its name and the beginning of its arguments are known; characters read
    up to then are held, and are text where it turns out to be no call. Space before and behind a
    call is dropped. No character is held or read again more often than a mark is long.

    A format has ``marks`` (texts that begin a call anywhere; their first character is nowhere
    else in them), ``line_marks`` (one character each, that begins one at the start of a line) and
    ``_open``, which a mark leads to. Its steps, each called with one character, end with
    ``_close`` or ``_refuse``.
    """

    marks: tuple[str, ...] = ()
    line_marks = ""

    def __init__(self, names: Collection[str], any_name: bool = False) -> None:
        """``any_name``: after ``marks`` a call may have a name that is none of ``names``."""
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
        """Read a run of characters that one step each would do no more with; where it ends."""
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
        """Whether an object or a call of this name is the call of a tool."""
        return name in self._names or (self._any_name and self._marked and bool(name))

    def _open(self, mark: str) -> None:
        """Choose the step that reads what follows the opening mark ``mark``."""
        raise NotImplementedError

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
            self._out.append(AnswerWords(text))
            self._fresh = text[-1] == "\n"

    def _between(self, char: str) -> None:
        """Text: space and what may be a mark are held back."""
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
        """A call of ``name`` has begun; nothing is held any more."""
        self._out.append(Begin(self._calls, name))
        self._calls, self._held, self._inside = self._calls + 1, [], True
        self._argue(arguments)

    def _argue(self, text: str) -> None:
        if text:
            self._out.append(Arguments(self._calls - 1, text))

    def _close(self) -> None:
        """The call's arguments are complete."""
        self._inside = False

    def _refuse(self, char: str) -> None:
        """Give the held characters as text; ``char``, the next one, is read anew."""
        held, self._held = self._held, []
        self._say("".join(held))
        self._step = self._between
        self._between(char)

    def _to_end(self, char: str, mark: str) -> None:
        """Read ``mark``, which ends a call and may be missing; then text."""
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
    """Words, and space between them, in which no mark begins; of one line where lines matter."""
    word, space = rf"[^ \t\r\n{re.escape(marks)}]+", r"[ \t]+" if lines else r"[ \t\r\n]+"
    return re.compile(f"{word}(?:{space}{word})*")


class ObjectParser(CallParser):
    """Calls that are JSON objects; ``_behind`` reads what follows one."""

    arguments: tuple[str, ...] = ("arguments",)
    keys: tuple[str, ...] = ()

    def _begin_object(self, first: str = "") -> None:
        """``first``: its first character, held already."""
        self._object = CallObject(self.arguments, self.keys)
        self._step = self._in_object
        if first:
            self._object.take(first)

    def _behind(self, char: str) -> None:
        raise NotImplementedError

    def _called(self, found: CallObject) -> bool:
        """Whether an object whose name is known is the call of a tool."""
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
