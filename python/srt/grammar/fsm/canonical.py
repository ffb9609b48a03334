"""Canonical: masks of tokens that can belong to the canonical tokenisation of a legal text.

    head    the generated text after the last boundary that no token can cross
    body    a candidate token t and the characters that are forced after it

Every legal text that continues with t continues with body. If body has a boundary that no token can
cross, after the first token after head, then ``encode(head + body)`` determines that token.
Otherwise the first token may depend on later text, and is the first one after head in one of

    encode(head + body)                 the tokens end at the end of body
    encode(head + body[:i] + z)         a token z that begins at i crosses the end of body
    encode(either + character)          a tokenizer that looks one character ahead

t is allowed if one of these begins with the tokens of head, then t. All tokens of canonical
tokenisations of legal texts are allowed, for tokenizers that look ahead by at most one character.
Some tokens of no such tokenisation may be allowed too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from unicodedata import category

from sglang.srt.grammar.fsm.mask_cache import MaskRow
from sglang.srt.grammar.fsm.state_masks import State, StateMasks
from sglang.srt.grammar.fsm.utf8 import opened, span

WINDOW = 32  # limit of the tokens of head; with more, the plain mask is used
BODY = 64  # limit of the characters of body
OPEN_BODIES = 8  # limit of the bodies without a boundary per state; with more, all are allowed
MOST_PLACES = 32  # limit of the offsets i per state; each needs the row of another state
MOST_BYTES = 12 << 10  # limit of the encoded bytes per state; bodies beyond both limits are allowed
CROSSING = 4  # limit of the tokens z per offset i; with more, only the text before i is encoded
_RARE = {"Ll": "qx", "Lu": "QX", "Nd": "7", "Lo": "ꙮ", "Po": "¿"}
_PER_KIND = 2  # characters that are tried per kind
_FEW = 8  # limit of the possible next characters up to which all are tried


class Canonical:
    """Canonical rows of one grammar's masks, by state and by the tokens of head."""

    def __init__(self, masks: StateMasks) -> None:
        self.masks = masks
        self._probes: dict[State, list[str]] = {}
        masks.table.prepare()
        self.filtered = 0  # number of rows that were computed, not cached

    def row(self, state: State, head: tuple[int, ...]) -> MaskRow:
        """Return the tokens allowed in ``state`` after the tokens ``head``."""
        plain, rows = self.masks.row(state), self.masks.table.rows
        if plain.ids is None or len(plain.ids) < 2 or len(head) > WINDOW:
            return plain
        if state[1] and not self.masks.only(state):
            return plain
        key = (self.masks.owner, *state, head)
        row = rows.get(key)
        if row is None:
            kept = self._filter(state, head, plain.ids)
            row = MaskRow(kept, b"", plain.ending) if kept and len(kept) < len(plain.ids) else plain
            rows.put(key, row)
            self.filtered += 1
        return row

    def _filter(
        self, state: State, head: tuple[int, ...], ids: tuple[int, ...]
    ) -> tuple[int, ...] | None:
        """Return the allowed tokens of ``ids``; None if the tokenizer cannot encode the text."""
        table = self.masks.table
        stay: set[int] = set()
        bodies: dict[bytes, list[int]] = {}
        for token in ids:
            body = self.body(state, table.tokens[token])
            if body is None:
                stay.add(token)
            else:
                bodies.setdefault(body, []).append(token)
        text = table.text(head)
        found = self._encode([text + body for body in bodies])
        open_bodies = []
        for body, tokens in zip(bodies, found):
            if table.text(tokens) != text + body:
                return None
            after = len(table.text(tokens[: len(head) + 1]))
            stay |= _next(tokens, head)
            if not table.bounded(text + body, max(after, len(text) + 1)):
                open_bodies.append(body)
        if len(open_bodies) > OPEN_BODIES:
            stay.update(token for body in open_bodies for token in bodies[body])
            return tuple(token for token in ids if token in stay)
        variants: list[tuple[bytes, int]] = []
        size = places = 0
        for body in open_bodies:
            crossed = self._crossed(body)
            places += len(crossed)
            more = self._variants(state, body, crossed) if places <= MOST_PLACES else None
            more_bytes = sum(len(text) + len(variant) for variant, _ in more or ())
            if more is None or size + more_bytes > MOST_BYTES:
                stay.update(bodies[body])
            else:
                size += more_bytes
                variants += more
        found = self._encode([text + variant for variant, _ in variants])
        for (_, at), tokens in zip(variants, found):
            if not at or self._parts(tokens, len(text) + at):
                stay |= _next(tokens, head)
        return tuple(token for token in ids if token in stay)

    def body(self, state: State, data: bytes) -> bytes | None:
        """Return ``data`` and the characters that are forced after it; None if ``data`` ends inside
        a character that is not forced."""
        after = self.masks.walk(state, data)
        if after is None:
            return None
        rest, path = self.masks.run(after, max(1 if after[1] else 0, BODY - len(data)))
        if after[1] and not path:
            return None
        return data + rest

    def _crossed(self, body: bytes) -> list[int]:
        """Return the offsets in ``body`` from which a token, legal or not, extends past its end."""
        ordered, found = self.masks.table.ordered, list[int]()
        for at in range(max(1, len(body) - self.masks.table.longest + 1), len(body)):
            place = bisect_right(ordered, body[at:])
            if place < len(ordered) and ordered[place].startswith(body[at:]):
                found.append(at)
        return found

    def _variants(
        self, state: State, body: bytes, crossed: list[int]
    ) -> list[tuple[bytes, int]] | None:
        """Return the other texts to encode for ``body``, each with the offset at which a token must
        begin, 0 for none; None if a token that begins inside a character crosses the end."""
        found = [(text, 0) for text in self._followed(state, body)]
        for at in crossed:
            crossing = self._crossing(state, body, at)
            if not crossing:
                continue
            if body[at] & 0xC0 == 0x80:
                return None
            if len(crossing) <= CROSSING:
                for token in crossing:
                    found += [(text, at) for text in self._followed(state, body[:at] + token)]
            else:
                rare = _RARE.get(_kind(body[at:].decode()[0]), "")
                found += [(body[:at] + char.encode(), 0) for char in ("", *rare)]
        return found

    def _followed(self, state: State, text: bytes) -> list[bytes]:
        """Return ``text``, and ``text`` followed by each of some possible next characters."""
        end = self.masks.walk(state, text)
        assert end is not None
        if not end[1]:
            return [text, *(text + char.encode() for char in self._after(end))]
        low, high = span(end[1])
        return [text[: -len(opened(end[1]))] + chr(point).encode() for point in (low, high)]

    def _crossing(self, state: State, body: bytes, at: int) -> list[bytes]:
        """Return the legal tokens that begin at ``at`` and end after the end of ``body``; for a
        wide state, without checks, more than CROSSING dummies."""
        rest = body[at:]
        reached = self.masks.walk(state, body[:at])
        if reached is None:
            return []
        row, tokens = self.masks.row(reached), self.masks.table.tokens
        if row.ids is None:
            return [rest] * (CROSSING + 1)
        found = {tokens[token] for token in row.ids if tokens[token].startswith(rest)}
        return sorted(found - {rest})

    def _parts(self, tokens: list[int], at: int) -> bool:
        """Return True if one of ``tokens`` begins at byte ``at``."""
        pieces = self.masks.table.tokens
        for token in tokens:
            if at <= 0:
                break
            at -= len(pieces[token])
        return at == 0

    def _after(self, state: State) -> list[str]:
        """Return some characters of each possible next kind: legal ones, and ones that tokenizers
        seldom join with the text before."""
        if state not in self._probes:
            found = self.masks.next_characters(state[0], _FEW)
            most = _FEW
            if found is None:
                found, most = self.masks.next_examples(state[0]), _PER_KIND
            kinds: dict[str, list[str]] = {}
            for char in found:
                kinds.setdefault(_kind(char), []).append(char)
            self._probes[state] = [
                char
                for kind, chars in kinds.items()
                for char in (*chars[:most], *_RARE.get(kind, ""))
            ]
        return self._probes[state]

    def _encode(self, texts: Iterable[bytes]) -> list[list[int]]:
        whole = [text.decode(errors="replace") for text in texts]
        return self.masks.table.encode(whole) if whole else []


def _next(tokens: list[int], head: tuple[int, ...]) -> set[int]:
    """Return the token after ``head`` as a set, empty if ``tokens`` do not begin with ``head``."""
    if len(tokens) > len(head) and tuple(tokens[: len(head)]) == head:
        return {tokens[len(head)]}
    return set()


def _kind(char: str) -> str:
    """Return a character's kind: itself for spaces and quotes, else its Unicode category."""
    return char if char in " \n\r\t'\"/" else category(char)
