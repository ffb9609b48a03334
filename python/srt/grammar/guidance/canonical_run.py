"""The canonical part of a forced run: its tokens that stay the same whatever text follows.

llguidance drops the tokens at the end of forced text that some longer token could cross. Where the
text ends inside a word or value, what follows may split the word anew further ahead: after ``"f``
of ``"file`` the tokens of ``filesize`` may go on with ``il``, those of ``filename`` with ``ile``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sglang.srt.grammar.fsm.token_table import TokenTable
from sglang.srt.grammar.fsm.utf8 import split

WINDOW = 32  # tokens looked back for the beginning of a word
OUTSIDE = b' \t\n"{}[],:'  # what follows these is seldom one token with them, and often free text
LONG = 512  # bytes of forced text, of which no more is tokenized anew
REACH = 64  # bytes at the end of such a text that what follows may split anew
FOLLOWING = 64  # tokens that may follow; where there are more, free text begins


def ends_inside(text: bytes) -> bool:
    """Whether a text ends inside a word or a value, or with a mark and what closes it, as far as
    its last two bytes tell."""
    if text[-1:] in OUTSIDE and len(text) > 1:
        return text[-2] not in OUTSIDE and not text[-2:-1].isalnum()
    return bool(text) and text[-1] not in OUTSIDE


def far_from_end(table: TokenTable, run: Sequence[int], forced: bytes) -> int:
    """The number of tokens of ``run`` that end more than REACH bytes before ``forced`` ends."""
    left = len(forced) - REACH
    for at, token in enumerate(run):
        left -= len(table.tokens[token])
        if left < 0:
            return at
    return len(run)


def certain(
    table: TokenTable,
    taken: Sequence[int],
    run: Sequence[int],
    forced: bytes,
    following: Iterable[bytes],
) -> int:
    """The number of tokens of ``run`` that begin the canonical tokens of every continuation.

    Args:
        taken: tokens before the run. Where they are no canonical tokens themselves, nothing is
            known, and the whole run stays.
        forced: the text that must follow ``taken``; the run writes its beginning.
        following: texts that may follow ``forced``, "" where all may end there.
    """
    head = _head(table, taken)
    begin = table.text(head) + forced
    parts = (split(begin + more) for more in dict.fromkeys(following))
    texts = [part[0] for part in parts if part is not None]
    count = len(run)
    for text, tokens in zip(texts, _encoded(table, texts)):
        if tokens[: len(head)] == head and _writes(table, tokens, text):
            count = min(count, _same(tokens[len(head) :], run))
    return count


def _encoded(table: TokenTable, texts: list[str]) -> list[list[int]]:
    """Tokens of the texts; none where the tokenizer, a third party's perhaps, raises."""
    try:
        return table.encode(texts)
    except Exception:
        return []


def _writes(table: TokenTable, tokens: Sequence[int], text: str) -> bool:
    """Whether the tokens are plain ones, and write the text as it is."""
    known = len(table.tokens)
    return all(0 <= token < known for token in tokens) and table.text(tokens) == text.encode()


def _head(table: TokenTable, taken: Sequence[int]) -> list[int]:
    """The last tokens, from a boundary on that no token crosses, but at most WINDOW."""
    head: list[int] = []
    for token in reversed(taken[-WINDOW:]):
        data = table.tokens[token]
        after = table.tokens[head[-1]][:1] if head else b""
        if not data or (after and table.bounded(data[-1:] + after, 1)):
            break  # a control token, or a boundary
        head.append(token)
    while head and table.tokens[head[-1]][0] & 0xC0 == 0x80:
        head.pop()  # a token that begins inside a character
    return head[::-1]


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common beginning."""
    pairs = enumerate(zip(one, other))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))
