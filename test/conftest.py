"""Makes ``helpers`` importable from every test folder, and property tests free of the clock."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# A busy machine is no failure: pytest-timeout alone limits time.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
