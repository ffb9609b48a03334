"""Bodies and answers of /v1/inferlets and /v1/runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from sglang.ir.declaration import Bounds
from sglang.srt.inferlet.sandbox.run_limits import RunLimits

MOST_MESSAGE = 1 << 18  # characters
_NAME = Bounds(characters=256, empty=True)
_TEXTS = Bounds(entries=256, characters=65536, empty=True)
_NUMBERS = Bounds(0, (1 << 53) - 1)


class UploadBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A program: one of ``source``, ``javascript`` and ``wasm``."""

    source: Annotated[str, Bounds(characters=1 << 22), "Text of a program in Python."] | None = None
    javascript: (
        Annotated[str, Bounds(characters=1 << 22), "Text of a program in JavaScript."] | None
    ) = None
    wasm: Annotated[str, Bounds(characters=1 << 26), "WebAssembly code, in base64."] | None = None
    name: Annotated[str, _NAME, "A name for lists."] = ""
    sha256: (
        Annotated[str, Bounds(characters=64), "Digest that the program must have, in hex."] | None
    ) = None


class RunBody(RunLimits, kw_only=True, forbid_unknown_fields=True):
    """A run of a program: its arguments, its rights and its limits."""

    arguments: Annotated[tuple[str, ...], _TEXTS, "The program's arguments."] = ()
    stream: Annotated[bool, None, "The answer is the run's events."] = False
    store: Annotated[bool, None, "It may use the tenant's key-value store."] = False
    topics: Annotated[bool, None, "It may use the tenant's topics."] = False
    hosts: Annotated[
        tuple[str, ...],
        Bounds(entries=64, characters=256),
        "Hosts that it may send HTTP requests to.",
    ] = ()
    seed: Annotated[str, Bounds(characters=256), "Seed of the run's random numbers."] | None = None


class MessageBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A message to a run: one of ``text`` and ``data``."""

    text: (
        Annotated[str, Bounds(characters=MOST_MESSAGE, empty=True), "A text, for `receive`."] | None
    ) = None
    data: (
        Annotated[str, Bounds(characters=MOST_MESSAGE, empty=True), "Base64, for `receive_blob`."]
        | None
    ) = None


class RunQuery(msgspec.Struct):
    stream: Annotated[str, Bounds(one_of=("true", "false")), "Return the events."] = "false"
    starting_after: Annotated[int, _NUMBERS, "Only events after this number."] | None = None


class InferletObject(msgspec.Struct):
    """A program. ``id``: SHA-256 of its bytes, in hex."""

    id: str
    object: Literal["inferlet"]
    name: str
    kind: Literal["python", "javascript", "module", "component"]
    bytes: int
    created: int


class InferletList(msgspec.Struct):
    object: Literal["list"]
    data: list[InferletObject]


class InferletRunReply(msgspec.Struct):
    """A run of a program. ``events``: number of its events."""

    id: str
    object: Literal["inferlet.run"]
    inferlet: str
    created: int
    status: Literal["running", "completed", "failed"]
    events: int
    result: Any
    error: str | None


class InferletRuns(msgspec.Struct):
    object: Literal["list"]
    data: list[InferletRunReply]


class InferletGone(msgspec.Struct):
    id: str
    object: Literal["inferlet", "inferlet.run"]
    deleted: Literal[True]


class MessageSent(msgspec.Struct):
    id: str
    object: Literal["inferlet.message"]
