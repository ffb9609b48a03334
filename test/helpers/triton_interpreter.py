"""Triton 3.6's interpreter beside NumPy 2.5, which makes no number of an array of one element."""

from __future__ import annotations

from typing import Any


def accept_numpy() -> None:
    """Let the interpreter count loops by tensors of one element, as Triton 3.7's does."""
    from triton.runtime import interpreter

    module: Any = interpreter
    original = module._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    module._patch_lang_tensor = patched
