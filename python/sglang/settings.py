"""Settings of the frontend that hold for the whole process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class GlobalConfig:
    """Change fields of ``sglang.global_config`` before programs run.

    Attributes:
        default_backend: used where ``run`` names none.
        enable_precache_with_tracing: ``run_batch`` computes the common constant prefix first,
            when it has at least ``precache_min_chars`` characters.
        max_threads: executors of all running programs that may wait for a backend at once.
    """

    default_backend: Any = None
    enable_precache_with_tracing: bool = True
    precache_min_chars: int = 64
    max_threads: int = 256


global_config = GlobalConfig()
