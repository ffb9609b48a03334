"""Deltas: what a piece of generated text adds to a reply: words, thoughts, calls of tools."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class AnswerWords:
    """Text that belongs to no call."""

    text: str


@dataclass(frozen=True, slots=True)
class Begin:
    """A call begins, of the function ``name``; calls are numbered from 0."""

    call: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next piece of a call's arguments, JSON text."""

    call: int
    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of the model's reasoning, apart from its answer."""

    text: str


Delta: TypeAlias = AnswerWords | Thought | Begin | Arguments


def joined(deltas: Iterable[Delta]) -> tuple[str, list[tuple[str, str]]]:
    """The words, and name and arguments of each call; thoughts are left out."""
    words, calls = "", list[tuple[str, str]]()
    for delta in deltas:
        if isinstance(delta, AnswerWords):
            words += delta.text
        elif isinstance(delta, Begin):
            calls.append((delta.name, ""))
        elif isinstance(delta, Arguments):
            name, text = calls[delta.call]
            calls[delta.call] = name, text + delta.text
    return words, calls
