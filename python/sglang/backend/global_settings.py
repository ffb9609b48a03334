"""Settings of the frontend for the whole process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class GlobalConfig:
    """Change fields of ``sglang.global_config`` before programs run.

    Attributes:
        default_backend: backend of a ``run`` without a ``backend`` argument.
        enable_precache_with_tracing: ``run_batch`` computes the common constant prefix first, if
            the prefix has at least ``precache_min_chars`` characters.
        max_threads: limit of the executors, of all programs, that wait for a backend at a time.
    """

    default_backend: Any = None
    enable_precache_with_tracing: bool = True
    precache_min_chars: int = 64
    max_threads: int = 256

    __all__ = ("global_config",)  # this object stands for a module

    @property
    def global_config(self) -> GlobalConfig:
        """The settings, for ``from sglang.global_config import global_config``."""
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dataclass_fields__:
            raise AttributeError(
                f"global_config has no {name!r}; it has {', '.join(self.__dataclass_fields__)}"
            )
        least = {"max_threads": 1, "precache_min_chars": 0}.get(name)
        if least is not None and (not isinstance(value, int) or value < least):
            raise ValueError(f"{name} is {value!r}; it is a number of at least {least}")
        super().__setattr__(name, value)


global_config = GlobalConfig()
