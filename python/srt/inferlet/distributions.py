"""Distributions of next tokens as they are answered: ids and log-probabilities, packed."""

from __future__ import annotations

import heapq
from typing import Any

from sglang.srt.core.ints import ints
from sglang.srt.core.space_messages import WHOLE, ForwardDone
from sglang.srt.inferlet.calls import GetNextDistCall
from sglang.srt.inferlet.embed_map import TokenOutput
from sglang.srt.inferlet.packed_numbers import unpacked

ITEM = 4  # bytes of an id, and of a log-probability


def narrowed(output: TokenOutput, done: ForwardDone, call: GetNextDistCall) -> dict[str, Any]:
    """The answer to one call, whose forward may have more tokens for another one.

    ``ids`` is int32, empty for the whole vocabulary; ``logprobs`` float32, natural logarithms.
    """
    ids, logprobs = done.ids, done.logprobs
    if call.k != WHOLE and output.top == WHOLE:
        values = memoryview(logprobs).cast("f")
        best = heapq.nlargest(call.k, range(len(values)), key=values.__getitem__)
        ids = ints(best).tobytes()
        logprobs = b"".join(logprobs[ITEM * one : ITEM * one + ITEM] for one in best)
    elif call.k != WHOLE:
        ids, logprobs = ids[: ITEM * max(call.k, 0)], logprobs[: ITEM * max(call.k, 0)]
    probe = done.probe
    wanted = unpacked(call.probe) if call.probe else ()
    if tuple(wanted) != output.probe:
        place = {one: index for index, one in enumerate(output.probe)}
        probe = b"".join(probe[ITEM * place[one] : ITEM * place[one] + ITEM] for one in wanted)
    return {"ids": ids, "logprobs": logprobs, "probe": probe}
