"""The two kinds of guests: a component that exports ``start`` and ``turn`` as functions of text,
and a core module that does so by pointer and length. One thread at a time calls a guest."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeVar

from sglang.srt.inferlet.host.guest_engine import GuestTrap, reason
from sglang.srt.inferlet.host.host_messages import GuestLimits
from wasmtime import Engine, Func, Instance, Memory, Module, Store, Trap, WasmtimeError
from wasmtime.component import Component, Linker
from wasmtime.component import Func as ComponentFunc

# Limits of a store, its memory apart. wasmtime limits each memory and table by itself, so a guest
# has one memory, and 8 MiB of tables at most.
TABLE_ELEMENTS, INSTANCES, TABLES, MEMORIES = 1 << 17, 128, 8, 1
Called = TypeVar("Called", Func, ComponentFunc)
MOST_REASON = 4096  # bytes of the reason that a module gives for its trap


class KnownType(NamedTuple):
    """Types of a function's parameters and results, in the forms of wasmtime's two kinds."""

    params: Any
    result: Any
    results: Any


def with_known_type(function: Called, store: Store) -> Called:
    """The function, whose type is looked up now: wasmtime-py does it in each call, for which it
    asks the library for each part of the type. That takes longer than a short turn."""
    found: Any = function.type(store)
    result, results = getattr(found, "result", None), getattr(found, "results", None)
    known = KnownType(found.params, result, results)
    function.type = lambda store: known  # type: ignore[method-assign, assignment, return-value]
    return function


class RunningGuest(Protocol):
    """A guest that has been instantiated."""

    store: Store

    def start(self, source: str, arguments: str) -> str:
        """The calls of the first turn. Raises GuestTrap."""
        ...

    def turn(self, answers: str) -> str:
        """The calls of the next turn. Raises GuestTrap."""
        ...


def make_store(engine: Engine, limits: GuestLimits) -> Store:
    """A store with the limits of a run. Its deadline is set by ``GuestLane``."""
    store = Store(engine)
    store.set_limits(limits.memory, TABLE_ELEMENTS, INSTANCES, TABLES, MEMORIES)
    store.set_epoch_deadline(1)
    return store


class ComponentGuest:
    """A component: strings cross by the canonical ABI, whose bounds wasmtime checks."""

    def __init__(self, store: Store, linker: Linker, component: Component) -> None:
        """Instantiate a component. Raises GuestTrap where that fails."""
        self.store = store
        try:
            instance = linker.instantiate(store, component)
            start, turn = instance.get_func(store, "start"), instance.get_func(store, "turn")
        except (Trap, WasmtimeError) as error:
            raise GuestTrap(reason(error)) from None
        if start is None or turn is None:
            raise GuestTrap("the component exports no start, or no turn")
        self._start, self._turn = with_known_type(start, store), with_known_type(turn, store)

    def start(self, source: str, arguments: str) -> str:
        return self._call(self._start, source, arguments)

    def turn(self, answers: str) -> str:
        return self._call(self._turn, answers)

    def _call(self, function: ComponentFunc, *texts: str) -> str:
        try:
            calls = function(self.store, *texts)
            function.post_return(self.store)
        except (Trap, WasmtimeError) as error:
            raise GuestTrap(reason(error)) from None
        if not isinstance(calls, str):
            raise GuestTrap("the component's function gives no string")
        return calls


class ModuleGuest:
    """A core module: ``alloc(n) -> pointer``, ``turn(pointer, length) -> pointer << 32 | length``.

    The first turn gets the JSON object of the start. A module has no other text: it is the program.
    A module may export ``failure() -> pointer << 32 | length`` too: why its turn has trapped.
    """

    def __init__(self, store: Store, module: Module, most: int) -> None:
        """``most``: bytes of a turn's calls. Raises GuestTrap."""
        self.store, self._most = store, most
        try:
            exports = Instance(store, module, []).exports(store)
        except (Trap, WasmtimeError) as error:
            raise GuestTrap(reason(error)) from None
        memory, alloc, turn = (exports.get(name) for name in ("memory", "alloc", "turn"))
        if not (isinstance(memory, Memory) and isinstance(alloc, Func) and isinstance(turn, Func)):
            raise GuestTrap("the module must export memory, alloc and turn")
        self._memory = memory
        self._alloc, self._turn = with_known_type(alloc, store), with_known_type(turn, store)
        self._failure = exports.get("failure")

    def start(self, source: str, arguments: str) -> str:
        return self.turn(arguments)

    def turn(self, answers: str) -> str:
        data = answers.encode()
        try:
            where = self._alloc(self.store, len(data)) & 0xFFFFFFFF
            self._bounds(where, len(data), "alloc")
            if data:
                self._memory.write(self.store, data, where)
            packed = self._turn(self.store, where, len(data)) & 0xFFFFFFFFFFFFFFFF
        except (Trap, WasmtimeError) as error:
            raise GuestTrap(self._reason() + reason(error)) from None
        begin, size = packed >> 32, packed & 0xFFFFFFFF
        self._bounds(begin, size, "turn")
        if size > self._most:
            raise OverflowError(size)
        try:
            return str(self._memory.read(self.store, begin, begin + size), "utf-8")
        except UnicodeDecodeError as error:
            raise GuestTrap(f"the text of turn is no UTF-8: {error.reason}") from None

    def _reason(self) -> str:
        """The module's text for its trap, to stand before that; mostly empty. The time of the turn
        goes on: where it is over, this ends at once."""
        if not isinstance(self._failure, Func):
            return ""
        try:
            packed = self._failure(self.store)
        except (Trap, WasmtimeError):
            return ""
        if not isinstance(packed, int):
            return ""
        begin, size = packed >> 32 & 0xFFFFFFFF, packed & 0xFFFFFFFF
        if not size or size > MOST_REASON or begin + size > self._memory.data_len(self.store):
            return ""
        text = self._memory.read(self.store, begin, begin + size)
        return str(text, "utf-8", "replace") + "\n"

    def _bounds(self, begin: int, size: int, function: str) -> None:
        memory = self._memory.data_len(self.store)
        if begin + size > memory:
            raise GuestTrap(
                f"{function} gives {size} bytes at {begin}; the memory has {memory} bytes"
            )
