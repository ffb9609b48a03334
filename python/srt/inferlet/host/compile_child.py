"""Compile one upload: a process of its own, so that a file that takes too long or too much memory
ends alone. It reads WebAssembly from a file, and writes the precompiled program to another, and one
line of JSON: ``{"component": ...}``, or ``{"error": ...}`` for a file that is refused."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from sglang.srt.inferlet.host.guest_engine import WAIT, imports_of, make_engine, reason
from wasmtime import Engine, FuncType, MemoryType, Module, ValType, WasmtimeError
from wasmtime.component import Component, String
from wasmtime.component import FuncType as ComponentFuncType

MAGIC = b"\0asm"
COMPONENT = b"\x0d\0\1\0"  # a component's version and layer
MODULE = b"\1\0\0\0"


class UploadRefused(Exception):
    """The file is no program. The text says why."""


def compiled(data: bytes) -> tuple[bool, bytes]:
    """Whether it is a component, and the precompiled program. Raises UploadRefused."""
    kind = data[4:8]
    if data[:4] != MAGIC or kind not in (COMPONENT, MODULE):
        raise UploadRefused(
            f"the file begins with {data[:8].hex(' ') or 'nothing'}; WebAssembly begins with "
            "00 61 73 6d and the version of a module or component"
        )
    engine = make_engine()
    try:
        if kind == COMPONENT:
            component = Component(engine, data)
            check_component(component, engine)
            return True, bytes(component.serialize())
        module = Module(engine, data)
        check_module(module)
        return False, bytes(module.serialize())
    except WasmtimeError as error:
        raise UploadRefused(f"the file is no valid WebAssembly: {reason(error)}") from None


def check_component(component: Component, engine: Engine) -> None:
    """Raise UploadRefused where a component imports more than WASI and ``wait``, or lacks a
    function."""
    strange = [
        name for name in imports_of(component, engine)
        if name != WAIT and not name.startswith("wasi:")
    ]  # fmt: skip
    if strange:
        raise UploadRefused(f"the component imports {strange[0]}; it may import {WAIT} and WASI")
    exports = dict(component.type.exports(engine).items())
    for name, texts in (("start", 2), ("turn", 1)):
        found = exports[name].ty if name in exports else None
        if not isinstance(found, ComponentFuncType):
            raise UploadRefused(f"the component exports no function {name}")
        kinds = [*(kind for _, kind in found.params), found.result]
        if len(kinds) != texts + 1 or not all(isinstance(kind, String) for kind in kinds):
            raise UploadRefused(f"{name} must take {texts} strings and give a string")


def check_module(module: Module) -> None:
    """Raise UploadRefused where a module imports anything, or lacks a required export."""
    for wanted in module.imports:
        raise UploadRefused(
            f"the module imports {wanted.module}.{wanted.name}; it may import nothing"
        )
    exports = {export.name: export.type for export in module.exports}
    memory = exports.get("memory")
    if not isinstance(memory, MemoryType) or memory.is_64:
        raise UploadRefused("the module exports no memory of 32 bits under the name memory")
    i32, i64 = ValType.i32(), ValType.i64()
    for name, params, results in (("alloc", [i32], [i32]), ("turn", [i32, i32], [i64])):
        found = exports.get(name)
        if not isinstance(found, FuncType):
            raise UploadRefused(f"the module exports no function {name}")
        if list(found.params) != params or list(found.results) != results:
            raise UploadRefused(
                f"{name} must take {len(params)} i32 and give one "
                f"{'i32' if results == [i32] else 'i64'}"
            )


def main(argv: list[str]) -> None:
    """``SOURCE TARGET SECONDS BYTES``: at most so much processor time and memory."""
    source, target = Path(argv[0]), Path(argv[1])
    seconds, most = int(argv[2]), int(argv[3])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        component, program = compiled(source.read_bytes())
    except UploadRefused as error:
        print(json.dumps({"error": str(error)}))
        return
    part = target.with_suffix(".part")
    part.write_bytes(program)
    part.rename(target)
    print(json.dumps({"component": component}))


if __name__ == "__main__":
    main(sys.argv[1:])
