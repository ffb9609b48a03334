"""Typed: conversion of a constrained variable's text to its value, and errors of invalid texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sglang.backend.output_constraint import OutputConstraint
from sglang.errors import InvalidOutput, InvalidVariable
from sglang.ir.source_location import Location


class Typed(NamedTuple):
    """The constraint of a variable, and the gen that made the variable.

    Attributes:
        max_tokens: the gen's limit of tokens, None if unknown.
        location: the line that appended the gen, None if unknown.
    """

    constraint: OutputConstraint
    max_tokens: int | None = None
    location: Location | None = None

    def value(self, text: str, meta: Mapping[str, Any]) -> Any:
        """Return the typed value of a finished text with the meta_info ``meta``. Raises
        InvalidVariable, whose message names the limit that cut the text, if one did."""
        try:
            return self.constraint.parse(text)
        except InvalidOutput as error:
            message = _with_cut(error, meta, self.max_tokens)
            raise InvalidVariable(message, self.location, error.text) from error


def verify(
    constraint: OutputConstraint, text: str, meta: Mapping[str, Any], max_tokens: int | None
) -> None:
    """Raise InvalidOutput for a text that violates the constraint. The message names the limit that
    cut the text, if one did."""
    try:
        constraint.check(text)
    except InvalidOutput as error:
        raise InvalidOutput(_with_cut(error, meta, max_tokens), error.text) from error


def _with_cut(error: InvalidOutput, meta: Mapping[str, Any], max_tokens: int | None) -> str:
    """Return the error's text, with the limit that cut the generated text, if one did."""
    end = cut_at(meta, max_tokens)
    return f"{end[0]}: {error}; {end[1]}" if end else str(error)


def cut_at(meta: Mapping[str, Any], max_tokens: int | None) -> tuple[str, str] | None:
    """Return the limit that cut a text, and advice; None if no limit did."""
    finish = meta.get("finish_reason")
    if not isinstance(finish, Mapping) or finish.get("type") != "length":
        return None
    length = finish.get("length")
    if max_tokens is not None and length is not None and length < max_tokens:
        return f"stopped after {length} tokens, where the context was full", "shorten the prompt"
    return f"stopped at max_tokens={max_tokens or length}", "raise max_tokens"
