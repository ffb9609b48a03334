"""ResultsFile: the finished items of a batch, a JSON line each, so that it can go on later."""

from __future__ import annotations

import dis
import hashlib
import json
import os
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sglang.backend.output_constraint import (
    Dtype,
    GrammarConstraint,
    JsonSchema,
    OneOf,
    OutputConstraint,
    Regex,
)
from sglang.errors import SglangError
from sglang.ir.params import GenParams, given
from sglang.ir.prompt_media import Media, medium
from sglang.run.run_scope import Usage
from sglang.run.stream import Stream, TextSegment
from sglang.run.typed import Typed
from sglang.state import Program, ProgramState

HEAD = b'{"key": "'
KEY_BYTES = 16
STREAM = ("text", "role", "role_start", "messages", "variables", "meta", "segments")
COUNTERS = ("calls", "prompt_tokens", "cached_tokens", "completion_tokens")
PLAIN = (str, int, float, bool, type(None))
MEDIA = "$media"


class ResultsFile:
    """Lines of ``path`` that belong to ``items``, and room for those that are missing.

    An item is known by the program's name and code (constants and functions of its module that it
    reads among them), all its arguments and the generation parameters; of equal items each has a
    line of its own. Other lines are left alone, a last line that was cut is removed. Thread-safe;
    one batch at a time may write to a file.

    Raises:
        ValueError: the file holds something else.
        TypeError: an argument is no JSON.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        program: Program,
        items: Sequence[Mapping[str, Any]],
        defaults: GenParams,
    ) -> None:
        self._path = os.fspath(path)
        self._lock = threading.Lock()
        self._keys = [_key(program, item, defaults) for item in items]
        self._file = open(self._path, "a+b")  # noqa: SIM115 (closed by close)
        try:
            known = self._scan()
        except ValueError:
            self._file.close()
            raise
        self._lines = {n: known[key].popleft() for n, key in enumerate(self._keys) if known[key]}

    def __len__(self) -> int:
        """Number of items that need not run."""
        return len(self._lines)

    def __contains__(self, number: int) -> bool:
        return number in self._lines

    def restore(self, number: int, state: ProgramState) -> None:
        """Make ``state``, a fresh one, read as the item's state did."""
        with self._lock:
            self._file.seek(self._lines[number])
            line = self._file.readline()
        record = json.loads(line)
        kept = {name: record[name] for name in STREAM}
        kept["messages"] = _decoded(kept["messages"])  # values of programs have no media
        stream = Stream(**kept)
        stream.segments = [TextSegment(*segment) for segment in stream.segments]
        stream.typed = {n: Typed(_constraint(d)) for n, d in record["constraints"].items()}
        state._executor.interpreter.stream = stream
        state.ret_value = record["ret_value"]
        usage = Usage()
        vars(usage).update(record["usage"])
        state.usage.merge(usage)

    def add(self, number: int, state: ProgramState) -> None:
        """Write the line of an item that has ended well. Raises TypeError for what is no JSON."""
        stream = state._executor.stream
        for name, value in [*stream.variables.items(), ("ret_value", state.ret_value)]:
            self._refuse(name, value, type(value).__name__)
        record = {
            "key": self._keys[number],
            "ret_value": state.ret_value,
            **{name: getattr(stream, name) for name in STREAM},
            "constraints": {
                n: _described(t.constraint)
                for n, t in stream.typed.items()
                if t.constraint is not None
            },
            "usage": {name: getattr(state.usage, name) for name in COUNTERS},
        }
        line = json.dumps(record, default=_encoded).encode() + b"\n"
        with self._lock:
            if not self._file.closed:  # else the batch was interrupted
                self._file.write(line)
                self._file.flush()

    def close(self) -> None:
        """End writing."""
        with self._lock:
            self._file.close()

    def _scan(self) -> dict[str, deque[int]]:
        """Byte offsets of the lines of each key."""
        known: dict[str, deque[int]] = defaultdict(deque)
        begin, number = 0, 1
        self._file.seek(0)
        for line in self._file:
            if line[: len(HEAD)] != HEAD[: len(line)]:
                raise ValueError(
                    f"line {number} of {self._path} is {line!r:.60}, no result of a batch; "
                    "give results_file a file of its own"
                )
            if not line.endswith(b"\n"):
                self._file.truncate(begin)
                break
            known[line[len(HEAD) :][: 2 * KEY_BYTES].decode()].append(begin)
            begin, number = begin + len(line), number + 1
        return known

    def _refuse(self, name: str, value: Any, kind: str) -> None:
        """Raise TypeError for the value in ``value`` that a JSON file would not give back
        unchanged."""
        if isinstance(value, list):
            for item in value:
                self._refuse(name, item, f"list with {type(item).__name__}")
        elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
            for item in value.values():
                self._refuse(name, item, f"dict with {type(item).__name__}")
        elif type(value) not in PLAIN:
            what = "the program returns" if name == "ret_value" else f"variable {name!r} is"
            raise TypeError(
                f"{what} a {kind}, which {self._path} cannot keep: give str, int, float, bool, "
                "None, lists and dicts of these, or leave results_file out"
            )


