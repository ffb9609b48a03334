"""Fork trees: a state and its forks that still exist. A shared text is shown once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from sglang.views.display import Paint, body_of, note_of, snapshot
from sglang.views.html_page import body_html, framed, note_html

if TYPE_CHECKING:
    from sglang.run.stream_executor import StreamExecutor

MOST_FORKS = 200  # limit of the shown forks of one state


class ForkTree(NamedTuple):
    """A state's executor, and the trees of its forks, in order."""

    executor: StreamExecutor
    forks: Sequence[ForkTree] = ()


def tree_of(state: Any) -> ForkTree:
    """Return the tree of a ProgramState and of its forks that are still referenced."""
    groups = [group for one in state._groups if (group := one()) is not None]
    return ForkTree(state._executor, [tree_of(s) for group in groups for s in group.states])


def show_tree(state: Any, file: TextIO | None = None) -> None:
    """Print the current text of a state, then the text that each of its forks has added."""
    print("\n".join(_lines(tree_of(state), Paint(file), 0)), file=file)


def _lines(tree: ForkTree, paint: Paint, start: int) -> Iterator[str]:
    yield from "\n".join(body_of(snapshot(tree.executor), tree.executor, paint, start)).split("\n")
    if note := note_of(tree.executor):
        yield from ("", paint("error" if tree.executor.failure else "title", note))
    shown = tree.forks[:MOST_FORKS]
    for number, fork in enumerate(shown):
        last = number == len(shown) - 1
        start = fork.executor.origin.text
        yield paint("title", f"{'└' if last else '├'}─ fork {number}, from character {start} on")
        for line in _lines(fork, paint, start):
            yield f"{' ' if last else '│'}  {line}".rstrip()
    if more := len(tree.forks) - len(shown):
        yield f"   and {more} more"


def tree_page(state: Any) -> str:
    """Return the output of ``show_tree`` as HTML for a notebook."""
    return framed(_html(tree_of(state), 0))


def _html(tree: ForkTree, start: int) -> str:
    parts = [body_html(snapshot(tree.executor), tree.executor, start), note_html(tree.executor)]
    for number, fork in enumerate(tree.forks[:MOST_FORKS]):
        start = fork.executor.origin.text
        label = f"<summary>fork {number}, from character {start} on</summary>"
        style = "margin-left:1em;border-left:1px solid #bbb;padding-left:.6em"
        parts.append(f'<details open style="{style}">{label}{_html(fork, start)}</details>')
    if (more := len(tree.forks) - MOST_FORKS) > 0:
        parts.append(f"<div>and {more} more</div>")
    return "".join(parts)
