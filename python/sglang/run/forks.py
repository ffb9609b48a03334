"""Joins of forks by "concate_and_append": a node that appends the texts of forks to the parent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from sglang.errors import SglangError, Unsupported
from sglang.ir.nodes import Node, Parallel
from sglang.ir.source_location import Location
from sglang.run.live_nodes import Later
from sglang.run.stream_executor import StreamExecutor


def refuse_copy(state: object) -> NoReturn:
    """Raise TypeError, because ``copy`` and ``pickle`` would make a second name of one state."""
    raise TypeError(
        "a state belongs to its run and cannot be pickled or copied; s.copy() and s.fork() go on "
        "from it, and dict(s), s.text() and s.messages() are plain data"
    )


def refuse_offset(position_ids_offset: Sequence[int] | None) -> None:
    """Raise Unsupported if an option of the original sglang's ``fork`` is given."""
    if position_ids_offset is not None:
        raise Unsupported("position_ids_offset is not supported; leave it out")


def record_join(parent: StreamExecutor, forks: Sequence[StreamExecutor], mode: str) -> None:
    """Record in the trace, if there is one, that ``forks`` were joined in ``parent``."""
    if parent.track is not None:
        parent.track.joined([fork.track for fork in forks], mode)


def append_side_by_side(
    parent: StreamExecutor, forks: Sequence[StreamExecutor], location: Location
) -> None:
    """Append to ``parent`` the text that each fork has appended so far, once all is generated.

    Text that is appended to a fork after the join is not included.
    """
    copies = [fork.fork(1, location, copy=True)[0] for fork in forks]
    sources = tuple((copy, None) for copy in copies)
    parent.submit(Later(sources, partial(_side_by_side, parent, forks, copies)), location)


def _side_by_side(
    parent: StreamExecutor, forks: Sequence[StreamExecutor], copies: Sequence[StreamExecutor]
) -> Node:
    record_join(parent, forks, "concate_and_append")
    for fork, copy in zip(forks, copies):
        copy.origin = fork.origin
    return concatenation(copies)


def concatenation(forks: Sequence[StreamExecutor]) -> Node:
    """Return the node that appends the text and turns that each fork has added since it began.

    Raise the first failure of a fork, and SglangError for contents that cannot be joined so.
    """
    texts, messages = [], []
    for number, fork in enumerate(forks):
        fork.check()
        stream, origin = fork.stream, fork.origin
        added = stream.messages[origin.messages :]
        if stream.role != origin.role or (added and stream.role is not None):
            raise SglangError(
                f"fork {number} ends in another turn than it began in; close the turn"
            )
        media = len(stream.media) > origin.media
        if media or len(stream.parallel) > origin.parallel:
            raise SglangError(
                f"fork {number} holds {'an image' if media else 'a join of its own'}, which cannot "
                "be joined by 'concate_and_append'; append it before the fork or use join()"
            )
        texts.append(stream.text[origin.text :])
        messages += added
    return Parallel(tuple(texts), tuple(messages))
