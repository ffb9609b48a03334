"""Request fields that several routes share, except the sampling parameters, each declared once.

Declarations have the form of ``ir/declaration``. A field of a single route is declared in that
route's struct.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

from sglang.ir.declaration import Bounds, Parameter, declared
from sglang.ir.sampling import MAX_TOP_LOGPROBS, PARAMETERS
from sglang.srt.requests.request_error import RequestError

MAX_NAME = 1024  # characters; answers repeat the model's name in each event
PRIORITY_LIMIT = 1 << 31
MAX_PROBES = 1024

NAME = Bounds(characters=MAX_NAME, empty=True)

Model = Annotated[str, NAME, "The model or an adapter; `model:adapter` is both."]
Rid = Annotated[str, NAME, "Name by which requests can be aborted; several requests may share it."]
CacheSalt = Annotated[
    str, NAME, "Requests share cached KV only where this and `extra_key` are the same."
]
ExtraKey = Annotated[
    str, NAME, "Requests share cached KV only where this and `cache_salt` are the same."
]
LoraPath = Annotated[str, None, "The adapter, by its name."]
Priority = Annotated[
    int,
    Bounds(-PRIORITY_LIMIT, PRIORITY_LIMIT - 1, words="a whole number that fits in 32 bits"),
    "Higher first, under `--schedule-policy priority`.",
]
MaxTokens = Annotated[
    int, PARAMETERS["max_new_tokens"].bounds, PARAMETERS["max_new_tokens"].description
]
MinTokens = Annotated[
    int, PARAMETERS["min_new_tokens"].bounds, PARAMETERS["min_new_tokens"].description
]
ReplyTokens = Annotated[
    int, Bounds(least=1), "Most tokens of the reply; null: as many as the context has room for."
]
TopLogprobs = Annotated[
    int, Bounds(0, MAX_TOP_LOGPROBS), "Most likely tokens at each position, beside its own."
]
Probes = Annotated[
    tuple[int, ...],
    Bounds(entries=MAX_PROBES, words=f"at most {MAX_PROBES} token ids"),
    "Token ids whose log-probability comes at each position.",
]
MaskedLogprobs = Annotated[
    bool, None, "Log-probabilities of generated tokens are among those that the constraint allows."
]
Stream = Annotated[bool, None, "The answer comes as server-sent events."]
ReturnProgress = Annotated[
    bool, None, "A stream reports how much of the prompt is computed: `prompt_progress`."
]
AddSpecialTokens = Annotated[
    bool, None, "Add the tokens that the tokenizer puts before a text; true by default."
]
SeparateReasoning = Annotated[bool, None, "The thought is apart from the answer; true by default."]
StreamReasoning = Annotated[
    bool, None, "The thought comes piece by piece, else at its end; true by default."
]


@cache
def declarations(kind: type) -> dict[str, Parameter]:
    """Return the declared fields of a request's class by name."""
    return declared(kind, {})


def verify_fields(request: Any, shown: Mapping[str, str] | None = None) -> None:
    """Raise RequestError if a declared field of a request is out of its bounds.

    ``shown``: names of fields in the client's request, if they differ from the struct's names.
    """
    kind: Any = type(request)  # Any, because mypy takes `type` for unhashable
    for name, parameter in declarations(kind).items():
        value = getattr(request, name)
        if value is None:
            continue
        known = shown.get(name, name) if shown else name
        if complaint := parameter.complaint(value, known):
            raise RequestError(complaint, known)
