"""ChoicesGrammar: one of a list of strings, as a trie over their canonical tokens.

The canonical masks are exact: a token is allowed if it continues the tokenisation of some string.
``advance`` also accepts tokens off the trie that spell one of the strings. From there on, masks
allow all tokens that continue the bytes of a string.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.fsm.mask_cache import MaskRow
from sglang.srt.grammar.fsm.token_table import TokenTable, difference
from sglang.srt.grammar.grammar_protocol import GrammarError

OFF = -1  # as a node: the tokens so far are not a path of the trie
_AFTER = b"\xff"  # sorts after every byte of UTF-8


class ChoicePosition(NamedTuple):
    """State after a text: the strings ``texts[low:high]`` begin with the text."""

    low: int
    high: int
    size: int  # bytes of the text
    node: int


class ChoicesGrammar:
    """Implements ``CompiledGrammar``. Without ``canonical``, masks depend on the bytes only.

    Raises GrammarError without strings, and if the vocabulary cannot spell a string.
    """

    path = "trie"

    def __init__(
        self, strings: Sequence[str], vocabulary: Vocabulary, canonical: bool = True
    ) -> None:
        if not strings:
            raise GrammarError("choices is an empty list; give at least one string.")
        self.table = TokenTable.of(vocabulary)
        self.owner = self.table.rows.owner()
        texts = sorted({text.encode(): text for text in strings}.items())
        self.texts = [data for data, _ in texts]
        self.children: list[dict[int, int]] = [{}]
        self.ending = [self.texts[0] == b""]
        ways = self._tokenise([text for _, text in texts])
        if canonical:
            self._plant(ways)
        self.start = ChoicePosition(0, len(self.texts), 0, 0 if canonical else OFF)

    @property
    def nbytes(self) -> int:
        """Estimated bytes of the grammar, without the masks, which the table stores."""
        return sum(map(len, self.texts)) + 100 * len(self.texts) + 150 * len(self.children)

    def matcher(self) -> ChoicesMatcher:
        return ChoicesMatcher(self)

    def walk(self, position: ChoicePosition, token: int) -> ChoicePosition | None:
        """Return the position after a token, or None if no string continues with it."""
        tokens = self.table.tokens
        data = tokens[token] if 0 <= token < len(tokens) else b""
        if not data:
            return None
        text = self.texts[position.low][: position.size] + data
        low = bisect_left(self.texts, text, position.low, position.high)
        high = bisect_left(self.texts, text + _AFTER, low, position.high)
        if low == high:
            return None
        node = OFF if position.node == OFF else self.children[position.node].get(token, OFF)
        return ChoicePosition(low, high, len(text), node)

    def accepting(self, position: ChoicePosition) -> bool:
        return len(self.texts[position.low]) == position.size

    def row(self, position: ChoicePosition) -> MaskRow:
        """Return the tokens allowed in ``position``."""
        on = position.node != OFF
        key = (self.owner, position.node) if on else (self.owner, *position[:3])
        row = self.table.rows.get(key)
        if row is None:
            tokens = list(self.children[position.node]) if on else self._plain(position)
            ids = np.array(tokens, dtype=np.int64)
            row = self.table.row(ids, self.accepting(position))
            self.table.rows.put(key, row)
        return row

    def common(self, position: ChoicePosition) -> bytes:
        """Return the common beginning, in whole characters, of the strings of ``position``."""
        first, last = self.texts[position.low], self.texts[position.high - 1]
        size = position.size
        while size < len(first) and first[size] == last[size]:
            size += 1
        while position.size < size < len(first) and first[size] & 0xC0 == 0x80:
            size -= 1
        return first[:size]

    # -- making ----------------------------------------------------------------------------------

    def _tokenise(self, texts: list[str]) -> list[list[int]]:
        """The canonical tokens of each string; where they do not spell it, or are no plain tokens,
        the longest token at each offset."""
        ways = self.table.encode(texts)
        for at, data in enumerate(self.texts):
            if self.table.text(ways[at]) != data:
                ways[at] = self._greedy(data)
        return ways

    def _greedy(self, data: bytes) -> list[int]:
        numbers, longest = self.table.numbers, self.table.longest
        found, at = [], 0
        while at < len(data):
            ends = range(min(len(data), at + longest), at, -1)
            end = next((end for end in ends if data[at:end] in numbers), at)
            if end == at:
                raise GrammarError(
                    f"choices: the vocabulary has no token for byte {data[at : at + 1]!r} of "
                    f"{data.decode()!r}; leave that string out."
                )
            found.append(numbers[data[at:end]][0])
            at = end
        return found

    def _plant(self, ways: list[list[int]]) -> None:
        texts = set(self.texts)
        for way in ways:
            node, size = 0, 0
            data = self.table.text(way)
            for token in way:
                size += len(self.table.tokens[token])
                child = self.children[node].get(token)
                if child is None:
                    child = self.children[node][token] = len(self.children)
                    self.children.append({})
                    self.ending.append(data[:size] in texts)
                node = child

    def _plain(self, position: ChoicePosition) -> list[int]:
        """Return all tokens that continue some string of ``position``, by a joint descent of both
        sorted lists, byte by byte."""
        ordered, texts, numbers = self.table.ordered, self.texts, self.table.numbers
        found: list[int] = []
        todo = [(position.low, position.high, b"", 0, len(ordered))]
        while todo:
            low, high, data, first, last = todo.pop()
            size = position.size + len(data)
            if data:
                found += numbers.get(data, ())
            low += len(texts[low]) == size
            while low < high:
                step = data + texts[low][size : size + 1]
                after = texts[low][: size + 1] + _AFTER
                end = bisect_left(texts, after, low, high)
                begin = bisect_left(ordered, step, first, last)
                stop = bisect_right(ordered, step + _AFTER * self.table.longest, begin, last)
                if begin < stop:
                    todo.append((low, end, step, begin, stop))
                low = end
        return sorted(found)


class ChoicesMatcher:
    """Implements ``Matcher``."""

    __slots__ = ("_grammar", "_positions", "_tokens")

    def __init__(self, grammar: ChoicesGrammar) -> None:
        self._grammar = grammar
        self._positions = [grammar.start]
        self._tokens: list[int] = []

    @property
    def accepting(self) -> bool:
        return self._grammar.accepting(self._positions[-1])

    @property
    def finished(self) -> bool:
        position = self._positions[-1]
        if position.node != OFF:
            return self.accepting and not self._grammar.children[position.node]
        return self.accepting and position.high - position.low == 1

    def mask(self) -> bytes:
        table = self._grammar.table
        return self._grammar.row(self._positions[-1]).mask(table.words, table.eos)

    def advance(self, token: int) -> bool:
        position = self._grammar.walk(self._positions[-1], token)
        if position is None:
            return False
        self._positions.append(position)
        self._tokens.append(token)
        return True

    def forced(self, limit: int) -> list[int]:
        position, found = self._positions[-1], list[int]()
        eos = len(self._grammar.table.eos)
        while len(found) < limit:
            token = self._grammar.row(position).sole(eos)
            step = None if token is None else self._grammar.walk(position, token)
            if token is None or step is None:
                break
            found.append(token)
            position = step
        return found

    def draft(self, limit: int) -> list[int]:
        found = self.forced(limit)
        probe = self.fork()
        for token in found:
            probe.advance(token)
        rest = self._grammar.common(probe._positions[-1])
        if len(rest) == probe._positions[-1].size or len(found) == limit:
            return found
        whole = self._grammar.table.spell(rest)
        if whole[: len(probe._tokens)] != probe._tokens:
            return found
        for token in whole[len(probe._tokens) :][: limit - len(found)]:
            if not self._grammar.row(probe._positions[-1]).allows(token) or not probe.advance(
                token
            ):
                break
            found.append(token)
        return found

    def rewrite(self) -> tuple[int, list[int]]:
        whole = self._grammar.common(self._positions[-1])
        if len(whole) == self._positions[-1].size:
            return 0, []
        return difference(self._tokens, self._grammar.table.spell(whole))

    def string_forced(self) -> bytes:
        """Return the bytes that must follow."""
        position = self._positions[-1]
        return self._grammar.common(position)[position.size :]

    def rollback(self, count: int) -> None:
        if count:
            del self._positions[-count:]
            del self._tokens[-count:]

    def fork(self) -> ChoicesMatcher:
        other = ChoicesMatcher(self._grammar)
        other._positions = self._positions.copy()
        other._tokens = self._tokens.copy()
        return other
