"""Finding: one thing that was looked at, and how it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class CheckFinding:
    """``state`` is "ok", "warn" or "fail"; ``fix`` is what to do about it, "" where nothing is."""

    check: str
    state: str
    found: str
    fix: str = ""


Check: TypeAlias = Callable[[], Iterable[CheckFinding]]


def examine(checks: Iterable[tuple[str, Check]]) -> list[CheckFinding]:
    """Findings of all checks; a check that raises is itself a finding."""
    found: list[CheckFinding] = []
    for name, check in checks:
        try:
            found += check()
        except Exception as error:  # a broken installation may raise anything
            reason = str(error).strip().split("\n")[0]
            found.append(CheckFinding(name, FAIL, f"{type(error).__name__}: {reason}"))
    return found
