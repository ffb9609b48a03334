"""Failure: the error that has ended an executor, and the exception that readers get."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from sglang.errors import ProgramError, SglangError, located
from sglang.ir.source_location import Location


class Failure:
    """The error that ended an executor. ``seen``: the error has been raised to the program."""

    def __init__(self, error: BaseException, location: Location | None) -> None:
        self.error, self.location, self.seen = error, location, False

    def exception(self, outside: bool = False) -> BaseException:
        """Return a fresh exception, so that readers in several threads share no traceback.

        An error that the program itself raised (no location) is returned unchanged. ``outside``:
        the reader is not the program.
        """
        self.seen = self.seen or not outside
        if self.location is None or isinstance(self.error, ProgramError):
            return self.error
        kind = type(self.error).__name__
        message = str(self.error) or kind
        if not isinstance(self.error, SglangError):
            message = f"{kind}: {message}"
        raised = located(self.error, message, self.location)
        raised = raised.with_traceback(_statement(self.location))
        raised.__cause__ = self.error
        return raised


def _statement(location: Location) -> TracebackType:
    """Return a traceback that ends at a line of the program, which is not running any more.

    The frame does not belong to code of that file; -1 stands for no failed instruction.
    """
    code = compile("import sys; frame = sys._getframe()", location.filename, "exec")
    names: dict[str, Any] = {}
    exec(code.replace(co_name="<program>"), names)
    return TracebackType(None, names["frame"], -1, location.line)
