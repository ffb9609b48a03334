"""Errors that ``sglang`` raises in programs and in code that reads their results."""

from __future__ import annotations

from typing import Any

from sglang.ir.source_location import Location


class SglangError(Exception):
    """Base of the errors raised by ``sglang`` itself."""


class Cancelled(SglangError):
    """The program was cancelled, for example by ``state.cancel()``."""


class BackendError(SglangError):
    """The backend refused or lost a request.

    Attributes:
        status: HTTP status, None without one.
        request_id: the service's id of the request, if it gave one.
        prompt_tail: the end of the prompt that was sent, if known.
        again_in: seconds after which the request may be sent again (``Retry-After``); the runtime
            has not begun it. None: the runtime names no time.
    """

    again_in: float | None = None

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
    """The service cannot be reached, or the connection was lost."""


class TimedOut(ConnectionFailed):
    """The service did not answer within the timeout."""


class BadRequest(BackendError):
    """HTTP status 400, 413 or 422: the request is invalid."""


class AuthenticationFailed(BackendError):
    """HTTP status 401: the API key is missing or wrong."""


class PermissionDenied(BackendError):
    """HTTP status 403: the API key does not permit the request."""


class NotFound(BackendError):
    """HTTP status 404: there is no such model or route."""


class RateLimited(BackendError):
    """HTTP status 429 after all retries: too many requests."""


class ServerFailed(BackendError):
    """HTTP status 500 or above after all retries: the service failed."""


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
    """Return the class of error for an HTTP status; None: BackendError."""
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
    """A primitive failed while it was executed. The error is raised where its result is read.

    ``__cause__`` is the original exception. ``filename`` and ``line`` name the ``s += ...``
    statement, and the message ends with both.
    """

    def __init__(self, message: str, location: Location | None = None) -> None:
        super().__init__(f"{message.rstrip('.')} at {location}" if location else message)
        self.filename = location.filename if location else None
        self.line = location.line if location else None


class BatchError(SglangError):
    """Items of a batch have failed; the others have run.

    Attributes:
        states: the ProgramStates of all items, in order; reading a failed one raises its error. The
            list is empty if the error was pickled in another process.
        errors: the errors by the index of their item.
    """

    def __init__(self, message: str, states: list[Any], errors: dict[int, BaseException]):
        super().__init__(message)
        self.states = states
        self.errors = errors

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchError, (str(self), [], self.errors)  # states hold threads and connections


class UnknownVariable(ProgramError, KeyError):
    """The program read a variable that it never defines."""

    def __str__(self) -> str:
        return str(self.args[0])


class InvalidVariable(ProgramError, InvalidOutput):
    """An InvalidOutput that is raised where the variable is read."""

    def __init__(self, message: str, location: Location | None = None, text: str = "") -> None:
        ProgramError.__init__(self, message, location)
        self.text = text


class TraceError(SglangError, TypeError):
    """The program cannot be traced, because its control flow needs a value that is known only in a
    run."""


class Unsupported(SglangError, NotImplementedError):
    """The backend, or this version of ``sglang``, does not support the primitive."""


class UnsupportedHere(ProgramError, Unsupported):
    """An Unsupported that is raised where the result is read."""


def lacking(what: str, extra: str, error: ImportError) -> Unsupported:
    """Return the error for ``what``, which needs an optional dependency that is not installed."""
    fix = f"pip install -e '.[{extra}]' in the project's folder"
    return Unsupported(f"{what} needs: {fix} ({error})")


def located(error: BaseException, message: str, location: Location) -> ProgramError:
    """Return the ProgramError to raise for ``error``. It is also an InvalidOutput or an Unsupported
    if ``error`` is one, because programs may catch those."""
    if isinstance(error, InvalidOutput):
        return InvalidVariable(message, location, error.text)
    return (UnsupportedHere if isinstance(error, Unsupported) else ProgramError)(message, location)
