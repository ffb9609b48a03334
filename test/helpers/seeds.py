"""Number of seeds and cases of tests: few in each run of the suite, all with ``make test-long``."""

from __future__ import annotations

import os

LONG = os.environ.get("TEST_LONG", "") == "1"


def seeds(few: int, all_of_them: int) -> range:
    """Seeds from 0 on: ``few`` of them, or ``all_of_them`` where TEST_LONG is 1."""
    return range(all_of_them if LONG else few)
