"""Notebooks of `examples/notebooks`: code cells run without Jupyter, in order, in one namespace.

    PYTHONPATH=python python -m tools.notebooks      run all, and store what they print

A cell shows what it prints, and the value of its last line unless that is None, as in Jupyter. A
test holds that the stored outputs are those of today.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"


def read(path: Path) -> dict[str, Any]:
    """A notebook, as the JSON of nbformat 4."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def run(notebook: dict[str, Any]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each code cell with the outputs that it has now. Raises what a cell raises."""
    module = ModuleType("__main__")  # dataclasses look their module up by its name
    before, sys.modules["__main__"] = sys.modules["__main__"], module
    try:
        for number, cell in enumerate(code_cells(notebook), 1):
            yield cell, outputs("".join(cell["source"]), vars(module), number)
    finally:
        sys.modules["__main__"] = before


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells that run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def outputs(source: str, namespace: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Run the source of a cell and return its outputs."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        found.append({"name": "stdout", "output_type": "stream", "text": text})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        found.append({
            "data": data, "execution_count": number, "metadata": {},
            "output_type": "execute_result",
        })  # fmt: skip
    return found


def markdown(notebook: dict[str, Any]) -> str:
    """The notebook as a page: texts, code, and what it prints."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            lines = output.get("text") or output["data"]["text/plain"]
            parts.append(f"```text\n{''.join(lines).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def store(path: Path) -> None:
    """Run a notebook and write its outputs into it."""
    notebook = read(path)
    for number, (cell, found) in enumerate(run(notebook), 1):
        cell["outputs"], cell["execution_count"] = found, number
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    for each in sorted(FOLDER.glob("*.ipynb")):
        store(each)
