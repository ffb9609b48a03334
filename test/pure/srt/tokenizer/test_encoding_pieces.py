"""Long texts in pieces: the ids are those of the whole, or the tokenizer allows no cuts."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.toy_tokenizer import CORPUS, byte_level, sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.tokenizer import Tokenizer, encoding_pieces
from sglang.srt.tokenizer.split_patterns import GPT2, GPT4O, LLAMA3, QWEN2, TEKKEN
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library
from tokenizers.trainers import BpeTrainer

PATTERNS = {"gpt2": GPT2, "llama3": LLAMA3, "qwen2": QWEN2, "gpt4o": GPT4O, "tekken": TEKKEN}
TEXTS = [*CORPUS, "It's we'll I'D, 12 345 6789 a b  c   d\n\n e\t f !!\n /x\r\n A aB Ab AB 'S"] * 5


def made(before: Any, added: list[AddedToken], normalizer: Any = None) -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer, library.decoder = before, decoders.ByteLevel()
    if normalizer is not None:
        library.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=450, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(TEXTS, trainer)
    library.add_tokens(added)
    return library


def split(pattern: str) -> Any:
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip


PLAIN = [AddedToken("<|end|>", special=True), AddedToken(" x", normalized=False), AddedToken("ab")]


@cache
def library(name: str) -> Library:
    if name == "embedded":
        path = Tokenizer.load("").path / "tokenizer.json"
        return Library.from_file(str(path))
    if name == "byte level":
        return made(pre_tokenizers.ByteLevel(add_prefix_space=False), PLAIN)
    return made(split(PATTERNS[name]), PLAIN, normalizers.NFC() if name == "qwen2" else None)


NAMES = ["embedded", "byte level", *PATTERNS]
WORDS = st.sampled_from([
    " ", "  ", "\n", "\r\n", "\t", "a", "b", "the", "The", " the", "thes", "x", "AB", "aB", "'s",
    "'", "'ll", "1", "12", "3456", ".", "!!", "/", "é", "e\u0301", "\u0301", "ſ", "日本", "\u00a0",
    "\u2003", "🙂", "<|end|>", "<|end", "|>", " x", "ab", "\x00", "_",
])  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(parts=st.lists(WORDS, max_size=60))
def test_pieces_have_the_ids_of_the_whole(name: str, parts: list[str]) -> None:
    tokenizer = library(name)
    assert encoding_pieces.can_cut(json.loads(tokenizer.to_str()))
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding_pieces, "PIECE", 1)  # a cut at every possible position
        pieces = list(encoding_pieces.pieces(text))
    assert "".join(pieces) == text
    ids = [token for piece in pieces for token in tokenizer.encode(piece).ids]
    assert ids == tokenizer.encode(text).ids


def test_there_are_cuts() -> None:
    text = "the quick brown fox " * 100_000
    pieces = list(encoding_pieces.pieces(text))
    assert "".join(pieces) == text
    assert all(
        encoding_pieces.PIECE <= len(piece) < encoding_pieces.PIECE + 10 for piece in pieces[:-1]
    )
    assert list(encoding_pieces.pieces("")) == [""]
    for rest in (
        ". " * 100_000,
        "a" * 200_000,
        "日本語" * 100_000,
    ):  # no cut, or too far
        assert list(encoding_pieces.pieces(rest)) == [rest]
        first, *others = encoding_pieces.pieces(text[: encoding_pieces.PIECE + 100] + rest)
        assert len(first) < encoding_pieces.PIECE + 10
        assert "".join([first, *others]) == text[: encoding_pieces.PIECE + 100] + rest


OTHERS: dict[str, Callable[[], Library]] = {
    "another pattern": lambda: made(split(r"\w+ \w+|\W"), []),
    "a space in front": lambda: made(pre_tokenizers.ByteLevel(add_prefix_space=True), []),
    "no splits": lambda: made(
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), []
    ),
    "a normal form": lambda: made(split(GPT2), [], normalizers.Lowercase()),
    "a token with a space": lambda: made(split(GPT2), [AddedToken("a b")]),
    "a token that strips": lambda: made(split(GPT2), [AddedToken("<x>", rstrip=True)]),
    "a token of whole words": lambda: made(split(GPT2), [AddedToken("<x>", single_word=True)]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_might_see_across_a_cut_allows_none(name: str) -> None:
    assert not encoding_pieces.can_cut(json.loads(OTHERS[name]().to_str()))


@pytest.mark.slow
def test_a_tokenizer_cuts_where_it_may(tmp_path: Path) -> None:
    text = "the lazy dog " * 20_000
    for make, count in ((byte_level, 2), (sentencepiece, 1)):
        (directory := tmp_path / make.__name__).mkdir()
        tokenizer = Tokenizer(make(directory))
        pieces = list(tokenizer.pieces(text))
        assert (len(pieces) > 1) == (count > 1)
        whole = tokenizer._model.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, False).tolist() == whole
        assert tokenizer.encode(text).tolist() == [*tokenizer.before, *whole]
