"""Tokenizers in other files than tokenizer.json, held against the libraries they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.tokenizer_files import (
    WORDS,
    gguf_file,
    gguf_of_json,
    gguf_of_spm,
    ranks,
    reference,
    spm,
    tiktoken_file,
)
from helpers.toy_tokenizer import CHATML, byte_level, sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.tokenizer import Tokenizer, TokenizerError
from sglang.srt.tokenizer.split_patterns import LLAMA3, QWEN2

# Texts near what the small vocabularies know, and any others.
TEXTS = st.one_of(
    st.text(max_size=40),
    st.lists(
        st.sampled_from([*" abcdelnorstw.,0123<>ßü日🙂\n", "low", "newest ", "  ", "<tag>"]),
        max_size=24,
    ).map("".join),
)
EXAMPLES = settings(max_examples=50, deadline=None)

MODELS: dict[str, dict[str, Any]] = {
    "bpe": {},
    "bpe without a prefix": {"add_dummy_prefix": False},
    "bpe without bytes": {"byte_fallback": False},
    "bpe with pieces of its own": {
        "user_defined_symbols": ["<tag>", "▁▁", "▁▁▁", "lowest", "12"],
        "control_symbols": ["<ctl>"],
    },
    "bpe that squeezes": {"remove_extra_whitespaces": True},
    "unigram": {"model_type": "unigram", "vocab_size": 330},
    "unigram without bytes": {"model_type": "unigram", "byte_fallback": False, "vocab_size": 70},
    "unigram with pieces of its own": {
        "model_type": "unigram", "vocab_size": 335, "control_symbols": ["<ctl>"],
        "user_defined_symbols": ["<tag>", "lowest", "12"],
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=list(MODELS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("spm")
    theirs = spm(path, **MODELS[request.param])
    return Tokenizer(path), theirs


@EXAMPLES
@given(text=TEXTS)
def test_sentencepiece_models_are_read_as_they_are_written(pair: Any, text: str) -> None:
    ours, theirs = pair
    text = text.replace("\0", "").replace("▁", "")  # marks a space in their pieces
    for name in ("<s>", "</s>", "<unk>", "<ctl>"):
        text = text.replace(name, "")
    assert list(ours.encode(text, add_special_tokens=False)) == theirs.encode(text)


def test_their_pieces_are_ours(pair: Any) -> None:
    ours, theirs = pair
    assert ours.vocab_size == theirs.get_piece_size()
    assert (ours.bos_id, ours.eos_ids) == (theirs.bos_id(), (theirs.eos_id(),))
    for i in range(ours.vocab_size):
        if theirs.is_byte(i):
            assert ours.token_bytes[i] == bytes([int(theirs.id_to_piece(i)[3:5], 16)])
        elif not theirs.is_control(i) and not theirs.is_unknown(i):
            assert ours.token_bytes[i].decode() == theirs.id_to_piece(i).replace("▁", " ")
    assert ours.encode("a")[0] == theirs.bos_id()
    assert ours.special_ids == {
        i for i in range(ours.vocab_size) if theirs.is_control(i) or theirs.is_unknown(i)
    }
    ids = [i for i in theirs.encode(WORDS[1]) if not theirs.is_unknown(i)]
    assert ours.decode(ids).removeprefix(" ") == theirs.decode(ids)
    literals = ["</s>", "a</s>", "x<s>", "<ctl>", "<0x41>", "<s><unk>"]
    plain = ours.vocabulary().encode(literals)  # a user's text, not ours
    assert not ours.special_ids & {i for ids in plain for i in ids if not theirs.is_unknown(i)}


@pytest.fixture(scope="module", params=["qwen", "llama"])
def tik(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("tik")
    found = ranks(path / "trained")
    name = "tokenizer.model" if request.param == "llama" else "qwen.tiktoken"
    tiktoken_file(path / "model" / name, found)
    (path / "model" / "config.json").write_text(json.dumps({"model_type": request.param}))
    pattern = LLAMA3 if request.param == "llama" else QWEN2
    return Tokenizer(path / "model"), reference(found, pattern)


@EXAMPLES
@given(text=TEXTS)
def test_tiktoken_files_are_read_as_they_are_written(tik: Any, text: str) -> None:
    ours, theirs = tik
    ids = list(ours.encode(text, add_special_tokens=False))
    assert ids == theirs.encode(text, disallowed_special=())
    assert ours.decode(ids) == text
    cut = ids[len(text) % 3 :: 2]  # need not be whole characters
    assert b"".join(ours.token_bytes[i] for i in cut) == theirs.decode_bytes(cut)


def test_tiktoken_families_have_their_control_tokens(tik: Any) -> None:
    ours, theirs = tik
    if ours.id_of("<|eot_id|>"):
        assert ours.bos_id == theirs.n_vocab == ours.encode("a")[0]
        assert ours.id_of("<|eot_id|>") == theirs.n_vocab + 9
        assert set(ours.eos_ids) == {theirs.n_vocab + i for i in (9, 8, 1)}
        assert ours.vocab_size == theirs.n_vocab + 256
    else:
        assert ours.bos_id is None
        assert ours.eos_ids == (theirs.n_vocab + 2, theirs.n_vocab)
    assert "header_id" in ours.chat_template or "im_start" in ours.chat_template


# -- GGUF -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    path = byte_level(tmp_path_factory.mktemp("json"))
    file = gguf_file(path / "m.gguf", gguf_of_json(path, "gpt-2"))
    return Tokenizer(path), Tokenizer(file)


@EXAMPLES
@given(text=st.one_of(TEXTS, st.sampled_from(["<|im_end|>a", "<tool><|im_start|>user"])))
def test_byte_level_gguf_files(twins: tuple[Tokenizer, Tokenizer], text: str) -> None:
    json_one, gguf_one = twins
    ids = gguf_one.encode(text)
    assert ids == json_one.encode(text)
    assert gguf_one.decode(ids) == text


def test_gguf_files_say_the_rest_too(twins: tuple[Tokenizer, Tokenizer]) -> None:
    json_one, gguf_one = twins
    assert gguf_one.token_bytes == json_one.token_bytes
    assert gguf_one.special_ids == json_one.special_ids
    assert gguf_one.chat_template == json_one.chat_template == CHATML
    # The end that the file names, and what chat models stop at.
    assert gguf_one.eos_ids[0] == json_one.eos_ids[0]
    assert set(gguf_one.eos_ids) == {gguf_one.id_of("<|im_end|>"), gguf_one.id_of("<|endoftext|>")}
    assert gguf_one.bos_id is None


@pytest.fixture(scope="module")
def gguf_spm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("spm")
    theirs = spm(path)
    facts = {**gguf_of_spm(theirs), "ggml.add_eos_token": True}
    return Tokenizer(gguf_file(path / "m.gguf", facts)), theirs


@EXAMPLES
@given(text=TEXTS)
def test_sentencepiece_gguf_files(gguf_spm: Any, text: str) -> None:
    ours, theirs = gguf_spm
    text = text.replace("\0", "").replace("▁", "")
    ids = theirs.encode(text)
    assert list(ours.encode(text)) == [theirs.bos_id(), *ids, theirs.eos_id()]


GGUF_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no tokens": ({"ggml.tokens": None}, "holds no tokenizer"),
    "another kind": ({"ggml.model": "rwkv"}, "gpt2, llama and t5"),
    "another pattern": ({"ggml.pre": "morse"}, "known are .*llama-bpe"),
    "fewer types": ({"ggml.token_type": [1]}, "1 types"),
    "an end beyond": ({"ggml.eos_token_id": 99999}, "eos_token_id is 99999"),
    "a text for a flag": ({"ggml.add_bos_token": "yes"}, "true or false"),
    "numbers for tokens": ({"ggml.tokens": [1, 2]}, "an array of strings"),
    "a merge of nothing": ({"ggml.merges": ["x y z", "q"]}, "m.gguf"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(GGUF_FAULTS))
def test_gguf_faults_are_told(case: str, tmp_path: Path) -> None:
    change, message = GGUF_FAULTS[case]
    facts = {**gguf_of_json(byte_level(tmp_path / "json"), "gpt-2"), **change}
    file = gguf_file(tmp_path / "m.gguf", {k: v for k, v in facts.items() if v is not None})
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer(file)
    assert str(file) in str(caught.value)


# -- choice of the file ---------------------------------------------------------------------------


def test_the_order_of_files(tmp_path: Path) -> None:
    """Each is read where those before it are missing."""
    files = byte_level(tmp_path / "json")
    layout = json.loads((files / "tokenizer.json").read_text())
    model = tmp_path / "model"
    gguf_file(tmp_path / "m.gguf", gguf_of_json(files, "gpt-2"))
    model.mkdir()
    (tmp_path / "m.gguf").rename(model / "m.gguf")
    (model / "config.json").write_text('{"model_type": "qwen"}')
    seen = [Tokenizer(model)]
    (model / "vocab.json").write_text(json.dumps(layout["model"]["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in layout["model"]["merges"])
    (model / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    seen.append(Tokenizer(model))
    tiktoken_file(model / "q.tiktoken", ranks(tmp_path / "trained"))
    seen.append(Tokenizer(model))
    spm(model)
    seen.append(Tokenizer(model))
    (model / "tokenizer.json").write_text((files / "tokenizer.json").read_text())
    seen.append(Tokenizer(model))
    # Vocabularies of these five differ by size: with specials, without, Qwen's own,
    # sentencepiece's, specials.
    assert seen[0].token_bytes == seen[4].token_bytes
    assert len({tokenizer.vocab_size for tokenizer in seen}) == 4
    for tokenizer in seen:
        text = "The quick brown fox"
        assert tokenizer.decode(tokenizer.encode(text, False)).strip() == text
    assert seen[1].encode("The quick fox") == seen[0].encode("The quick fox")


def test_added_tokens_stand_where_the_configuration_says(tmp_path: Path) -> None:
    spm(tmp_path)
    size = Tokenizer(tmp_path).vocab_size
    added = {
        str(size): {"content": "<|end|>", "special": True},
        str(size + 5): {"content": "<tool>", "special": False},
    }
    config = {"added_tokens_decoder": added, "eos_token": "<|end|>", "add_bos_token": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = Tokenizer(tmp_path)
    assert (ours.id_of("<|end|>"), ours.id_of("<tool>")) == (size, size + 5)
    assert ours.eos_ids == (size,)
    assert ours.encode("<tool><|end|>")[-1] == size
    assert ours.encode("a")[0] != 1
    assert ours.vocab_size == size + 6
    for files in ({"legacy": False}, {"add_prefix_space": False}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(files))
        pieces = Tokenizer(tmp_path)
        assert pieces.decode(pieces.encode("</s>low", False)) == "</s>low"


@pytest.mark.parametrize("how", ["dots", "link"])
def test_no_tokenizer_file_is_read_from_elsewhere(how: str, tmp_path: Path) -> None:
    files = sentencepiece(tmp_path / "outside")
    model = tmp_path / "model"
    model.mkdir()
    if how == "link":
        (model / "tokenizer.json").symlink_to(files / "tokenizer.json")
    else:
        (model / "tokenizer.json").symlink_to("../outside/tokenizer.json")
    with pytest.raises(TokenizerError, match="outside the model directory"):
        Tokenizer(model)


# -- streams --------------------------------------------------------------------------------------


def _json(path: Path) -> Path:
    return byte_level(path)


def _spm_json(path: Path) -> Path:
    return sentencepiece(path)


def _spm_bpe(path: Path) -> Path:
    spm(path, control_symbols=["<ctl>"], user_defined_symbols=["▁▁", "<tag>"])
    return path


def _unigram(path: Path) -> Path:
    spm(path, model_type="unigram", vocab_size=330)
    return path


def _tiktoken(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    tiktoken_file(path / "q.tiktoken", ranks(path / "trained"))
    (path / "config.json").write_text('{"model_type": "qwen"}')
    return path


def _gguf(path: Path) -> Path:
    return gguf_file(path / "m.gguf", gguf_of_spm(spm(path / "trained")))


KINDS = (_json, _spm_json, _spm_bpe, _unigram, _tiktoken, _gguf)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__.strip("_"))
def any_kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(request.param(tmp_path_factory.mktemp("kind")))


@pytest.mark.slow
@EXAMPLES
@given(data=st.data())
def test_a_stream_is_the_whole_decode(any_kind: Tokenizer, data: st.DataObject) -> None:
    """Any ids, in any portions: single bytes of characters, control tokens, ids there are not."""
    tokenizer, size = any_kind, any_kind.vocab_size
    parts = [i for i, piece in enumerate(tokenizer.token_bytes) if len(piece) == 1]
    one = st.one_of(
        st.integers(0, size + 2),
        st.sampled_from(parts),  # bytes, most of them no characters by themselves
        st.sampled_from(sorted(tokenizer.special_ids)),
    )
    ids = data.draw(st.lists(one, max_size=40))
    hidden = data.draw(st.booleans())
    stream = tokenizer.detokenizer(skip_special=hidden)
    shown, at = [], 0
    while at < len(ids):
        count = data.draw(st.integers(1, 7))
        held = data.draw(st.integers(0, 3))
        shown.append(stream.push(ids[at : at + count], held=min(held, stream.raw)))
        at += count
    whole = "".join(shown) + stream.finish()
    table = [*tokenizer.token_bytes, b"", b"", b""]
    visible = (table[i] for i in ids if not (hidden and i in tokenizer.special_ids))
    assert whole == b"".join(visible).decode("utf-8", "replace")
    assert whole == tokenizer.decode(ids, skip_special=hidden)
    assert stream.raw == sum(len(table[i]) for i in ids)
