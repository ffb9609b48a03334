"""Unknown: placeholder of a value while a program is traced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sglang.errors import TraceError
from sglang.ir.graph_steps import Argument, Variable, references
from sglang.ir.nodes import Chain, Node
from sglang.ir.source_location import caller


class Unknown(Node):
    """A value that only a run knows. ``reference``: an argument, a variable, or a chain with them.

    A program may append, store, pass on and return it, and join it with texts. An operation that
    needs the value raises TraceError with the program's line.
    """

    def __init__(self, reference: Argument | Variable | Chain) -> None:
        self.reference = reference

    def flat(self) -> Iterator[Node]:
        return self.reference.flat()

    def __add__(self, other: object) -> Any:
        joined = super().__add__(other)
        return Unknown(joined) if isinstance(other, (str, Unknown)) else joined

    def __radd__(self, other: object) -> Any:
        joined = super().__radd__(other)
        return Unknown(joined) if isinstance(other, str) else joined

    def _needs_value(self, *_: object, **__: object) -> Any:
        raise self.error("append it (s += 'Q: ' + question) instead of formatting it, branching on "
                         "it or iterating it")  # fmt: skip

    def error(self, advice: str) -> TraceError:
        """Return the error for an operation that needs the value, with the program's line."""
        first = references(self.reference)[0]
        known = isinstance(first, Argument)
        kind = "argument" if known else "variable"
        fix = ", or give it to compile" if known else ""
        return TraceError(
            f"the value of {kind} {first.name!r} is not known while the program is traced "
            f"(data-dependent control flow): {advice}{fix}; at {caller()}"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._needs_value()

    __str__ = __repr__ = __format__ = __bool__ = __iter__ = __len__ = __getitem__ = _needs_value
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _needs_value
    __int__ = __float__ = __index__ = __mod__ = __mul__ = __rmul__ = __call__ = _needs_value
    __sub__ = __rsub__ = __truediv__ = __rtruediv__ = __neg__ = __abs__ = __round__ = _needs_value
    __hash__ = Node.__hash__
