"""Claim: one workload, written as a program of ours and in plain client code, with its answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from sglang import SglFunction

Item: TypeAlias = Mapping[str, Any]
"""Arguments of the program, by name: plain data."""
Answer: TypeAlias = Any
"""What a program returns: plain data, equal wherever texts are."""
Message: TypeAlias = Mapping[str, Any]


class Api(Protocol):
    """A model as plain client code sees it: OpenAI's completions and chat, and a choice.

    Everything is greedy. Whether end tokens are ignored is the side's to say, not the workload's.
    """

    async def complete(
        self, prompt: str, max_tokens: int, *, stop: Sequence[str] = (), regex: str = "",
        json_schema: Mapping[str, Any] | None = None, n: int = 1,
    ) -> list[str]:  # fmt: skip
        """``n`` texts after ``prompt``."""

    async def chat(
        self, messages: Sequence[Message], max_tokens: int, *, stop: Sequence[str] = ()
    ) -> str:
        """The assistant's next turn. Contents are texts, or OpenAI's content parts."""

    async def choose(self, prompt: str, options: Sequence[str]) -> int:
        """Index of the likeliest option after ``prompt``, by its mean log-probability a token.
        Sides that cannot score texts choose as they can, and say so."""


@dataclass(frozen=True)
class Scale:
    """Size of a workload. ``items``: program instances. ``long``: lengths as in the paper, in a
    context of 8192 tokens; else as short as the workload makes sense, in a context of 4096, for a
    small model to answer in seconds."""

    items: int
    long: bool = False


@dataclass(frozen=True)
class Claim:
    """A workload of the paper.

    Attributes:
        name: its folder in ``benchmark``.
        title: as the report calls it.
        paper: what the paper says of it, with the section.
        items: what it runs on, a function of the scale and a seed alone.
        program: ours. It returns the answer of its item.
        plain: the same in client code: it makes the requests that the program makes, one after the
            other where one needs another's text, side by side where it does not.
        right: whether an answer is the right one for its item; None where there is no right one.
        speedup: how many times as many items a second as the best peer it must run; None: no
            target.
        concurrency: items that run at once where throughput is measured.
        constrained: texts are held to a pattern: end tokens count even with random weights.
        module: holds the claim as ``CLAIM``; by default ``claim`` of its folder.
        model: makes the checkpoint of a size ("S") that it needs; None: any model of text will do.
    """

    name: str
    title: str
    paper: str
    items: Callable[[Scale, int], list[Item]]
    program: SglFunction
    plain: Callable[[Api, Item], Awaitable[Answer]]
    right: Callable[[Item, Answer], bool | None] = lambda item, answer: None
    speedup: float | None = None
    concurrency: int = 64
    constrained: bool = False
    module: str = ""
    model: Callable[[str], Path] | None = None
