"""Parser: of every command here; it knows its version and says what an unknown flag was to be."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import Any, NoReturn

from srt.core.version import __version__


class Parser(argparse.ArgumentParser):
    """argparse's, with ``--version``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        text = f"sglang {__version__}"
        self.add_argument("--version", action="version", version=text, help="print it and exit")

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (.*)", message)
        flags = [word for word in unknown[1].split() if word.startswith("--")] if unknown else []
        near = [
            found
            for word in flags
            for found in difflib.get_close_matches(
                word.partition("=")[0], self._option_string_actions, n=1
            )
        ]
        super().error(message + (f"; did you mean {', '.join(near)}?" if near else ""))
