"""Token bytes, encoding, chat templates, and text that comes out piece by piece."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest
from helpers.toy_tokenizer import CHATML, CORPUS, SPECIALS, byte_level, sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.files.location import EMBEDDED, locate
from sglang.srt.tokenizer import Detokenizer, Tokenizer, TokenizerError
from sglang.srt.tokenizer.jinja_chat_template import ChatTemplateError, JinjaChatTemplate
from sglang.srt.tokenizer.token_bytes import byte_alphabet

TEXTS = ["", " ", "hello world", "Grüße 日本語 🙂\n\ttabs", "a\x00b", *CORPUS[:3]]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_level(tmp_path_factory.mktemp("bpe")))


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(sentencepiece(tmp_path_factory.mktemp("spm")))


def test_the_byte_alphabet_is_a_bijection() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet.values()) == list(range(256))
    assert alphabet["Ġ"] == 0x20
    assert alphabet["Ċ"] == 0x0A


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_round_trip(bpe: Tokenizer, text: str) -> None:
    ids = bpe.encode(text)
    assert isinstance(ids, array)
    assert ids.typecode == "i"
    assert b"".join(bpe.token_bytes[i] for i in ids) == text.encode()
    assert bpe.decode(ids) == text


@given(text=st.text())
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back(bpe: Tokenizer, text: str) -> None:
    assert bpe.decode(bpe.encode(text)) == text


def test_control_tokens_in_text_are_parsed_and_hidden(bpe: Tokenizer) -> None:
    ids = bpe.encode("<|im_start|>user<tool>")
    assert bpe.token_bytes[ids[0]] == b"<|im_start|>"
    assert ids[0] in bpe.special_ids
    assert bpe.id_of("<tool>") == ids[-1]
    assert ids[-1] not in bpe.special_ids
    assert bpe.decode(ids) == "<|im_start|>user<tool>"
    assert bpe.decode(ids, skip_special=True) == "user<tool>"
    assert len(bpe.special_ids) == len(SPECIALS)
    assert bpe.eos_ids == (bpe.id_of("<|im_end|>"),)
    assert bpe.bos_id is None


def test_lone_surrogates_are_refused(bpe: Tokenizer) -> None:
    with pytest.raises(ValueError, match="surrogate"):
        bpe.encode("a\ud800b")


def test_sentencepiece_bytes_and_bos(spm: Tokenizer) -> None:
    ids = spm.encode("hello é")
    assert [spm.token_bytes[i] for i in ids] == [
        b"<s>", b" hello", b" ", b"\xc3", b"\xa9",
    ]  # fmt: skip
    assert spm.bos_id == ids[0] == 1
    assert spm.eos_ids == (2,)
    assert spm.encode("hello", add_special_tokens=False)[0] != 1
    assert list(spm.encode("<s>hello")).count(1) == 1  # not twice
    assert spm.decode(ids, skip_special=True) == " hello é"


def test_the_config_decides_about_bos(tmp_path: Path) -> None:
    path = sentencepiece(tmp_path)
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "add_bos_token": False}))
    assert 1 not in Tokenizer(path).encode("hello")
    both = {**config, "add_bos_token": True, "add_eos_token": True}
    (path / "tokenizer_config.json").write_text(json.dumps(both))
    assert Tokenizer(path).encode("hello")[-1] == 2


def test_generation_config_ends_count(tmp_path: Path) -> None:
    path = byte_level(tmp_path)
    (path / "generation_config.json").write_text('{"eos_token_id": [3, 5]}')
    assert Tokenizer(path).eos_ids[:2] == (3, 5)


@pytest.mark.parametrize("broken", ["", "{", '{"model": {}}'])
def test_broken_files_are_named(tmp_path: Path, broken: str) -> None:
    (tmp_path / "tokenizer.json").write_text(broken)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer(tmp_path)


def test_missing_directories_are_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="nowhere"):
        Tokenizer.load("./nowhere")
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        Tokenizer(tmp_path)


# -- chat -----------------------------------------------------------------------------------------

TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_chat_template(bpe: Tokenizer) -> None:
    text = bpe.apply_chat_template(TALK)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert not bpe.apply_chat_template(TALK, False).endswith("assistant\n")
    prefilled = [*TALK, {"role": "assistant", "content": "Sure, "}]
    assert bpe.apply_chat_template(prefilled, continue_final_message=True).endswith(
        "<|im_start|>assistant\nSure, "
    )


def test_templates_of_several_kinds(tmp_path: Path) -> None:
    path = byte_level(tmp_path)
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert Tokenizer(path).apply_chat_template(TALK) == "yes"
    (path / "chat_template.jinja").write_text("file {{ strftime_now('%Y') | length }}")
    assert Tokenizer(path).apply_chat_template(TALK) == "file 4"
    chosen = tmp_path / "mine.jinja"
    chosen.write_text("{% generation %}{{ messages | tojson }}{% endgeneration %}{{ x }}")
    made = Tokenizer(path, str(chosen)).apply_chat_template(TALK[1:], x=3)
    assert made == '[{"role": "user", "content": "Hi"}]3'
    (path / "chat_template.jinja").unlink()
    (path / "tokenizer_config.json").write_text("{}")  # only its control tokens remain
    assert Tokenizer(path).apply_chat_template(TALK).endswith("<|im_start|>assistant\n")
    with pytest.raises(ChatTemplateError, match="--chat-template"):
        Tokenizer(sentencepiece(tmp_path / "s")).apply_chat_template(TALK)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('roles must alternate') }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages[9].content.x }}",
    ],
)
def test_the_sandbox_turns_everything_into_one_error(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        JinjaChatTemplate(source, {}).render(TALK)


def test_a_template_that_does_not_compile() -> None:
    with pytest.raises(ChatTemplateError, match="jinja2"):
        JinjaChatTemplate("{% if %}", {})
    with pytest.raises(ChatTemplateError, match="drops"):
        JinjaChatTemplate("constant", {}).render(TALK, continue_final_message=True)
    assert JinjaChatTemplate(CHATML, {}).source == CHATML


# -- incremental text -----------------------------------------------------------------------------

PIECES = st.one_of(st.binary(max_size=4), st.sampled_from(["é", "日", "🙂", "a"]).map(str.encode))


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_the_stream_joined_is_the_decode_of_the_whole(data: st.DataObject) -> None:
    table = data.draw(st.lists(PIECES, min_size=1, max_size=12))
    hidden = data.draw(st.sets(st.integers(0, len(table) - 1)))
    ids = data.draw(st.lists(st.integers(0, len(table)), max_size=30))  # the last id has no bytes
    bytes_of = [*table, b""]
    total = sum(len(bytes_of[i]) for i in ids)
    cut = data.draw(st.one_of(st.just(-1), st.integers(0, total)))
    text = Detokenizer(table, hidden)
    out, place = [], 0
    while place < len(ids):
        step = data.draw(st.integers(1, 4))
        chunk = ids[place : place + step]
        place += step
        raw = sum(len(bytes_of[i]) for i in ids[:place])
        past = max(raw - cut, 0) if cut >= 0 else 0  # an engine never shows what it will cut
        held = data.draw(st.integers(past, raw)) if raw > past else past
        out.append(text.push(chunk, held))
    out.append(text.finish(cut))
    limit, at, kept = total if cut < 0 else cut, 0, bytearray()
    for i in ids:
        piece = bytes_of[i][: max(limit - at, 0)]
        at += len(bytes_of[i])
        kept += b"" if i in hidden else piece
    assert "".join(out) == kept.decode("utf-8", "replace")
    assert text.raw == total
    if cut < 0:
        assert text.released == len(ids)


def test_what_is_held_back() -> None:
    text = Detokenizer([b"\xf0\x9f", b"\x99\x82!", b"ST", b"OP"])
    assert text.push([0]) == ""  # half a character
    assert text.push([1]) == "🙂!"
    assert text.push([2], held=2) == ""  # may be a stop
    assert text.released == 2
    assert text.push([3], held=4) == ""
    assert text.finish(cut=5) == ""
    assert text.released == 2


def test_the_embedded_tokenizer() -> None:
    if not (EMBEDDED / "tokenizer.json").is_file():
        pytest.skip("the embedded model is not built in this tree")
    tokenizer = Tokenizer.load()
    for text in [*TEXTS, "{'a': [1, 2]}\r\n\x7f\u200b"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    prompt = tokenizer.apply_chat_template(TALK)
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    assert tokenizer.decode(ids) == prompt
    assert len(tokenizer.special_ids & set(ids)) == 2
    assert tokenizer.eos_ids[0] in tokenizer.special_ids


def test_the_embedded_tokenizer_is_found_without_or_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("") == locate("sglang-tiny") == EMBEDDED
    (tmp_path / "sglang-tiny").mkdir()
    assert locate("sglang-tiny") == Path("sglang-tiny")
