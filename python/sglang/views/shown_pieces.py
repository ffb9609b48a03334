"""Pieces: a state's text, split by origin (program, template, model, media), for displays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sglang.ir.chat_template import ChatTemplate
from sglang.ir.prompt_media import Media
from sglang.run.stream import Stream, TextSegment


class TextTurn(NamedTuple):
    """Offsets of a turn: ``start`` to ``end`` with the template, ``body`` to ``close`` without."""

    role: str
    start: int
    body: int
    close: int
    end: int


class TextPiece(NamedTuple):
    """A part of the text.

    Attributes:
        kind: "text" (the program's), "template", "gen", "select", "tool" or "media".
        turn: the turn that contains the piece, None outside of turns.
        segment: the segment of generated text, a tool's text or a medium.
    """

    kind: str
    text: str
    turn: TextTurn | None = None
    segment: TextSegment | None = None


class Mark(NamedTuple):
    """Begin and end of a piece. Marks at the same offset are sorted by end, then rank."""

    start: int
    end: int
    rank: int
    kind: str
    item: TextTurn | TextSegment


OPEN, INSIDE, CLOSE = range(3)


def pieces_of(stream: Stream, template: ChatTemplate) -> Iterator[TextPiece]:
    """Yield the pieces of the whole text, in order. Joined, the pieces are the text."""
    at, turn = 0, None
    for mark in sorted(_marks(stream, template), key=lambda mark: mark[:3]):
        if at < mark.start:
            yield TextPiece("text", stream.text[at : mark.start], turn)
        at, start = max(at, mark.end), max(at, mark.start)
        if isinstance(mark.item, TextSegment):
            yield TextPiece(mark.kind, stream.text[start : mark.end], turn, mark.item)
            continue
        yield TextPiece("template", stream.text[start : mark.end], mark.item)
        if mark.rank == OPEN:
            turn = mark.item
        elif turn is mark.item:
            turn = None
    if at < len(stream.text):
        yield TextPiece("text", stream.text[at:], turn)


def pieces_from(pieces: Iterator[TextPiece], start: int) -> Iterator[TextPiece]:
    """Yield the pieces from the offset ``start`` on. A piece that ``start`` cuts is shortened."""
    at = 0
    for piece in pieces:
        skipped, at = max(start - at, 0), at + len(piece.text)
        if at > start or not start:
            yield piece._replace(text=piece.text[skipped:])


def _marks(stream: Stream, template: ChatTemplate) -> Iterator[Mark]:
    for turn in turns_of(stream, template):
        yield Mark(turn.start, turn.body, OPEN, "template", turn)
        yield Mark(turn.close, turn.end, CLOSE, "template", turn)
    for segment in [*stream.segments, *_growing(stream)]:
        yield Mark(segment.start, segment.end, INSIDE, segment.kind, segment)


def _growing(stream: Stream) -> Iterator[TextSegment]:
    """Yield the segments that are being streamed now."""
    for name, text in stream.partial.items():
        if stream.text.endswith(text):
            end = len(stream.text)
            yield TextSegment("gen", end - len(text), end, name, stream.meta.get(name, {}))


def turns_of(stream: Stream, template: ChatTemplate) -> list[TextTurn]:
    """Return the offsets of the turns in ``stream.messages``, and of the open one."""
    found, at = [], 0
    for number, message in enumerate(stream.messages):
        role, said = message["role"], _written(message["content"], template)
        prefix, suffix = template.around(role, stream.messages[:number])
        start = stream.text.find(prefix + said + suffix, at)
        if start >= 0:
            body = start + len(prefix)
            at = body + len(said) + len(suffix)
            found.append(TextTurn(role, start, body, body + len(said), at))
    if stream.role is not None:
        prefix, _ = template.around(stream.role, stream.messages)
        body, end = stream.role_start, len(stream.text)
        found.append(TextTurn(stream.role, body - len(prefix), body, end, end))
    return found


def _written(content: Any, template: ChatTemplate) -> str:
    if isinstance(content, str):
        return content
    return "".join(
        template.marker(part.kind) if isinstance(part, Media) else part for part in content
    )
