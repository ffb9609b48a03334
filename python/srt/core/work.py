"""Limits of the engine's work in one step. They are counts, not times, so that no text depends on
load.

What does not fit into a step waits for the next one, in order. The units of a limit are given with
it; the times that each comes to are in docs/reliability.md.
"""

from __future__ import annotations

STEP_SEARCH = 1 << 16  # operations on stop patterns, beyond which no text is forced
STEP_LOOKUP = 1 << 20  # tokens of the waiting requests that are looked up in the cache
STEP_NUMBERS = 1 << 17  # log-probabilities that are reported of prompts, beside the tokens' own
STEP_MOVES = 1 << 11  # tokens whose KV is copied to host memory, and from it
STEP_VERBS = 1 << 21  # cost of the client's messages, ``engine/loop.VerbCosts``
STEP_BYTES = 1 << 22  # of the client's messages that are received; a message is taken whole


class TooMuchWork(Exception):
    """The next step of a request would cost more work than one request may: it ends with finish
    reason "error", and its text so far stands."""
