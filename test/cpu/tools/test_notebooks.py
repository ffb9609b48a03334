"""Notebooks run on the embedded model and print what is stored in them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tools import notebooks

pytest.importorskip("torch")
PATHS = sorted(notebooks.FOLDER.glob("*.ipynb"))


def settled(outputs: list[dict[str, Any]]) -> str:
    """Outputs, but for how much of a fork's prompts was cached: that depends on when each came."""
    return re.sub(r"cached_tokens=[1-9]\d*", "cached_tokens=N", repr(outputs))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebook_prints_what_is_stored(path: Any) -> None:
    notebook = notebooks.read(path)
    assert (notebook["nbformat"], notebook["cells"][0]["cell_type"]) == (4, "markdown")
    ran = list(notebooks.run(notebook))
    assert len(ran) > 4
    for cell, found in ran:
        assert settled(found) == settled(cell["outputs"]), "".join(cell["source"])


def test_there_are_two_notebooks() -> None:
    assert [path.stem for path in PATHS] == ["cache_and_constraints", "programs"]


def test_a_cell_shows_its_last_value_and_what_it_prints() -> None:
    namespace: dict[str, Any] = {}
    assert notebooks.outputs("x = 1", namespace, 1) == []
    (printed, value) = notebooks.outputs("print(x)\nx + 1", namespace, 2)
    assert printed["text"] == ["1\n"]
    assert value["data"] == {"text/plain": ["2"]}
    assert notebooks.outputs("None", namespace, 3) == []
    with pytest.raises(NameError):
        notebooks.outputs("y", namespace, 4)
