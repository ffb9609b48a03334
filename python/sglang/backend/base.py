"""Backend: what an interpreter asks of a model, whoever serves it.

A backend is shared by many threads and keeps no state of a program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang.chat import TEMPLATES, ChatTemplate, Message
from sglang.choices import ChoicesMethod, Decision
from sglang.errors import Unsupported
from sglang.params import GenParams


@dataclass(frozen=True)
class Prompt:
    """What a state has written: as one text, and as chat messages where roles were used."""

    text: str
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True)
class Completion:
    """Generated text. While streaming, ``text`` is everything so far. ``meta``: meta_info."""

    text: str
    meta: dict[str, Any] = field(default_factory=dict)


class Backend:
    """The calls of the interpreter. A backend overrides those that it can honour."""

    name = "backend"
    chat_template: ChatTemplate = TEMPLATES["default"]

    def complete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        """``params.n`` completions. Raises BackendError."""
        raise self._lacks("gen")

    def stream(self, prompt: Prompt, params: GenParams) -> Iterator[Completion]:
        """One completion as it grows; the last item is the finished one. Raises BackendError."""
        raise self._lacks("streaming gen", "run without stream=True")

    def choose(self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod) -> Decision:
        """Score every option as the continuation of ``prompt``. Raises BackendError."""
        raise self._lacks("select", "use gen and compare its text")

    def commit(self, prompt: Prompt) -> dict[str, Any]:
        """Compute and cache ``prompt``, returning its meta_info: a hint, nothing need happen."""
        return {}

    def cache_prefix(self, text: str) -> None:
        """Compute and cache the prefix ``text``."""
        if text:
            self.commit(Prompt(text))

    def flush_cache(self) -> Any:
        """Empty the prefix cache."""
        raise self._lacks("flush_cache")

    def get_server_info(self) -> dict[str, Any]:
        """Settings and counters of the runtime."""
        raise self._lacks("get_server_info")

    def shutdown(self) -> None:
        """Release what the backend holds; calling it again does nothing."""

    def _lacks(self, primitive: str, instead: str = "use Engine or RuntimeEndpoint") -> Unsupported:
        return Unsupported(f"the {self.name} backend has no {primitive}; {instead}")
