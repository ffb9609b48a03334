"""The folder that ``sglang`` is imported from; a child process gets it on its path."""

from __future__ import annotations

import sys
from pathlib import Path

# Not of __file__: in the project's own tree that of the runtime may lie behind a link.
IMPORT_ROOT = str(Path(sys.modules["sglang"].__path__[0]).resolve().parent)
