"""The text index: a prompt finds the longest parked text that it begins with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.runtime.parking.text_index import ContextText, TextIndex, bytes_of

TEXTS = st.lists(st.text("abé", max_size=6).map(str.encode), max_size=8)


@given(TEXTS, st.text("abé", max_size=9).map(str.encode))
def test_index_finds_the_longest_prefix(texts: list[bytes], prompt: bytes) -> None:
    index = TextIndex[bytes]()
    for text in texts:
        index.add(ContextText(text), text)
    assert len(index) == len(texts)
    begun = [text for text in texts if prompt.startswith(text)]
    length, found = index.longest(prompt)
    assert length == max(map(len, begun), default=0)
    assert found == [text for text in begun if len(text) == length]
    for text in texts:
        index.remove(ContextText(text), text)
    assert len(index) == 0
    assert index.longest(prompt) == (0, [])


@given(st.lists(st.binary(max_size=5)))
def test_text_grown_is_the_whole_text(pieces: list[bytes]) -> None:
    text = ContextText()
    for piece in pieces:
        text = text.grown(piece)
    whole = ContextText(b"".join(pieces))
    assert (text.length, text.digest) == (whole.length, whole.digest)


def test_index_ends_between_characters() -> None:
    """A context may end inside a character; the rest of a prompt would be no text."""
    index = TextIndex[str]()
    index.add(ContextText("é".encode()[:1]), "half")
    assert index.longest("ée".encode()) == (0, [])
    index.add(ContextText("é".encode()), "whole")
    assert index.longest("ée".encode()) == (2, ["whole"])
    assert index.longest("é".encode()) == (2, ["whole"])


def test_index_refuses_to_remove_a_stranger() -> None:
    index = TextIndex[int]()
    index.add(ContextText(b"a"), 1)
    with pytest.raises(ValueError, match="not in list"):
        index.remove(ContextText(b"a"), 2)


def test_bytes_of_skips_ids_past_the_table() -> None:
    assert bytes_of([b"a", b"bc"], [1, 0, 7, 1]) == b"bcabc"
