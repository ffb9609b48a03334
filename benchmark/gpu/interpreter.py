"""Triton's interpreter (kernels on a CPU): made to work with NumPy 2.5, and without repeated
work."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any


def prepare() -> None:
    """Adapt the interpreter, where this process uses it (``TRITON_INTERPRET=1``).

    Loops count by tensors of one element, as in Triton 3.7: 3.6 leaves the conversion to NumPy,
    whose version 2.5 refuses it. The language is patched once a launch, and NumPy's types come from
    a cache; results stay the same.
    """
    if os.environ.get("TRITON_INTERPRET") != "1" or find_spec("triton") is None:
        return
    from triton.runtime import interpreter

    module: Any = interpreter
    _count_loops(module)
    module._get_np_dtype = _by_name(module._get_np_dtype)
    module._patch_builtin = _patch_builtin
    module._patch_lang = PatchOnce(module._patch_lang)


def _count_loops(module: Any) -> None:
    original = module._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    module._patch_lang_tensor = patched


def _by_name(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Cache the NumPy dtype of a type of the language, whose hash and comparison are slow."""
    known: dict[str, Any] = {}

    def found(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in known:
            known[name] = find(kind)
        return known[name]

    return found


class PatchOnce:
    """The interpreter's ``_patch_lang`` (function -> scope with ``restore``), without its repeated
    work: each call of a device function would patch all of the language again, which takes more
    than half of the interpreter's time.

    ``_patched``: the modules of the language that the running launch has patched.
    """

    def __init__(self, patch: Callable[[Any], Any]) -> None:
        self._patch = patch
        self._patched: set[str] = set()

    def __call__(self, function: Any) -> Any:
        needed = _languages(function)
        if needed <= self._patched:
            return SimpleNamespace(restore=lambda: None)
        scope = self._patch(function)
        self._patched |= needed

        def restore() -> None:
            scope.restore()
            self._patched.clear()

        return SimpleNamespace(restore=restore)


@cache
def _languages(function: Any) -> frozenset[str]:
    """Modules of the language that a function sees under any name."""
    import triton.language as tl

    values = function.__globals__.values()
    return frozenset(lang.__name__ for lang in (tl, tl.core) if any(v is lang for v in values))


@cache
def _builtins(package: Any) -> tuple[str, ...]:
    from triton.language.core import is_builtin

    return tuple(name for name in dir(package) if is_builtin(getattr(package, name, None)))


def _patch_builtin(package: Any, builder: Any, scope: Any) -> None:
    """Patch the built-in functions of a module or class, as the interpreter's function of this
    name does, but look at all members only the first time."""
    from triton.language.core import is_builtin
    from triton.runtime.interpreter import _patch_attr

    for name in _builtins(package):
        if is_builtin(member := getattr(package, name)):
            _patch_attr(package, name, member, builder, scope)
