"""Mutations: one small fault put into the real code, to see whether a test would notice."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any, NamedTuple

import pytest


class Edit(NamedTuple):
    """``old``, found exactly once in the source of ``owner.name``, becomes ``new``."""

    owner: Any
    name: str
    old: str
    new: str


def mutate(monkeypatch: pytest.MonkeyPatch, edit: Edit) -> None:
    """Replace a function, method or property by its mutant for the rest of the test.

    A mutant may be mutated again.
    """
    original = inspect.getattr_static(edit.owner, edit.name)
    function = original.fget if isinstance(original, property) else original
    source = getattr(function, "mutant", "") or textwrap.dedent(inspect.getsource(function))
    found = source.count(edit.old)
    assert found == 1, f"{edit.old!r} is {found} times in {edit.name}; adapt the mutation"
    space: dict[str, Any] = {}
    source = source.replace(edit.old, edit.new)
    code = "from __future__ import annotations\n" + source
    exec(compile(code, f"<mutant of {edit.name}>", "exec"), function.__globals__, space)
    mutant = space[edit.name]
    (mutant.fget if isinstance(mutant, property) else mutant).mutant = source
    monkeypatch.setattr(edit.owner, edit.name, mutant)
