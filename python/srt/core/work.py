"""Work that one request may cost the engine's loop, counted and not timed: a text must not depend
on how busy the machine is."""

from __future__ import annotations

STEP_SEARCH = 1 << 16  # operations on stop patterns in a step, beyond which no text is forced


class TooMuchWork(Exception):
    """The next step of a request would cost more work than one request may: it ends with finish
    reason "error", and its text so far stands."""
