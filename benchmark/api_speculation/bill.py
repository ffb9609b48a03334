"""Bill: what a service that is paid by the token would charge, with speculation and without.

The service is our own server with the embedded model, called by the backend for OpenAI's chat API;
the counts are those of its replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sglang as sgl

from benchmark.api_speculation.claim import program, speculating
from benchmark.harness.claim import Answer, Item


@dataclass(frozen=True)
class Bill:
    """Bill of all items. ``left``: times that a reply left the program's form."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    left: int
    answers: list[Answer]


def bill(asked: sgl.SglFunction, items: Sequence[Item], url: str) -> Bill:
    """``asked`` on all items, by the service at ``url``."""
    service = sgl.OpenAI(
        "default", base_url=f"{url}/v1", api_key="none", continue_final_message=True
    )
    try:
        states = asked.run_batch(items, backend=service, temperature=0)
        used = service.token_usage
        return Bill(
            sum(state.usage.calls for state in states), used.prompt_tokens, used.completion_tokens,
            sum(state.speculation.mismatches for state in states),
            [state.ret_value for state in states],
        )  # fmt: skip
    finally:
        service.shutdown()


def bills(items: Sequence[Item], model_path: str = "") -> dict[str, Any]:
    """``both``, on a server of their own."""
    with sgl.Runtime(model_path=model_path, log_level="warning") as runtime:
        return both(items, runtime.url)


def both(items: Sequence[Item], url: str) -> dict[str, Any]:
    """Both bills, how many times as many input tokens are paid without, and whether answers are
    equal."""
    without, ahead = bill(program, items, url), bill(speculating, items, url)
    return {
        "without": asdict(without), "with": asdict(ahead),
        "fewer_input_tokens": without.prompt_tokens / ahead.prompt_tokens,
        "equal": without.answers == ahead.answers,
    }  # fmt: skip
