"""Work that one request may cost the engine's loop, counted and not timed: a text must not depend
on how busy the machine is.

What does not fit into a step waits for the next one, in order. The units of a constant are given
with it; each comes to some 10 to 50 ms of a core.
"""

from __future__ import annotations

STEP_SEARCH = 1 << 16  # operations on stop patterns, beyond which no text is forced
STEP_LOOKUP = 1 << 20  # tokens of the waiting requests that are looked up in the cache
STEP_NUMBERS = 1 << 17  # log-probabilities that are reported of prompts, beside the tokens' own
STEP_VERBS = 1 << 21  # of ``engine/loop.work``: the client's messages
STEP_BYTES = 1 << 22  # of the client's messages, a message is taken whole


class TooMuchWork(Exception):
    """The next step of a request would cost more work than one request may: it ends with finish
    reason "error", and its text so far stands."""
