"""JSON that is still growing, read character by character."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

SPACE = " \t\r\n"
_IN_STRING = re.compile(r'[^"\\]*')
_IN_BRACKETS = re.compile(r'[^"{}\[\]]*')


class Value:
    """One value of JSON: where it ends. What is between its brackets is not looked into.

    Attributes:
        done: it is complete. A number or a word is complete with the character after it, which
            is then not the value's own (``plain``).
    """

    def __init__(self, char: str) -> None:
        """``char`` is its first character."""
        self._string, self._escaped = char == '"', False
        self._depth = int(char in "{[")
        self.plain = not self._string and not self._depth
        self.done = False

    def run(self, text: str, at: int) -> int:
        """Index in ``text`` where the characters inside the value, from ``at`` on, end: these need
        not be fed one by one."""
        if self.plain or self._escaped:
            return at
        found = (_IN_STRING if self._string else _IN_BRACKETS).match(text, at)
        return found.end() if found else at

    def take(self, char: str) -> bool:
        """Read the next character; whether it belongs to the value."""
        if self.plain and char in SPACE + ",}]":
            self.done = True
            return False
        if self._string:
            if self._escaped or char == "\\":
                self._escaped = not self._escaped
            elif char == '"':
                self._string = False
        elif char == '"':
            self._string = True
        else:
            self._depth += (char in "{[") - (char in "}]")
        self.done = not (self.plain or self._string or self._depth)
        return True


class CallObject:
    """The top level of one JSON object that says a call.

    ``names`` are the keys that may hold the arguments; ``keys``, where given, all that there may
    be.

    Attributes:
        name: value of ``name``, once it is complete.
        arguments: text of the value of the arguments so far, kept until ``ready``.
        ready: the name is known, and that there are arguments or none.
        done: the object is closed. wrong: it is none, or not that of a call.
    """

    def __init__(self, names: Collection[str], keys: Collection[str] = ()) -> None:
        self.name: str | None = None
        self.arguments: list[str] = []
        self.done = self.wrong = False
        self._names, self._keys = names, keys
        self._state = "open"  # then "first", "colon", "value", "comma", "key", "colon", ...
        self._key = ""
        self._kept: list[str] = []  # text of a key or of the name
        self._value: Value | None = None

    @property
    def ready(self) -> bool:
        return self.done or (self.name is not None and bool(self.arguments))

    @property
    def open(self) -> bool:
        """Whether the text so far ends inside the arguments."""
        return self._value is not None and self._in_arguments()

    def run(self, text: str, at: int) -> int:
        """Index in ``text`` where the characters inside the arguments, from ``at`` on, end."""
        return self._value.run(text, at) if self._value and self._in_arguments() else at

    def take(self, char: str) -> str:
        """Read the next character; what it adds to the arguments."""
        if self._value is not None:
            return self._further(self._value, char)
        if char in SPACE:
            return ""
        state = self._state
        if state in ("first", "comma") and char == "}":
            self.done = True
        elif (state, char) in _NEXT:
            self._state = _NEXT[state, char]
        elif state in ("first", "key") and char == '"':
            self._state = "key"
            self._value, self._kept = Value(char), [char]
        elif state == "value" and char == self._first(char) and char not in ",:}]":
            self._value, self._kept = Value(char), [char]
            return self._added(char)
        else:
            self.wrong = True
        return ""

    def _first(self, char: str) -> str:
        """Character that the value must begin with."""
        if self._in_arguments():
            return "{"
        return '"' if self._key == "name" else char

    def _further(self, value: Value, char: str) -> str:
        """A further character of a key or value."""
        if not value.take(char):
            self._leave()
            return self.take(char)
        if self._state == "key" or self._key == "name":
            self._kept.append(char)
        added = self._added(char)
        if value.done:
            self._leave()
        return added

    def _in_arguments(self) -> bool:
        return self._state == "value" and self._key in self._names

    def _added(self, char: str) -> str:
        if not self._in_arguments():
            return ""
        if not self.ready:
            self.arguments.append(char)
        return char

    def _leave(self) -> None:
        """The key or value is complete."""
        self._value = None
        if self._state == "value":
            self._state = "comma"
            if self._key == "name":
                self.name = _string(self._kept)
            return
        key, self._state = _string(self._kept), "colon"
        self._key = key or ""
        twice = self.name is not None if key == "name" else key in self._names and self.arguments
        self.wrong = key is None or bool(twice) or bool(self._keys and key not in self._keys)


_NEXT = {("open", "{"): "first", ("colon", ":"): "value", ("comma", ","): "key"}


def _string(text: Sequence[str]) -> str | None:
    """The string that JSON text says, None where it says none."""
    try:
        found: str = json.loads("".join(text))
    except ValueError:
        return None
    return found
