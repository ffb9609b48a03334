"""Reading of a program's calls from plain data or JSON; their JSON schema, and their table for the
docs."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import msgspec
from sglang.srt.core.nearest import nearest
from sglang.srt.inferlet.calls import CALLS, MORE, ProgramCall

BY_NAME: dict[str, type[ProgramCall]] = {
    str(kind.__struct_config__.tag): kind for kind in CALLS + MORE
}


HINTED = 64  # calls of a turn whose errors propose a name, which takes a search


class BadCall(NamedTuple):
    """A call that cannot be read, and the reason.

    ``id`` is -1 if the call's id cannot be read either. ``answered``: this call gets its error as
    its answer, because its kind has an answer or its name is unknown. Otherwise the next awaited
    call of ``queue`` gets the error.
    """

    id: int
    message: str
    answered: bool = True
    queue: int = -1


_UNION: Any = reduce(or_, CALLS + MORE)


class _ReadTurn(msgspec.Struct):
    """A turn as one struct: msgspec converts it in one call and caches the struct's fields."""

    calls: list[_UNION]


_texts: msgspec.json.Decoder[list[ProgramCall]] = msgspec.json.Decoder(list[_UNION])


def read(data: Any) -> ProgramCall | BadCall:
    """Return a call from plain data, in which bytes are ``bytes``."""
    return _read(data, binary=True)


def read_turn(turn: list[Any]) -> list[ProgramCall | BadCall]:
    """Return the calls of a turn from plain data, in which bytes are ``bytes``."""
    try:
        return list(msgspec.convert({"calls": turn}, _ReadTurn, builtin_types=(bytes,)).calls)
    except msgspec.ValidationError:
        return [read(data) for data in turn]


def read_text(text: bytes) -> list[ProgramCall | BadCall]:
    """Return the calls of a turn from JSON, in which bytes are base64. Raises ValueError if it is
    no list of objects."""
    try:
        return list(_texts.decode(text))
    except msgspec.ValidationError:
        turn = msgspec.json.decode(text, type=list[dict[str, Any]])
        return [_read(data, False, index < HINTED) for index, data in enumerate(turn)]


def _read(data: Any, binary: bool, hinted: bool = True) -> ProgramCall | BadCall:
    number = data.get("id") if isinstance(data, dict) else None
    number = number if isinstance(number, int) else -1
    name = data.get("call") if isinstance(data, dict) else None
    kind = BY_NAME.get(name) if isinstance(name, str) else None
    if kind is None:
        meant = nearest(name, BY_NAME) if hinted and isinstance(name, str) else None
        hint = f"; did you mean {meant!r}?" if meant else ""
        return BadCall(number, f"there is no call {repr(name)[:80]}{hint}")
    try:
        return msgspec.convert(data, kind, builtin_types=(bytes,) if binary else ())
    except ValueError as error:  # msgspec's of a wrong field is one
        queue = data.get("queue")
        queue = queue if isinstance(queue, int) else -1
        return BadCall(number, f"{name}: {error}", bool(kind.answer), queue)


def schema() -> dict[str, Any]:
    """Return the JSON schema of a turn, a list of calls. Bytes are base64 in it."""
    return msgspec.json.schema(list[_UNION])


def signature(kind: type[ProgramCall]) -> str:
    """Return a kind of call as one line: name, arguments, and the type of its answer."""
    fields = [
        field.name if field.required else f"{field.name}={_shown(field)}"
        for field in msgspec.structs.fields(kind)
        if field.name != "id"
    ]
    after = f" -> {kind.answer}" if kind.answer else ""
    return f"{kind.__struct_config__.tag}({', '.join(fields)}){after}"


def _shown(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return repr(field.default)
    return repr(field.default_factory())


def table(kinds: tuple[type[ProgramCall], ...] = CALLS) -> str:
    """Return the rows of the table in docs/inferlets.md."""
    rows = []
    for kind in kinds:
        text = " ".join((kind.__doc__ or "").split())
        call = signature(kind).replace("|", "\\|")
        rows.append(f"| {kind.trait or 'core'} | `{call}` | {text} |")
    return "\n".join(rows)
