"""Errors that a program or its reader can meet."""

from __future__ import annotations

from typing import NamedTuple


class Location(NamedTuple):
    """Where in the user's source a primitive was appended."""

    filename: str
    line: int

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}"


class SglangError(Exception):
    """Base of the errors raised by ``sglang`` itself."""


class BackendError(SglangError):
    """The backend refused or lost a request. ``status`` is the HTTP status where there was one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ProgramError(SglangError):
    """A primitive failed while it was executed; raised where its result is read.

    ``__cause__`` is the original exception, ``filename`` and ``line`` name the ``s += ...``
    statement, and the message ends with both.
    """

    def __init__(self, message: str, location: Location | None = None) -> None:
        super().__init__(f"{message} at {location}" if location else message)
        self.filename = location.filename if location else None
        self.line = location.line if location else None


class UnknownVariable(ProgramError, KeyError):
    """A variable was read that the program never made."""

    def __str__(self) -> str:
        return str(self.args[0])


class Unsupported(SglangError, NotImplementedError):
    """The backend, or this version, has no such primitive."""
