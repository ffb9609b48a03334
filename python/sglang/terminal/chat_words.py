"""Chat words: what a typed line means, and the lines that one message takes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from sglang.srt.core.nearest import nearest

COMMANDS = {
    "help": "show these commands",
    "system": "TEXT  replace the system message; without TEXT show it, with - take it away",
    "set": "NAME=VALUE  a field of the requests, such as temperature=0; without a value take it "
    "away; without NAME show them",
    "image": "FILE  attach an image to the next message",
    "retry": "take the last answer away and ask again",
    "undo": "take the last question and its answer away",
    "clear": "take all turns away",
    "history": "show the turns",
    "save": "FILE  write the conversation as JSON",
    "load": "FILE  go on with a saved conversation",
    "model": "NAME  ask another model of the server; without NAME list them",
    "stats": "show tokens and speed after each answer, or no more",
    "exit": "end; so does Ctrl-D",
}
OTHER_NAMES = {"quit": "exit", "bye": "exit", "?": "help", "regenerate": "retry", "reset": "clear",
               "new": "clear"}  # fmt: skip
NEEDED = ("image", "save", "load")  # commands without a meaning where nothing follows them
QUOTES = '"""'
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ChatWordError(ValueError):
    """The line means nothing. The text says what could be meant."""


def command_of(line: str) -> tuple[str, str] | None:
    """The command of a line and what follows it; None where the line is a message. A message that
    begins with a slash is written with two. Raises ChatWordError."""
    if not line.startswith("/") or line.startswith("//"):
        return None
    word, _, rest = line[1:].strip().partition(" ")
    name = OTHER_NAMES.get(word, word)
    if name not in COMMANDS:
        near = nearest(name, COMMANDS)
        hint = f"did you mean /{near}?" if near else "/help lists them"
        raise ChatWordError(f"there is no command /{word}; {hint} (a message may begin with //)")
    if name in NEEDED and not rest.strip():
        raise ChatWordError(f"/{name} needs a file: /{name} FILE")
    return name, rest.strip()


def message_of(line: str) -> str:
    """The message that a line means, where it is no command."""
    return line[1:] if line.startswith("//") else line


def read_message(line: str, more: Callable[[], str]) -> str:
    '''The whole of a message that begins with ``line``: a line that ends with a backslash goes on,
    and so does one that begins with """ until the line that ends with it. ``more`` gives the next
    line; EOFError ends the message.'''
    if line.startswith(QUOTES):
        return _quoted(line[len(QUOTES) :], more)
    lines = []
    while line.endswith("\\"):
        lines.append(line[:-1])
        line = _next(more)
    return "\n".join([*lines, line])


def _quoted(line: str, more: Callable[[], str]) -> str:
    lines = []
    try:
        while not line.rstrip().endswith(QUOTES):
            lines.append(line)
            line = more()
    except EOFError:
        return "\n".join(lines)
    return "\n".join([*lines, line.rstrip()[: -len(QUOTES)]]).strip("\n")


def _next(more: Callable[[], str]) -> str:
    try:
        return more()
    except EOFError:
        return ""


def setting(words: str) -> tuple[str, Any]:
    """Name and value of a /set; None as a value takes the field away. A value is JSON or a text."""
    name, equals, value = words.partition("=")
    name, value = name.strip(), value.strip()
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ChatWordError(f"/set {words} names no field; write /set temperature=0")
    if name in ("messages", "stream", "model", "stream_options"):
        raise ChatWordError(f"{name} is made by the chat itself; /help lists what changes it")
    if not equals or not value:
        return name, None
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def printable(text: str) -> str:
    """A text of a model without characters that would command the terminal."""
    return _CONTROL.sub("�", text)


def help_lines() -> Iterator[str]:
    """The commands, a line each."""
    for name, text in COMMANDS.items():
        word, _, about = text.partition("  ") if "  " in text else ("", "", text)
        yield f"  /{f'{name} {word}'.strip():<16} {about}"
    yield f"  {QUOTES:<17} begins a message of several lines, and ends it; so does \\ at an end"
    yield f"  {'Ctrl-C':<17} stops an answer; what is there of it stays"
