"""The final hidden states of a request's tokens, for ``return_hidden_states``.

When a completion has ended, a second request computes its prompt and tokens anew and reads the
states. So drafts, forced tokens and cached tokens make no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import EVERY, Embed
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import Caller
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.vectors import vector_of

MAX_NUMBERS = 1 << 20  # most numbers in the states of one request: 20 MB of JSON
_NOTHING = SamplingParams(max_new_tokens=0)


def verify_states(runtime: EngineRuntime, requests: Sequence[CompletionRequest]) -> None:
    """Raise RequestError if the states of ``requests`` may exceed ``MAX_NUMBERS`` numbers, or a
    prompt has parts."""
    width = runtime.info.hidden_size
    tokens = 0
    for request in requests:
        if request.segments:
            raise RequestError(
                "return_hidden_states does not go with parts; send one text.",
                "return_hidden_states",
            )
        tokens += request.sampling.n * (len(request.prompt) + request.sampling.max_new_tokens)
    if tokens * width > MAX_NUMBERS:
        raise RequestError(
            f"The hidden states of {tokens} tokens, {width} numbers each, are requested; at most "
            f"{MAX_NUMBERS} numbers, which are {MAX_NUMBERS // width} tokens. Shorten the prompts, "
            "or lower max_new_tokens or n.",
            "return_hidden_states",
        )


async def states_of(
    runtime: EngineRuntime, request: CompletionRequest, output: Output, caller: Caller
) -> list[Any]:
    """Return a list: first the states of the prompt's tokens [prompt tokens, hidden size], then the
    state [hidden size] of every generated token but the last, which the model has not read.

    Raises RequestError, and EngineLost.
    """
    prompt = request.prompt + ints(output.tokens[:-1])
    [done] = await runtime.read(
        [
            replace(
                request,
                prompt=prompt,
                sampling=_NOTHING,
                logprobs=None,
                score_choices=False,
                generated=ints(),
            )
        ],
        Embed(EVERY),
        caller,
    )
    numbers, width = vector_of(done), runtime.info.hidden_size
    states = [numbers[i : i + width].tolist() for i in range(0, len(numbers), width)]
    count = len(request.prompt)
    return [states[:count], *states[count:]]
