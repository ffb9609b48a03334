"""RequestError: the reason why a request cannot be served, as a message for the client."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

MAX_MESSAGE, MAX_PARAM = 2000, 100  # characters of an error's message, and of its field's name


def brief(text: str, most: int = MAX_MESSAGE) -> str:
    """Remove the middle of a text of more than ``most`` characters.

    The beginning of a message repeats a client's value, which may be long; its end has the advice.
    """
    if len(text) <= most:
        return text
    return f"{text[: most * 3 // 4]} ... {text[len(text) - most // 4 :]}"


def shown(value: object, most: int = 80) -> str:
    """Return the ``repr`` of a value for an error message. A long one is cut in the middle, so that
    both quotes stay."""
    return brief(repr(value), most)


class RequestError(ValueError):
    """A request that cannot be served.

    Attributes:
        message: names the value, the limit and the fix; a long message is cut in the middle.
        param: the field at fault; None: no single field.
        code: one of the stable codes in ``CODES``.
        retry: seconds after which the client may retry; None: the default of the code.
    """

    CODES = (
        "invalid_value", "context_length_exceeded", "unsupported", "invalid_api_key", "forbidden",
        "not_found", "queue_full", "rate_limit_exceeded", "overloaded", "internal_error",
        "engine_lost", "previous_response_not_found", "conflict", "expired", "draining",
    )  # fmt: skip

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str = "invalid_value",
        retry: int | None = None,
    ) -> None:
        assert code in self.CODES
        self.message, self.param = brief(message), param and brief(param, MAX_PARAM)
        self.code, self.retry = code, retry
        super().__init__(self.message)

    def reworded(self, message: str, param: str | None) -> RequestError:
        """Return a new error with the same code, another message and another field."""
        return RequestError(message, param, self.code, self.retry)


class Reworded:
    """A block that replaces each RequestError that leaves it by the new error of ``reword``.

    This is a class, because ``contextmanager`` would keep a refused request in memory until a
    garbage collection. On Python 3.12 the frame of a generator that raises keeps a reference to its
    caller's frame (https://github.com/python/cpython/issues/100964). So there would be a cycle: the
    first error, the generator's frame, contextlib's ``__exit__``, the first error.
    """

    def __init__(self, reword: Callable[[RequestError], RequestError]) -> None:
        self._reword = reword

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, RequestError):
            raise self._reword(error) from error  # a local variable would make a reference cycle
