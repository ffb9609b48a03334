"""Patching one object: its class, and every other object of it, stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sglang
from sglang.srt.engine.engine_core import EngineCore


@contextmanager
def patched(target: object, **members: Any) -> Iterator[None]:
    """``target`` has these in place of its own until the context ends. Patches may be laid over one
    another and are taken off in the opposite order.

    Raises AttributeError where there is nothing of a name to replace.
    """
    for name in members:
        getattr(target, name)
    own = vars(target)
    before = {name: own[name] for name in members if name in own}
    own.update(members)
    try:
        yield
    finally:
        for name in members:
            del own[name]
        own.update(before)


def inner(engine: sglang.Engine) -> EngineCore:
    """The planning part of an engine of this process. Hooks are to be laid on it, and taken off,
    while no request is in flight: it runs in a thread of its own."""
    return engine._engine._engine
