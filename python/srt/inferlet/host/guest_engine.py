"""The engine of guests, and the linker of components, which is shut: nothing of the machine is
reachable through it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

from wasmtime import Config, Engine, WasmtimeError
from wasmtime.component import Component, Linker, LinkerInstance, Record

STACK_BYTES = 512 << 10  # stack of a guest; deeper recursion traps
MOST_RANDOM = 4096  # bytes that a guest may ask for at once: each becomes an object of Python
WAIT = "wait"  # the one import that is ours
FATAL = "wasi:cli/stderr"  # used by nothing but a fatal error of the guest's interpreter
UNDEFINED = re.compile(r"unknown import: `([^`]*)`")  # of a trap in place of an import


class GuestTrap(Exception):
    """A guest has trapped, or broken the contract of its kind. The text says how."""


class Entropy:
    """Random bytes that follow from a seed, so that a run can be replayed."""

    def __init__(self, seed: bytes) -> None:
        self._seed, self._blocks = seed, 0

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes. Raises WasmtimeError past ``MOST_RANDOM``."""
        if not 0 <= count <= MOST_RANDOM:
            raise WasmtimeError(f"{count} random bytes were asked for; at most {MOST_RANDOM}")
        self._blocks += 1
        return hashlib.shake_128(self._seed + self._blocks.to_bytes(8, "little")).digest(count)


def make_engine() -> Engine:
    """An engine whose epoch is a lane's own, and whose guests compute the same everywhere."""
    config = Config()
    config.epoch_interruption = True
    config.max_wasm_stack = STACK_BYTES
    config.cranelift_nan_canonicalization = True
    config.wasm_relaxed_simd = False
    config.wasm_threads = False
    return Engine(config)


def imports_of(component: Component, engine: Engine) -> list[str]:
    """Names of what a component imports."""
    return [name for name, _ in component.type.imports(engine).items()]


def shut_linker(
    engine: Engine,
    component: Component,
    random: Callable[[int], bytes],
    wait: Callable[[str], str],
) -> Linker:
    """A linker that answers what CPython asks at its start by constants, ``random`` by random
    bytes, ``wait`` by answers; any other import traps. The clocks stand still."""
    constants: dict[str, dict[str, Callable[..., Any]]] = {
        "wasi:cli/environment": {
            "get-environment": lambda _: [],
            "get-arguments": lambda _: [],
            "initial-cwd": lambda _: None,
        },
        "wasi:filesystem/preopens": {"get-directories": lambda _: []},
        "wasi:clocks/wall-clock": {"now": lambda _: _moment()},
        "wasi:clocks/monotonic-clock": {"now": lambda _: 0, "resolution": lambda _: 1},
        "wasi:random/random": {
            "get-random-bytes": lambda _, count: random(count),
            "get-random-u64": lambda _: int.from_bytes(random(8), "little"),
        },
    }
    linker = Linker(engine)
    with linker.root() as root:
        for name in imports_of(component, engine):
            if name == WAIT:
                root.add_func(WAIT, lambda _, calls: wait(calls))
            elif (functions := constants.get(name.partition("@")[0])) is not None:
                with root.add_instance(name) as instance:
                    _define(instance, functions)
    linker.define_unknown_imports_as_traps(component)
    return linker


def _define(instance: LinkerInstance, functions: dict[str, Callable[..., Any]]) -> None:
    for name, function in functions.items():
        instance.add_func(name, function)


def _moment() -> Record:
    moment = Record()
    vars(moment).update(seconds=0, nanoseconds=0)
    return moment


def reason(error: Exception) -> str:
    """The cause in an error of wasmtime, without its backtrace."""
    text = str(error)
    causes = [line.strip() for line in text.rpartition("Caused by:")[2].splitlines()]
    cause = " ".join(re.sub(r"^\d+: ", "", line) for line in causes if line)
    if FATAL in cause:
        return FATAL
    if found := UNDEFINED.search(cause):
        return f"the program uses {found[1]}, which the sandbox does not have"
    return (cause or type(error).__name__)[:500]
