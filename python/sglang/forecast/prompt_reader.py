"""PromptReader: converts prompts to units (tokens) as a backend's tokenizer does.

Unknown texts and media split a prompt; the texts between them are tokenized separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sglang.backend.base import Prompt
from sglang.backend.native.native_backend import parts_of
from sglang.errors import SglangError
from sglang.forecast.cache_model import Units, units
from sglang.forecast.token_units import UnitTokens
from sglang.forecast.unknowns import STANDS, Unknowns, run
from sglang.ir.chat_template import ChatTemplate

# Bits set in the first unit of each parallel text, and of the text after the group, as in the
# runtime's keys of cached KV (core/segments).
OPENS, SIBLING = 1 << 60, 1 << 61
TURN = 4  # tokens that a chat template is assumed to add to a message

Piece: TypeAlias = "str | Units"


@dataclass(frozen=True)
class Line:
    """A text split into known texts and units of unknown ones. ``special``: begins a prompt."""

    pieces: tuple[Piece, ...]
    special: bool


class PromptReader:
    """``media_tokens``: tokens assumed for an image or video; None: refuse prompts with media."""

    def __init__(
        self,
        tokens: UnitTokens,
        unknowns: Unknowns,
        template: ChatTemplate,
        media_tokens: int | None,
    ) -> None:
        self._tokens, self._unknowns = tokens, unknowns
        self._media_tokens = media_tokens
        markers = [re.escape(template.marker(kind)) for kind in ("image", "video")]
        self._plain = re.compile(f"({STANDS})")
        self._seeing = re.compile(f"({'|'.join([STANDS, *markers])})")
        self._known: dict[tuple[str, bool], Units] = {}

    def prepare(self, prompts: Iterable[Prompt]) -> None:
        """Tokenize all texts of these prompts in one call, and cache the results."""
        wanted: dict[bool, dict[str, None]] = {True: {"": None}, False: {}}
        for prompt in prompts:
            for line in self._lines(prompt):
                for number, piece in enumerate(line.pieces):
                    if isinstance(piece, str):
                        wanted[line.special and number == 0][piece] = None
        for special, found in wanted.items():
            texts = [text for text in found if (text, special) not in self._known]
            for text, row in zip(texts, self._tokens.encode(texts, special)):
                self._known[text, special] = row

    def units(self, prompt: Prompt) -> Units:
        """Return the units of a prompt, with marks at parallel texts."""
        media = self._media(prompt)
        if not prompt.parallel:
            return self._units(self._line(prompt.text, True, media))
        begin, found, marks = self._encoded("", True), units(), list[tuple[int, int]]()
        for number, part in enumerate(parts_of(prompt)):
            group = [part] if isinstance(part, str) else part
            texts = [u for text in group if (u := self._units(self._line(text, False, media)))]
            alone = len(group) == 1 and texts and texts[0][: len(begin)] == begin
            if number == 0 and not alone:
                found += begin
            _add(found, marks, texts)
        return _marked(found, marks)

    def behind(self, text: str) -> Units:
        """Return the units of a text that follows another text."""
        return self._units(self._line(text, False, None))

    def knows(self, text: str) -> bool:
        """Return True if no part of a text is unknown."""
        return not self._plain.search(text)

    def conversation(self, messages: Sequence[tuple[str, Any]]) -> Units:
        """Return the units of chat messages (role, content): a text or a list of content parts."""
        found = units()
        for role, content in messages:
            found += run(self._unknowns.number(("turn", role), role), TURN)
            for part in [content] if isinstance(content, str) else content or ():
                text = part if isinstance(part, str) else part.get("text")
                found += (
                    self.behind(text)
                    if isinstance(text, str)
                    else self._medium("image", repr(part))
                )
        return found

    def text(self, row: Units) -> list[Units | str]:
        """Split a row of units into runs of token ids and labels of unknown texts."""
        found: list[Units | str] = []
        for unit in row:
            unit &= OPENS - 1
            if (label := self._unknowns.label(unit)) is not None:
                if found[-1:] != [f"⟨{label}⟩"]:
                    found.append(f"⟨{label}⟩")
            elif found and not isinstance(found[-1], str):
                found[-1].append(unit)
            else:
                found.append(units([unit]))
        return found

    def _lines(self, prompt: Prompt) -> Iterable[Line]:
        media = self._media(prompt)
        if not prompt.parallel:
            yield self._line(prompt.text, True, media)
            return
        for part in parts_of(prompt):
            for text in [part] if isinstance(part, str) else part:
                yield self._line(text, False, media)

    def _line(self, text: str, special: bool, media: Iterator[Units] | None) -> Line:
        """Split a text into a Line. ``media``: units of the media of its markers, in order."""
        pieces: list[Piece] = []
        cut = self._plain if media is None else self._seeing
        for number, piece in enumerate(cut.split(text)):
            if (unknown := self._unknowns.of(piece)) is not None:
                pieces.append(run(unknown.number, unknown.length))
            elif number % 2 and media is not None and not self._plain.match(piece):
                pieces.append(next(media))
            elif piece or (special and not number):
                pieces.append(piece)
        return Line(tuple(pieces), special)

    def _units(self, line: Line) -> Units:
        found = units()
        for number, piece in enumerate(line.pieces):
            first = line.special and number == 0
            found += self._encoded(piece, first) if isinstance(piece, str) else piece
        return found

    def _encoded(self, text: str, special: bool) -> Units:
        if (text, special) not in self._known:
            (self._known[text, special],) = self._tokens.encode([text], special)
        return self._known[text, special]

    def _media(self, prompt: Prompt) -> Iterator[Units] | None:
        if not prompt.media:
            return None
        return (self._medium(medium.kind, medium.address) for medium in prompt.media)

    def _medium(self, kind: str, address: str) -> Units:
        if self._media_tokens is None:
            raise SglangError(
                f"the prompt shows an {kind}, whose tokens are the model's to count; give "
                "media_tokens=, how many each image or video counts for"
            )
        return run(self._unknowns.number(("medium", address), kind), self._media_tokens)


# Parallel texts, as the runtime reads ``parts`` (its requests/completion/parallel_parts).


def _add(found: Units, marks: list[tuple[int, int]], texts: Sequence[Units]) -> None:
    """Append a group of parallel texts to ``found``, and their marks. One text gets no marks."""
    base, parallel = len(found), len(texts) > 1
    if parallel and marks and marks[-1][0] == base:
        marks.pop()
    for text in texts:
        if parallel and found:
            marks.append((len(found), OPENS if len(found) == base else SIBLING))
        found += text
    if parallel:
        marks.append((len(found), OPENS))


def _marked(found: Units, marks: list[tuple[int, int]]) -> Units:
    """Set the marks on the units. A mark at the end moves to the last unit; it sees all texts."""
    if marks and marks[-1][0] == len(found):
        last = len(found) - 1
        while marks and marks[-1][0] >= last:
            marks.pop()
        marks.append((last, OPENS))
    for start, mark in marks:
        found[start] |= mark
    return found
