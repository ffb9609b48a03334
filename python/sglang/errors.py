"""Errors that a program or its reader can meet."""

from __future__ import annotations

from typing import Any

from sglang.ir.source_location import Location


class SglangError(Exception):
    """Base of the errors raised by ``sglang`` itself."""


class Cancelled(SglangError):
    """The program was ended from outside."""


class BackendError(SglangError):
    """The backend refused or lost a request.

    Attributes:
        status: HTTP status, where there was one.
        request_id: the service's id of the request, where it gave one.
        prompt_tail: the end of the prompt that was sent, where known.
    """

    def __init__(
        self,
        message: str,
        status: int | None = None,
        *,
        request_id: str | None = None,
        prompt_tail: str | None = None,
    ) -> None:
        known = [message]
        known += [f"request id {request_id}"] if request_id else []
        known += [f"the prompt ends with {prompt_tail!r}"] if prompt_tail else []
        super().__init__("; ".join(known))
        self.status = status
        self.request_id = request_id
        self.prompt_tail = prompt_tail


class ConnectionFailed(BackendError):
    """No answer: the service cannot be reached, or the connection was lost."""


class TimedOut(ConnectionFailed):
    """No answer in time."""


class BadRequest(BackendError):
    """400, 413 or 422: the request itself is at fault."""


class AuthenticationFailed(BackendError):
    """401: the API key is missing or wrong."""


class PermissionDenied(BackendError):
    """403: the key may not do this."""


class NotFound(BackendError):
    """404: no such model or route."""


class RateLimited(BackendError):
    """429, still, after the retries."""


class ServerFailed(BackendError):
    """500 and above, still, after the retries."""


_BY_STATUS: dict[int, type[BackendError]] = {
    400: BadRequest,
    401: AuthenticationFailed,
    403: PermissionDenied,
    404: NotFound,
    413: BadRequest,
    422: BadRequest,
    429: RateLimited,
}


def refusal(status: int | None) -> type[BackendError]:
    """The class of error that stands for an HTTP status."""
    if status is None:
        return BackendError
    return _BY_STATUS.get(status, ServerFailed if status >= 500 else BackendError)


class ToolError(SglangError):
    """A tool of the program raised, took too long, or returned neither a text nor JSON."""


class InvalidOutput(SglangError, ValueError):
    """The generated ``text`` does not satisfy its constraint."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text


class ProgramError(SglangError):
    """A primitive failed while it was executed; raised where its result is read.

    ``__cause__`` is the original exception, ``filename`` and ``line`` name the ``s += ...``
    statement, and the message ends with both.
    """

    def __init__(self, message: str, location: Location | None = None) -> None:
        super().__init__(f"{message.rstrip('.')} at {location}" if location else message)
        self.filename = location.filename if location else None
        self.line = location.line if location else None


class BatchError(SglangError):
    """Items of a batch have failed; the others have run.

    Attributes:
        states: the ProgramStates of all items, in order; reading a failed one raises its error.
            Empty in an error that pickle brought from another process.
        errors: the errors by the number of their item.
    """

    def __init__(self, message: str, states: list[Any], errors: dict[int, BaseException]):
        super().__init__(message)
        self.states = states
        self.errors = errors

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchError, (str(self), [], self.errors)  # states hold threads and connections


class UnknownVariable(ProgramError, KeyError):
    """A variable was read that the program never made."""

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidVariable(ProgramError, InvalidOutput):
    """InvalidOutput, raised where the variable is read."""

    def __init__(self, message: str, location: Location | None = None, text: str = "") -> None:
        ProgramError.__init__(self, message, location)
        self.text = text


class TraceError(SglangError, TypeError):
    """The program cannot be traced: its flow needs a value that is only known when it runs."""


class Unsupported(SglangError, NotImplementedError):
    """The backend, or this version, has no such primitive."""


class UnsupportedHere(ProgramError, Unsupported):
    """Unsupported, raised where the result is read."""


def lacking(what: str, extra: str, error: ImportError) -> Unsupported:
    """The error of ``what``, which needs an optional dependency that is not installed."""
    fix = f"pip install -e '.[{extra}]' in the project's folder"
    return Unsupported(f"{what} needs: {fix} ({error})")


def located(error: BaseException, message: str, location: Location) -> ProgramError:
    """The ProgramError to raise for ``error``; of its kind too, where programs expect that."""
    if isinstance(error, InvalidOutput):
        return InvalidVariable(message, location, error.text)
    return (UnsupportedHere if isinstance(error, Unsupported) else ProgramError)(message, location)
