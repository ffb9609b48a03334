"""Driver: what runs a program and takes its turns, in this process or in a sandbox."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from sglang.srt.inferlet.call_reading import BadCall
from sglang.srt.inferlet.calls import ProgramCall


class Fault(msgspec.Struct, frozen=True):
    """Refusal of a call. ``code``: "invalid", "denied", "overloaded", "lost", "internal"."""

    code: str
    message: str


class CallAnswer(msgspec.Struct, omit_defaults=True):
    """The answer to call ``id``: its value, or why there is none."""

    id: int
    value: Any = None
    error: Fault | None = None


class Facts(msgspec.Struct, frozen=True):
    """Facts that a program has before its first turn. ``traits``: of each model."""

    arguments: list[str]
    instance_id: str
    version: str
    models: list[str]
    traits: dict[str, list[str]]
    page_size: int
    vocab_size: int
    eos: list[int]
    context_length: int

    def plain(self) -> dict[str, Any]:
        """The facts as plain data."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found


class ProgramEnded(Exception):
    """A driver's program has ended by no call of its own: a trap, a limit."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


Turn: TypeAlias = Sequence[ProgramCall | BadCall]


class Driver(Protocol):
    """One program.

    ``turn`` runs it until all of it waits, and returns the calls that it made. The first turn has
    no answers. Raises ProgramEnded. ``close`` ends it at any moment.
    """

    def turn(self, answers: list[CallAnswer]) -> Turn | Awaitable[Turn]: ...

    def close(self) -> None: ...


def write_text(answers: Sequence[CallAnswer], most: int) -> bytes:
    """Answers as JSON, bytes as base64. Raises ProgramEnded ``answer_bytes`` where they have more
    than ``most`` bytes; at most one answer beyond them has been written then."""
    out = bytearray(b"[")
    for answer in answers:
        if len(out) > 1:
            out += b","
        _answers.encode_into(answer, out, -1)
        if len(out) >= most:
            raise ProgramEnded(
                "answer_bytes",
                f"answer_bytes: the answers of a turn have more than {most} bytes; ask for less "
                "at a time",
            )
    return bytes(out + b"]")


def plain(answer: CallAnswer) -> dict[str, Any]:
    """An answer as plain data, bytes as they are."""
    if answer.error is not None:
        error = {"code": answer.error.code, "message": answer.error.message}
        return {"id": answer.id, "error": error}
    return {"id": answer.id, "value": answer.value}


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode()


_answers = msgspec.json.Encoder(enc_hook=_plain)
