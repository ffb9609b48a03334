"""Work: the five kinds of work that engines are measured with, as token ids.

W1  1 request, 128 tokens in, 128 out             decode, batch 1
W2  16 of them                                     decode, batch 16
W3  16 requests, 512 in, 1 out                     prefill
W4  64 requests, 1024 in common, 32 own, 16 out    shared prefix
W5  64 requests, 32 to 512 in, 16 to 128 out       mixed, all at once

Every round has prompts of its own: no engine can keep what it computed in an earlier one.
"""

from __future__ import annotations

import random

from sglang.srt.commands.bench.workload import (
    Conversation,
    WorkloadTokens,
    random_lengths,
    shared_prefix,
)

from benchmark.peers.sides.wire import Request

WORKS = {
    "W1": "decode, 1 request (128 in, 128 out)",
    "W2": "decode, 16 requests (128 in, 128 out)",
    "W3": "prefill, 16 requests (512 in, 1 out)",
    "W4": "64 requests share 1024 tokens (32 own, 16 out)",
    "W5": "64 mixed requests (32-512 in, 16-128 out)",
}
_LOWEST_ID = 257  # below are control tokens and bytes


def make(work: str, round: int, vocab: int, scale: int = 1) -> list[Request]:
    """Requests of ``work`` in a round. ``scale`` divides lengths and numbers, for tests.

    Raises KeyError for an unknown work.
    """
    rng = random.Random(f"{work} {round}")
    tokens = WorkloadTokens(_LOWEST_ID, vocab)

    def less(number: int, least: int = 1) -> int:
        return max(least, number // scale)

    if work == "W4":
        talks = shared_prefix(
            rng, tokens, less(64, 2), prefix_len=less(1024), question_len=less(32),
            output_len=less(16, 2),
        )  # fmt: skip
        return _requests(talks)
    requests, fed, drawn = {
        "W1": (1, (128, 128), (128, 128)),
        "W2": (16, (128, 128), (128, 128)),
        "W3": (16, (512, 512), (1, 1)),
        "W5": (64, (32, 512), (16, 128)),
    }[work]
    count = 1 if requests == 1 else less(requests, 2)
    return _requests(
        random_lengths(
            rng,
            tokens,
            count,
            input_len=(less(fed[0], 2), less(fed[1], 2)),
            output_len=(less(drawn[0]), less(drawn[1])),
        )
    )


def _requests(talks: list[Conversation]) -> list[Request]:
    return [(list(talk.turns[0].tokens), talk.turns[0].output) for talk in talks]