def _key(program: Program, item: Mapping[str, Any], defaults: GenParams) -> str:
    arguments = {**program.bound, **item}
    for name, value in arguments.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"argument {name!r} is a {type(value).__name__}, by which results_file cannot know "
                f"an item again ({error}); give text, numbers, lists or dicts, such as a path"
            ) from error
    name, params = getattr(program, "__qualname__", ""), given(defaults)
    whole = [name, _said(program.func, {}), arguments, params]
    dicts = {name: value for name, value in params.items() if isinstance(value, dict)}
    if lost := {n: repr(v) for n, v in {**dicts, **arguments}.items() if not _exact(v)}:
        whole.append(lost)
    text = json.dumps(whole, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).hexdigest()


def _exact(value: Any) -> bool:
    """Whether JSON with sorted keys is the value and no other one: a program that writes a dict
    shows its order, and writes a tuple in another way than a list."""
    if isinstance(value, dict):
        names = list(value)
        sorted_texts = all(isinstance(n, str) for n in names) and names == sorted(names)
        return sorted_texts and all(map(_exact, value.values()))
    if isinstance(value, list):
        return all(map(_exact, value))
    return not isinstance(value, tuple)


def _said(function: Any, seen: dict[Any, int]) -> Any:
    """Code of a function, and what it reads besides its arguments: defaults, variables around it
    and constants of its module that are plain values; functions of its module by their code.

    ``seen``: number of each code that was read; for a second reading the number is enough.
    """
    function = getattr(function, "func", function)  # a program has its function there
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    if code in seen:
        return seen[code]
    seen[code] = len(seen)
    instructions, names = _read(code)
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, cell in zip(code.co_freevars, function.__closure__ or ()):
        if name in names:
            with suppress(ValueError):  # a cell that is still empty
                found[name] = cell.cell_contents
    values = {name: _value(value, function, seen) for name, value in sorted(found.items())}
    defaults = [*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
    return [instructions, values, [_value(value, function, seen) for value in defaults]]


def _read(code: Any) -> tuple[list[Any], set[str]]:
    """Instructions and constants of a code, with those of the functions in it; names that they read
    and do not set."""
    constants = []
    names = {*code.co_names, *code.co_freevars}
    names -= {
        step.argval
        for step in dis.get_instructions(code)
        if step.opname in ("STORE_GLOBAL", "STORE_DEREF")
    }
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            inner, more = _read(constant)
            constants.append(inner)
            names |= more
        else:
            constants.append(_plain(constant))
    return [code.co_code.hex(), constants, code.co_names], names


def _value(value: Any, reader: Any, seen: dict[Any, int]) -> Any:
    """A value that ``reader`` reads, as plain data; None for one that may change as it runs."""
    function = getattr(value, "func", value)
    if hasattr(function, "__code__") and function.__module__ == reader.__module__:
        return _said(function, seen)
    return _plain(value) if isinstance(value, (*PLAIN, bytes, tuple, frozenset)) else None


def _plain(value: Any) -> Any:
    """A constant as text that is the same in every process: a set has no order of its own."""
    if isinstance(value, (tuple, frozenset)):
        texts = [_plain(item) for item in value]
        return [
            type(value).__name__,
            *(sorted(map(repr, texts)) if isinstance(value, frozenset) else texts),
        ]
    return repr(value) if isinstance(value, (*PLAIN, bytes, complex)) else type(value).__name__


def _encoded(value: Any) -> Any:
    if isinstance(value, Media):
        return {MEDIA: [value.kind, value.address, value.num_frames]}
    raise TypeError(f"a {type(value).__name__} of a meta_info is no JSON")


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if MEDIA in value:
        return medium(*value[MEDIA])
    return {name: _decoded(item) for name, item in value.items()}


# Constraints: as the parameter that made them, a class by where it stands


@dataclass(frozen=True)
class _Unnamed(OutputConstraint):
    """Stands for a type that a file cannot name."""

    kind = "json_schema"
    type: str

    def parse(self, text: str) -> Any:
        raise SglangError(
            f"the text was made for {self.type}, which the results file cannot name; "
            "read it as text and parse it, or give a class that stands in a module"
        )


def _described(constraint: OutputConstraint) -> dict[str, Any]:
    if isinstance(constraint, Regex):
        return {"regex": constraint.pattern}
    if isinstance(constraint, Dtype):
        return {"dtype": constraint.name}
    if isinstance(constraint, OneOf):
        return {"one_of": list(constraint.texts)}
    if isinstance(constraint, GrammarConstraint):
        return {constraint.kind: constraint.source}
    assert isinstance(constraint, JsonSchema)
    source = constraint.source
    if isinstance(source, (str, dict)):
        return {"json_schema": source}
    place = [getattr(source, "__module__", ""), getattr(source, "__qualname__", "")]
    return {"class": place} if _class_at(*place) is source else {"type": repr(source)}


def _constraint(described: dict[str, Any]) -> OutputConstraint:
    ((kind, value),) = described.items()
    if kind == "regex":
        return Regex(value)
    if kind == "dtype":
        return Dtype(value)
    if kind == "one_of":
        return OneOf(tuple(value))
    if kind in ("ebnf", "structural_tag"):
        return GrammarConstraint(kind, value)
    if kind == "json_schema":
        return JsonSchema(value)
    if kind == "class" and (found := _class_at(*value)) is not None:
        return JsonSchema(found)
    return _Unnamed(".".join(value) if kind == "class" else value)


def _class_at(module: str, name: str) -> Any:
    """The object of this name in a loaded module, or None."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
