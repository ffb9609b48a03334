"""Hints about calls of programs: facts that the server knows about a request's application.

A hint changes when and by which engine a request is served, never the generated text.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec

ProgramName: TypeAlias = Annotated[str, msgspec.Meta(max_length=512)]
HintKind: TypeAlias = Literal["", "latency", "throughput"]
Milliseconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=3.6e6)]


class CallHint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts about a call, found from its program's graph (Parrot, section 5.2). A frame with a
    value out of bounds is malformed.

    Attributes:
        program: name of the application, unique among all tenants; "": none.
        kind: "latency", "throughput", or "" if unknown.
        tpot_ms: target: most milliseconds per generated token; 0: none.
        ttft_ms: target: most milliseconds until the first token; 0: none.
        group: number of the call's task group within the program; only the end of the whole group
            matters; -1: no group.
        stage: number of calls on the longest path from the call to a fetched variable; -1: unknown.
    """

    program: ProgramName = ""
    kind: HintKind = ""
    tpot_ms: Milliseconds = 0.0
    ttft_ms: Milliseconds = 0.0
    group: int = -1
    stage: int = -1


class PrefixHash(NamedTuple):
    """A prefix of a prompt that ends at a variable (Parrot's PrefixHash, section 4.2).

    Attributes:
        digest: digest of the text before the variable; equal for equal texts in all programs that
            may share KV.
        tokens: approximate number of tokens of that text.
    """

    digest: int
    tokens: int
