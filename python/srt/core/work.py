"""Limits of the engine's work in one step. The limits are counts, not times, so that no generated
text depends on load.

Work that does not fit into a step waits for the next step, in order. Each limit's unit is in its
comment; docs/reliability.md has the times that the limits amount to.
"""

from __future__ import annotations

STEP_SEARCH = 1 << 16  # operations on stop patterns, after which no further text is forced
STEP_LOOKUP = 1 << 20  # tokens of waiting requests that are looked up in the cache
STEP_NUMBERS = 1 << 17  # log-probabilities reported for prompts, besides the prompt tokens' own
STEP_MOVES = 1 << 11  # tokens whose KV is copied to host memory; as many again from host memory
STEP_VERBS = 1 << 21  # cost of the client's messages, ``engine/loop.VerbCosts``
STEP_BYTES = 1 << 22  # bytes of messages received from the client; the last one is taken whole


class TooMuchWork(Exception):
    """The next step of a request would cost more work than one request may use. The request ends
    with finish reason "error"; its text so far is valid."""
