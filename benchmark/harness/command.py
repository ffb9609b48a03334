"""Command: the parser of a benchmark's command line."""

from __future__ import annotations

import argparse
from typing import Any


def command_parser(
    module: str, doc: str | None, paragraph: int | None = 0, **settings: Any
) -> argparse.ArgumentParser:
    """Parser of ``python -m MODULE``. It is described by a paragraph of the module's docstring, or,
    for None, by the docstring as it is written. ``settings`` are argparse's."""
    text = doc or ""
    if paragraph is None:
        settings["formatter_class"] = argparse.RawDescriptionHelpFormatter
    else:
        text = text.split("\n\n")[paragraph]
    return argparse.ArgumentParser(f"python -m {module}", description=text, **settings)
