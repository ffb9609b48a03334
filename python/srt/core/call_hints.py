"""Hints about calls of programs: what the server knows of a request's application.

A hint changes when and where a request is served, never what it generates.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec

ProgramName: TypeAlias = Annotated[str, msgspec.Meta(max_length=512)]
HintKind: TypeAlias = Literal["", "latency", "throughput"]
Milliseconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=3.6e6)]


class CallHint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts about a call that its program's graph shows (Parrot, section 5.2). A frame with one
    that is out of bounds is malformed.

    Attributes:
        program: name of the application, which no other tenant's has; "": it has none.
        kind: "latency", "throughput", or "" where nothing is known.
        tpot_ms: milliseconds a generated token that the client bears; 0: it does not say.
        ttft_ms: milliseconds until the first token that the client bears; 0: it does not say.
        group: number of the call's task group within the program: parallel calls that count as
            one; -1: it is in none.
        stage: number of calls on the longest path from it to a fetched variable; -1: unknown.
    """

    program: ProgramName = ""
    kind: HintKind = ""
    tpot_ms: Milliseconds = 0.0
    ttft_ms: Milliseconds = 0.0
    group: int = -1
    stage: int = -1


class PrefixHash(NamedTuple):
    """A beginning of a prompt that ends at a variable (Parrot's PrefixHash, section 4.2).

    Attributes:
        digest: of the text before the boundary; equal for equal texts, over all programs that
            may share KV.
        tokens: number of tokens before the boundary, about.
    """

    digest: int
    tokens: int
