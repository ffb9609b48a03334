"""Earlier names of parameters, which callers may still use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def renamed(**names: str) -> Callable[[F], F]:
    """Return a decorator that also accepts each parameter by its earlier name, as a keyword.

    ``names``: the earlier name of each parameter, ``var_name="var"``. The signature shows the
    current name only. A call with both names raises TypeError.
    """

    def decorated(function: F) -> F:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            for name, earlier in names.items():
                if earlier in kwargs:
                    if name in kwargs:
                        raise TypeError(f"{name} and {earlier} are one parameter; give {name}")
                    kwargs[name] = kwargs.pop(earlier)
            return function(*args, **kwargs)

        return called  # type: ignore[return-value]

    return decorated
