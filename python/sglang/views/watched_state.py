"""Watched states: shows a program while it runs: in a notebook by a display that is updated while
the text grows, in a terminal by printing the text."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from sglang.views.fork_tree import show_tree, tree_page

SECONDS = 0.1  # least time between two updates of a display
MOST_SECONDS = 86_400.0


def watch(state: Any, file: TextIO | None = None, seconds: float = SECONDS) -> None:
    """Show a state while its program runs, and at its end as ``show`` does. The program's error is
    shown, not raised. ``seconds``: least time between two updates. Raise ValueError if invalid."""
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
    """Page that a notebook displays for a state; a snapshot at construction."""

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
    """Return a display that can be updated; None outside of a notebook. A notebook's kernel has
    loaded IPython, so IPython is not imported here."""
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
