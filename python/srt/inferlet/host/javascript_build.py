"""The runner of programs in JavaScript: a component with StarlingMonkey and the library inside.

componentize-js builds it. npm fetches that into a temporary directory, which is removed again.
"""

from __future__ import annotations

import os
from pathlib import Path

from sglang.srt.inferlet.host.runner_build import Recipe, run_tool

LIBRARY = Path(__file__).parents[2] / "assets" / "inferlet" / "javascript"
TOOL = "@bytecodealliance/componentize-js@0.23.0"
INSTALL = "the package nodejs, and npm, of the system (version 20 or later)"
FETCH = (
    "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries", "1",
)  # fmt: skip


def _sources() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in LIBRARY.iterdir() if path.is_file()}


def _componentize(scratch: Path) -> Path:
    for name, data in _sources().items():
        (scratch / name).write_bytes(data)
    environment = dict(os.environ)
    run_tool("npm", INSTALL, [*FETCH, "--prefix", str(scratch), TOOL], scratch, environment)
    made = scratch / "runner.wasm"
    command = ["node", "build.mjs", "guest.js", "program.wit", made.name]
    run_tool("node", INSTALL, command, scratch, environment)
    return made


JAVASCRIPT = Recipe(lambda: TOOL, _sources, _componentize)
