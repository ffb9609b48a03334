"""RequestError: why a request cannot be served, in words that a client may read."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

MAX_MESSAGE, MAX_PARAM = 2000, 100  # characters of an error's message, and of its field's name


def brief(text: str, most: int = MAX_MESSAGE) -> str:
    """Cut the middle of a text of more than ``most`` characters.

    Messages repeat what a client sent, however long that is; what to do stands at their end.
    """
    if len(text) <= most:
        return text
    return f"{text[: most * 3 // 4]} ... {text[len(text) - most // 4 :]}"


def shown(value: object, most: int = 80) -> str:
    """A value in an error's message: its ``repr``, cut in the middle, so that both quotes stay."""
    return brief(repr(value), most)


class RequestError(ValueError):
    """A request that cannot be served.

    Attributes:
        message: names the value, the limit and the fix; long ones are cut in the middle.
        param: the field at fault, where one is.
        code: one of the stable codes in ``CODES``.
        retry: seconds after which it may be sent again, None where the code alone says it.
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
        """A fresh error of the same code in other words."""
        return RequestError(message, param, self.code, self.retry)


class Reworded:
    """A block whose RequestErrors leave it as ``reword`` gives them, a fresh one each.

    A class, since ``contextmanager`` would keep the request of a refused call until a garbage
    collection. The frame of a generator that raises refers to its caller's frame for good on
    Python 3.12 (https://github.com/python/cpython/issues/100964). So the first error would hold the
    generator's frame, that frame the ``__exit__`` of contextlib, and this the first error.
    """

    def __init__(self, reword: Callable[[RequestError], RequestError]) -> None:
        self._reword = reword

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, RequestError):
            raise self._reword(error) from error  # in a variable, it would hold itself
