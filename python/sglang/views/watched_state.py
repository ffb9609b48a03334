"""Watched states: a program while it runs: in a notebook a display that is replaced as the text
grows, in a terminal the text itself."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from sglang.views.fork_tree import show_tree, tree_page

SECONDS = 0.1  # least time between two displays
MOST_SECONDS = 86_400.0


def watch(state: Any, file: TextIO | None = None, seconds: float = SECONDS) -> None:
    """Show a state until its program has ended, then as ``show`` does; its error is shown, not
    raised. ``seconds``: least time between two displays. Raise ValueError for others."""
    if not isinstance(seconds, (int, float)) or not 0 <= seconds <= MOST_SECONDS:
        raise ValueError(f"seconds is {seconds!r:.60}; give 0 to {MOST_SECONDS:.0f}")
    handle = None if file is not None else _display(state)
    if handle is None:
        _print(state, file)
        return
    shown = 0.0
    for _ in _changes(state):
        if (now := time.monotonic()) - shown >= seconds:
            handle.update(StatePage(state))
            shown = now
    handle.update(StatePage(state))


class StatePage:
    """A state as a notebook displays it, as it is now."""

    def __init__(self, state: Any) -> None:
        self._page = tree_page(state)

    def _repr_html_(self) -> str:
        return self._page


def _changes(state: Any) -> Any:
    """Yield whenever the text has grown, until the program has ended, or failed."""
    try:
        yield from state.text_iter()
    except Exception:  # the display shows it
        return


def _display(state: Any) -> Any:
    """A display that can be updated; None outside of a notebook, whose kernel has loaded IPython
    before this is called."""
    ipython, shows = (sys.modules.get(name) for name in ("IPython", "IPython.display"))
    shell = ipython.get_ipython() if ipython is not None else None
    if shows is None or not hasattr(shell, "kernel"):
        return None
    return shows.display(StatePage(state), display_id=True)


def _print(state: Any, file: TextIO | None) -> None:
    for piece in _changes(state):
        print(piece, end="", file=file, flush=True)
    print("\n", file=file)
    show_tree(state, file)
