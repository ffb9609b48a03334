"""Requests about programs: their fields, as clients send them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from sglang.ir.declaration import Bounds
from sglang.srt.programs.placeholders import PromptPlaceholder
from sglang.srt.programs.submission import Submission
from sglang.srt.requests.common_fields import NAME, Stream

MAX_WAIT = 86400.0  # seconds
MOST_CRITERIA = 4096  # of one submission

Seconds = Annotated[
    float,
    Bounds(0, MAX_WAIT, open=True),
    "Seconds after which the answer is an error; null: none. Not with `stream`.",
]
SessionId = Annotated[str, NAME, "The session."]
VariableId = Annotated[str, NAME, "The semantic variable."]
CriteriaField = Annotated[
    Any, None, "`latency`, `throughput`, or an object with `ttft_ms` or `tpot_ms`."
]
Grown = Annotated[bool, None, "Send events with generated text as it grows, too."]


class OpenProgramSession(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A session of programs; it has no settings."""


class SubmitBody(msgspec.Struct, kw_only=True):
    """A program: a whole graph, or a prompt with placeholders as in the Parrot paper."""

    prompt: Annotated[
        str | None, Bounds(words="a text"), "A text with `{{name}}` for each placeholder."
    ] = None
    placeholders: Annotated[
        list[PromptPlaceholder] | None, Bounds(words="a list of placeholders"), "Those of `prompt`."
    ] = None
    graph: Annotated[
        Submission | None, Bounds(words="a graph"), "A whole program, in place of `prompt`."
    ] = None
    session_id: Annotated[
        str | None, NAME, "The session; null: a new one, named in the answer."
    ] = None
    criteria: Annotated[
        Annotated[dict[str, Any], msgspec.Meta(max_length=MOST_CRITERIA)] | None,
        Bounds(words="an object"),
        "Criteria by variable; `*` means all variables that no call reads.",
    ] = None
    idempotency_key: Annotated[
        str | None, NAME, "The same request with the same key in a session is one submission."
    ] = None
    stream: Stream | None = None
    grown: Grown | None = None


class GetBody(msgspec.Struct, kw_only=True):
    """The value of a variable, or with `submission_id` the events of a submission."""

    session_id: SessionId
    semantic_var_id: Annotated[str | None, NAME, "The semantic variable."] = None
    submission_id: Annotated[
        str | None, NAME, "The submission whose events are streamed; `stream` must be true."
    ] = None
    criteria: CriteriaField | None = None
    timeout: Seconds | None = None
    stream: Stream | None = None
    grown: Grown | None = None


class SetBody(msgspec.Struct, kw_only=True):
    """The value of an input variable, or the result of a client's tool."""

    session_id: SessionId
    semantic_var_id: VariableId
    value: str | int | float | bool | list[Any]


class CancelBody(msgspec.Struct, kw_only=True):
    """A submission to cancel, or a variable together with the steps that only it needs."""

    session_id: SessionId
    semantic_var_id: Annotated[str | None, NAME, "The semantic variable."] = None
    submission_id: Annotated[str | None, NAME, "The submission."] = None


class ProgramSessionReply(msgspec.Struct):
    session_id: str
    expires_seconds: float


class SubmittedReply(msgspec.Struct):
    """`variables`: ids by name, of the program's own stream, and by `STEP.NAME` of every step."""

    submission_id: str
    session_id: str
    variables: dict[str, str]


class ValueReply(msgspec.Struct):
    value: Any
    state: str


class CancelledReply(msgspec.Struct):
    cancelled: bool
