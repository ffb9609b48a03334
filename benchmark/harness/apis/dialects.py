"""Dialects: what OpenAI's completions leave open, as each server calls it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmark.harness.apis import gbnf

Body = dict[str, Any]


@dataclass(frozen=True)
class Dialect:
    """``regex`` and ``schema`` give the fields of a constraint. ``several``: one request may ask
    for several greedy texts.

    ``forced`` gives those that leave one text to be written, on a server that does not tell the
    log-probabilities of a prompt's own tokens, or not without computing all of it; and ``drawn``
    finds those of the written tokens in ``choice.logprobs``, an end token left out. ``shared``:
    requests side by side find what an earlier one has computed.
    """

    regex: Callable[[str], Body]
    schema: Callable[[Mapping[str, Any]], Body]
    forced: Callable[[str], Body] | None = None
    drawn: Callable[[Any], list[float]] = lambda report: []
    several: bool = True
    shared: bool = False


def _vllm_drawn(report: Any) -> list[float]:
    """An end token has no text."""
    return [value for token, value in zip(report.tokens, report.token_logprobs) if token]


def _llama_drawn(report: Any) -> list[float]:
    """llama.cpp answers completions with the form of chats; an end token has no bytes."""
    return [token["logprob"] for token in report.content if token["bytes"]]


_VLLM = Dialect(
    regex=lambda pattern: {"structured_outputs": {"regex": pattern}},
    schema=lambda schema: {"structured_outputs": {"json": dict(schema)}},
    several=False,
)
DIALECTS = {
    "sglang": Dialect(
        regex=lambda pattern: {"regex": pattern},
        schema=lambda schema: {"json_schema": dict(schema), "whitespace_pattern": ""},
    ),
    "vllm": _VLLM,
    # An echo's log-probabilities are computed past the prefix cache.
    "vllm with prefix cache": replace(
        _VLLM,
        forced=lambda text: {"structured_outputs": {"choice": [text]}},
        drawn=_vllm_drawn,
        shared=True,
    ),
    "llama.cpp": Dialect(
        regex=lambda pattern: {"grammar": gbnf.of_regex(pattern)},
        schema=lambda schema: {"json_schema": dict(schema)},
        forced=lambda text: {"grammar": gbnf.of_texts([text])},
        drawn=_llama_drawn,
    ),
}
