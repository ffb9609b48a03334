"""Checkpoints and tokenizers that lie: none crashes, hangs or takes memory, and what is refused is
refused by a ValueError that names the file."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from helpers import hf_models
from helpers.gguf_files import Q, write_model
from helpers.paths import TESTS
from helpers.tokenizer_files import (
    gguf_file,
    gguf_of_json,
    gguf_of_spm,
    ranks,
    spm,
    tiktoken_file,
)
from helpers.toy_tokenizer import byte_level
from sglang.srt.config import Config
from sglang.srt.files.gguf import Gguf
from sglang.srt.models.checkpoint_format import open_checkpoint
from sglang.srt.models.model_spec import read_config
from sglang.srt.tokenizer import Tokenizer, TokenizerError
from sglang.srt.tokenizer.templates import built_in
from sglang.srt.worker.model_loading import plan_of

CHILD = TESTS / "helpers" / "hostile_child.py"
GROWTH = 256 << 20  # bytes of memory above what valid files take


def files(root: Path) -> None:
    """Small valid models and tokenizers; what a directory is called says what it holds."""
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    model = hf_models.make("LlamaForCausalLM", **small)
    hf_models.save(model, root / "model-one")
    hf_models.save(model, root / "model-sharded", max_shard_size="8KB")
    tokens = {"ggml.model": "gpt2", "ggml.tokens": [f"t{i}" for i in range(97)]}
    for name, kind in (("f32", Q.F32), ("q8", Q.Q8_0), ("q4", Q.Q4_0)):
        directory = root / f"model-gguf-{name}"
        directory.mkdir()
        write_model(directory / "m.gguf", model, "llama", kind, tokenizer=tokens)
    plain = byte_level(root / "tokenizer-json", 300)
    theirs = spm(root / "tokenizer-spm")
    spm(root / "tokenizer-unigram", model_type="unigram", vocab_size=330)
    (root / "tokenizer-spm" / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": {"600": {"content": "<x>", "special": True}}})
    )
    tiktoken_file(root / "tokenizer-tik" / "q.tiktoken", ranks(root / "trained"))
    (root / "tokenizer-tik" / "config.json").write_text('{"model_type": "qwen", "eos_token_id": 3}')
    for name, facts in (("bpe", gguf_of_json(plain, "gpt-2")), ("spm", gguf_of_spm(theirs))):
        directory = root / f"tokenizer-gguf-{name}"
        directory.mkdir()
        gguf_file(directory / "m.gguf", facts)


def run(root: Path, seed: int, count: int, seconds: float = 280) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(CHILD), str(root), str(seed), str(count)],
        capture_output=True, text=True, timeout=seconds,
        env={"PYTHONPATH": f"{TESTS}:{TESTS.parent / 'python'}", "OMP_NUM_THREADS": "1",
             "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_mutants_are_loaded_or_refused(tmp_path: Path) -> None:
    files(tmp_path)
    found = run(tmp_path, seed=1, count=12)
    assert found["faults"] == {}
    assert found["grown"] < GROWTH
    assert found["outcomes"]["refused"] > 200, found
    assert found["outcomes"]["loaded"] > 20, "mutants so wild that nothing is read of them"


# -- one lie at a time ----------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    hf_models.save(hf_models.make("LlamaForCausalLM"), tmp_path)
    return tmp_path


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_hidden_layers": (1 << 31) - 1}, "at most 1024"),
        ({"max_position_embeddings": (1 << 31) - 1}, "--context-length"),
        ({"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 1024, "num_experts": 1024},
         "of all 1024 layers"),
        ({"architectures": ["Custom"], "auto_map": {"AutoModel": "evil.Custom"}}, "is never run"),
    ],
)  # fmt: skip
def test_configurations_that_ask_for_much(
    values: dict[str, Any], message: str, model: Path
) -> None:
    change(model / "config.json", **values)
    with pytest.raises(ValueError, match=message):
        plan_of(Config.of(model_path=str(model), device="cpu"))


def test_the_code_of_a_checkpoint_is_never_run(model: Path, tmp_path: Path) -> None:
    """``auto_map`` is passed over where the architecture is known here; ``--trust-remote-code``
    changes nothing."""
    (model / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    change(model / "config.json", auto_map={"AutoModelForCausalLM": "evil.Model"})
    assert plan_of(Config.of(model_path=str(model), device="cpu")).architecture
    assert not (tmp_path / "ran").exists()
    trusting = Config.of(model_path=str(model), device="cpu", trust_remote_code=True)
    assert plan_of(trusting).architecture
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return byte_level(tmp_path, 300)


def layout(path: Path, change: Any) -> None:
    file = path / "tokenizer.json"
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


LIES: dict[str, tuple[Any, str]] = {
    "an id of 2^31": (lambda v: v["model"]["vocab"].update({"zzz": 1 << 31}), "has id 2147483648"),
    "an id of 2^40": (lambda v: v["model"]["vocab"].update({"zzz": 1 << 40}), "tokenizer.json"),
    "a merge of nothing": (lambda v: v["model"]["merges"].append(["qq", "zz"]), "tokenizer.json"),
    "a long control token": (
        lambda v: v["added_tokens"].append({**v["added_tokens"][0], "content": "<" * 5000}),
        "at most 256 characters",
    ),
    "many control tokens": (
        lambda v: v.update(added_tokens=[
            {**v["added_tokens"][0], "id": 300 + i, "content": f"<{i:0200}>"} for i in range(2000)
        ]),
        "all of them 262144",
    ),
    "a pattern that is none": (
        lambda v: v.update(pre_tokenizer={
            "type": "Split", "pattern": {"Regex": "(((("}, "behavior": "Isolated", "invert": False,
        }),
        "tokenizer.json",
    ),
    "no decoder": (lambda v: v.update(decoder=None), "only byte-level and sentencepiece"),
    "decoders that are none": (lambda v: v.update(decoder=[3]), "tokenizer.json"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(LIES))
def test_tokenizers_that_lie(case: str, tokenizer: Path) -> None:
    change, message = LIES[case]
    layout(tokenizer, change)
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer(tokenizer)
    assert str(tokenizer) in str(caught.value)


def test_the_library_numbers_added_tokens(tokenizer: Path) -> None:
    """An id that a file gives one is not the library's: nothing is allocated for it, and what is
    hidden is what is encoded."""
    size = Tokenizer(tokenizer).vocab_size

    def lie(value: Any) -> None:
        value["added_tokens"][-1].update(id=(1 << 31) - 1, special=True)

    layout(tokenizer, lie)
    ours = Tokenizer(tokenizer)
    assert ours.vocab_size == size
    assert ours.id_of("<tool>") == size - 1
    assert ours.encode("<tool>")[-1] == size - 1
    assert size - 1 in ours.special_ids
    assert (
        list(ours.encode_escaped(ours.control_tokens.escape("<tool>") + "<tool>"))[-1] == size - 1
    )


@pytest.mark.parametrize("value", [-1, 1 << 31, "2", 1.5, [True], {"a": 1}, [[1]]])
def test_ends_are_ids(value: Any, tokenizer: Path) -> None:
    (tokenizer / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(TokenizerError, match=r"generation_config\.json: eos_token_id"):
        Tokenizer(tokenizer)


@pytest.mark.parametrize("value", [3, {"a": "b"}, [{"name": "default", "template": 3}]])
def test_templates_are_texts(value: Any, tokenizer: Path) -> None:
    change(tokenizer / "tokenizer_config.json", chat_template=value)
    with pytest.raises(TokenizerError, match="no text") as caught:
        Tokenizer(tokenizer)
    assert str(tokenizer) in str(caught.value)


@pytest.mark.parametrize("value", [[3], [{"name": 1}], []])
def test_lists_without_a_template_are_none(value: Any, tokenizer: Path) -> None:
    change(tokenizer / "tokenizer_config.json", chat_template=value)
    assert Tokenizer(tokenizer).chat_template == built_in("chatml")  # by its control tokens


def test_gguf_shards_stay_in_their_directory(tmp_path: Path) -> None:
    small = {"hidden_size": 32, "num_hidden_layers": 1}
    model = hf_models.make("LlamaForCausalLM", **small)
    inner = tmp_path / "model"
    inner.mkdir()
    names = [f"m-{n:05}-of-00002.gguf" for n in (1, 2)]
    split(write_model(tmp_path / "whole.gguf", model, "llama"), inner, names)
    fields, _ = read_config(inner)
    whole, _ = read_config(tmp_path / "whole.gguf")
    parts, one = open_checkpoint(inner, fields), open_checkpoint(tmp_path, whole)
    assert parts.shapes == one.shapes
    for name in one.shapes:
        assert np.array_equal(parts.read(name), one.read(name))
    assert read_config(inner / names[0])[0].values == fields.values
    with pytest.raises(ValueError, match="give its path"):
        read_config(inner / names[1])
    second = inner / names[1]
    second.rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(ValueError, match="is missing"):
        read_config(inner)
    second.symlink_to(tmp_path / "elsewhere.gguf")
    with pytest.raises(ValueError, match="outside the model directory"):
        read_config(inner)
    second.unlink()
    (inner / names[0]).rename(inner / "m-00001-of-00003.gguf")
    with pytest.raises(ValueError, match="give its path"):
        read_config(inner)


def split(path: Path, directory: Path, names: list[str]) -> None:
    """The tensors of a file by turns in several, as llama.cpp splits them."""
    source = gguf.GGUFReader(path)
    for number, name in enumerate(names):
        writer = gguf.GGUFWriter(directory / name, "llama")
        if number == 0:
            for key, field in source.fields.items():
                if key.startswith("llama."):
                    writer.add_key_value(key, field.contents(), field.types[0])
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", len(names))
        writer.add_int32("split.tensors.count", len(source.tensors))
        for tensor in source.tensors[number :: len(names)]:
            writer.add_tensor(tensor.name, tensor.data)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def test_directories_with_several_models_ask_which(tmp_path: Path) -> None:
    model = hf_models.make("LlamaForCausalLM", num_hidden_layers=1)
    for name in ("a.gguf", "b.gguf"):
        write_model(tmp_path / name, model, "llama")
    with pytest.raises(ValueError, match="2 models"):
        read_config(tmp_path)
    with pytest.raises(TokenizerError, match="2 models"):
        Tokenizer(tmp_path)
    assert read_config(tmp_path / "b.gguf")[1] == "LlamaForCausalLM"
    (tmp_path / "b.gguf").rename(tmp_path / "mmproj-b.gguf")  # the file of a vision projector
    assert read_config(tmp_path)[1] == "LlamaForCausalLM"


HEADERS: dict[str, tuple[bytes, str]] = {
    "short": (b"GGUF", "at least 24"),
    "another": (b"GGJT" + bytes(40), "begins with"),
    "old": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "its version is 1"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big endian"),
    "tensors": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "declares 1152921504606846976 tens"),
    "entries": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40), "metadata entries"),
    "a string": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 50) + bytes(9), "a string of"),
    "an array": (
        b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 4, 1 << 61) + bytes(99),
        "items of a",
    ),
    "strings": (
        b"GGUF" + struct.pack("<IQQQ1sIIQQ", 3, 0, 1, 1, b"a", 9, 8, 2, 1 << 63) + bytes(99),
        "goes beyond",
    ),
    "arrays of arrays": (
        b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 9, 1) + bytes(99),
        "unknown type 9",
    ),
    "a tensor": (
        b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 1 << 40, 0, 0) + bytes(99),
        "needs 4398046511104 bytes",
    ),
    "half a block": (
        b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 33, 8, 0) + bytes(99),
        "stores 32 at a time",
    ),
    "two at one place": (
        b"GGUF" + struct.pack("<IQQ", 3, 2, 0)
        + b"".join(struct.pack("<Q1sIQIQ", 1, n, 1, 4, 0, 0) for n in (b"a", b"b")) + bytes(200),
        "overlap",
    ),
    "one name for two": (
        b"GGUF" + struct.pack("<IQQ", 3, 2, 0)
        + b"".join(struct.pack("<Q1sIQIQ", 1, b"a", 1, 4, 0, n) for n in (0, 32)) + bytes(200),
        "occurs twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(HEADERS))
def test_gguf_headers_that_lie(case: str, tmp_path: Path) -> None:
    data, message = HEADERS[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        Gguf(path)
    assert str(path) in str(caught.value)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


FACTS = {"attention.head_count": 2, "embedding_length": 32, "block_count": 1, "context_length": 64}


def header_of(
    path: Path, facts: dict[str, int], shapes: dict[str, tuple[int, ...]], kind: str = "llama"
) -> Path:
    """A file whose tensors, float32, lie one after another; shapes have the fastest size first."""
    entries = [_text("general.architecture") + struct.pack("<I", 8) + _text(kind)]
    entries += [_text(f"{kind}.{k}") + struct.pack("<II", 4, v) for k, v in facts.items()]
    data = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(entries)) + b"".join(entries)
    at = 0
    for name, shape in shapes.items():
        data += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, at)
        at += -(-4 * math.prod(shape) // 32) * 32
    path.write_bytes(data + bytes(at + 64))
    return path


def test_experts_that_take_no_room_are_counted(tmp_path: Path) -> None:
    """A header of kilobytes could name any number of empty experts."""
    facts = FACTS | {"expert_count": 8, "expert_used_count": 2}
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (32, 0)}
    shapes |= {f"blk.{i}.ffn_gate_exps.weight": (0, 4, 4096) for i in range(65)}
    path = header_of(tmp_path / "m.gguf", facts, shapes)
    with pytest.raises(ValueError, match=r"blk\.63.*more than 262144 tensors") as caught:
        open_checkpoint(path, read_config(path)[0])
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", ["llama", "smollm3", "granite"])
@pytest.mark.parametrize("heads", [3, 32, (1 << 31) - 1])
@pytest.mark.parametrize("stem", ["attn_q", "attn_k"])
def test_heads_that_a_tensor_lacks_are_named(
    tmp_path: Path, kind: str, heads: int, stem: str
) -> None:
    key = "attention.head_count" + ("_kv" if stem == "attn_k" else "")
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (32, 8)}
    shapes[f"blk.0.{stem}.weight"] = (32, 32)
    path = header_of(tmp_path / "m.gguf", FACTS | {key: heads}, shapes, kind)
    message = rf"{key} is {heads}, and blk\.0\.{stem}\.weight has 32 rows; "
    with pytest.raises(ValueError, match=message + f".* multiple of {2 * heads}") as caught:
        open_checkpoint(path, read_config(path)[0])
    assert str(path) in str(caught.value)


def test_a_number_of_thousands_of_digits_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": ' + "1" * 5000 + "}")
    with pytest.raises(ValueError, match=r"config\.json is not valid JSON"):
        read_config(tmp_path)
