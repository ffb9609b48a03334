"""StreamText: the text, media and variables of one stream of a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from sglang.srt.core.call_hints import PrefixHash
from sglang.srt.programs.call_graph import prefix_hashes
from sglang.srt.runtime.programs.semantic_variables import SemanticVariable

Ranges = tuple[tuple[int, int], ...]
CHARS = 4  # approximate characters of a token
MOST_MARKS = 32  # marks kept at either end of a prompt, for routers


@dataclass(frozen=True)
class Medium:
    """An image or a video; ``start``: offset of its marker in the text, in characters."""

    start: int
    kind: str
    address: str
    num_frames: int

    def shown(self) -> Any:
        """Return the medium as an entry of ``image_data`` or ``video_data`` of ``/generate``."""
        if self.kind == "video":
            return {"url": self.address, "num_frames": self.num_frames}
        return self.address


@dataclass
class StreamText:
    """The text of a stream so far, which is its prompt, and the variables of its steps.

    Attributes:
        origin: number of characters, media and parallel groups at the stream's beginning.
        parallel: groups of character ranges that are encoded in parallel.
        scopes: names and start offsets of the open scopes; the innermost is last.
        variables: the latest variable of each name.
        marks: offsets at which variables begin or end; only the first and last ones are kept.
    """

    origin: tuple[int, int, int] = (0, 0, 0)
    media: list[Medium] = field(default_factory=list)
    parallel: list[Ranges] = field(default_factory=list)
    scopes: list[tuple[str, int]] = field(default_factory=list)
    variables: dict[str, SemanticVariable] = field(default_factory=dict)
    marks: list[int] = field(default_factory=list)
    length: int = 0
    _pieces: list[str] = field(default_factory=list)
    _inherited: int = 0  # number of pieces that the stream took over from its parent

    @property
    def text(self) -> str:
        """The whole text, joined anew at each call. The joined text is not kept, because forked
        streams share the pieces, and a prompt of megabytes may have thousands of forks."""
        return "".join(self._pieces)

    def append(self, text: str, variable: bool = False) -> None:
        """Append a text. ``variable``: it is the value of a variable, so mark both of its ends."""
        if variable:
            self.mark()
        self._pieces.append(text)
        self.length += len(text)
        if variable:
            self.mark()

    def mark(self) -> None:
        """Record that a variable begins or ends at the end of the text."""
        if self.length and (not self.marks or self.marks[-1] < self.length):
            self.marks.append(self.length)
            if len(self.marks) > 2 * MOST_MARKS:
                del self.marks[MOST_MARKS]

    def copy(self) -> StreamText:
        """Return an independent copy, for a stream that begins at the end of this text."""
        return replace(
            self,
            origin=(self.length, len(self.media), len(self.parallel)),
            media=list(self.media),
            parallel=list(self.parallel),
            scopes=list(self.scopes),
            variables=dict(self.variables),
            marks=list(self.marks),
            _pieces=list(self._pieces),
            _inherited=len(self._pieces),
        )

    def snapshot(self) -> StreamText:
        """Return a copy with the stream's own text only. The text before the stream's beginning is
        left out, because many streams may follow one long prompt."""
        begin, media, parallel = self.origin
        return replace(
            self.copy(), origin=(0, media, parallel), length=self.length - begin, marks=[],
            _pieces=self._pieces[self._inherited :], _inherited=0,
        )  # fmt: skip

    def append_parallel(self, texts: list[str]) -> None:
        """Append texts that are encoded in parallel; empty texts are left out."""
        ranges = []
        for text in filter(None, texts):
            ranges.append((self.length, self.length + len(text)))
            self.append(text)
        if ranges:
            self.parallel.append(tuple(ranges))

    def prompt(self) -> dict[str, Any]:
        """Return the fields of ``/generate`` that hold the prompt."""
        fields: dict[str, Any] = {"parts": self._parts()} if self.parallel else {"text": self.text}
        return {**fields, **self.media_fields()}

    def media_fields(self) -> dict[str, list[Any]]:
        """Return images and videos in the order of their markers, by their field."""
        fields: dict[str, list[Any]] = {}
        for medium in self.media:
            fields.setdefault(f"{medium.kind}_data", []).append(medium.shown())
        return fields

    def _parts(self) -> list[str | list[str]]:
        """Return the field ``parts``: texts in sequence, and lists of parallel texts."""
        parts, end, text = list[str | list[str]](), 0, self.text
        for group in self.parallel:
            parts += [text[end : group[0][0]], [text[a:b] for a, b in group]]
            end = group[-1][1]
        return [*parts, text[end:]]

    def digest(self) -> dict[str, Any]:
        """Return length and SHA-256 of the text. A client compares them with its own text."""
        data = self.text.encode("utf-8", "surrogatepass")
        return {"chars": self.length, "sha256": sha256(data).hexdigest()}

    def prefixes(self, namespace: str) -> tuple[PrefixHash, ...]:
        """Return hashes of the prompt's beginnings that end at a variable, the shortest first."""
        if self.media or self.parallel or not self.length:
            return ()
        found = prefix_hashes(self._cut(), namespace)
        return tuple(PrefixHash(digest, max(length // CHARS, 1)) for digest, length in found)

    def _cut(self) -> Iterator[str]:
        """Yield the pieces of the text between the marks."""
        text, begin = self.text, 0
        for mark in dict.fromkeys([*self.marks, self.length]):
            yield text[begin:mark]
            begin = mark
