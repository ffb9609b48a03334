"""An interpreter without torch: importing it fails as where it is not installed. Python imports
this file at its start where its folder is on PYTHONPATH."""

from __future__ import annotations

import sys


class NoTorch:
    """Implements ``importlib.abc.MetaPathFinder``."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NoTorch())
