"""Contenders for questions about images: ours, and the paper's baseline. The others take text."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmark.harness import contenders as all_of_them
from benchmark.harness.contenders import Contender
from benchmark.harness.side import Side


def contenders(model: Path, peers: Path) -> list[Contender]:
    """Ours first, as ``benchmark.harness.contenders``. ``model``: a checkpoint of ``model``."""
    found = [one for one in all_of_them.contenders(model, peers) if one.backend == "sglang"]
    missing = "" if find_spec("transformers") else "transformers is not installed"
    return [*found, Contender("transformers", "transformers", missing, partial(_author, model))]


def _author(model: Path, logs: Path) -> Side:
    from benchmark.image_qa.author import Author

    return Author(model)
