"""The checkpoint that speed is measured with: its text is cut the way it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from sglang.ir.chat_template import TEMPLATES, template_for
from tokenizers import Tokenizer

from benchmark.harness.text_model import END_TURN, LESS, TEMPLATE, checkpoint, trained, words
from benchmark.models import SHAPES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("T", tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def large() -> dict[str, Any]:
    return trained(32_000)


def test_training_twice_gives_the_same(large: dict[str, Any]) -> None:
    assert json.dumps(trained(32_000)) == json.dumps(large)
    assert len(large["model"]["vocab"]) == 32_000
    assert sorted(large["model"]["vocab"].values()) == list(range(32_000))


def test_words_are_cut_as_they_were_written(large: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_str(json.dumps(large))
    whole = words(large)
    assert len(whole) > 10_000
    begins = st.sampled_from(["", "Answer:", "1 + 1 =", "a\n", "<|im_start|>assistant\n", "say: "])

    @settings(max_examples=200, deadline=None)
    @given(begins, st.lists(st.sampled_from(whole), min_size=1, max_size=20))
    def check(begin: str, ids: list[int]) -> None:
        text = tokenizer.decode(ids)
        assert tokenizer.encode(text).ids == ids
        both = tokenizer.encode(begin).ids + ids
        assert tokenizer.encode(begin + text).ids == both

    check()


def test_the_head_prefers_words(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    head, shape = weights["lm_head.weight"].float(), SHAPES["T"]
    assert head.shape == weights["model.embed_tokens.weight"].shape == (shape.vocab, shape.hidden)
    whole = words(json.loads((folder / "tokenizer.json").read_text()))
    others = sorted(set(range(shape.vocab)) - set(whole))
    assert whole
    norms = head.norm(dim=1)
    assert norms[others].max() < norms[whole].min()
    assert norms[others].mean() / norms[whole].mean() == pytest.approx(LESS, rel=0.1)


def test_the_template_is_the_one_that_programs_choose(folder: Path) -> None:
    from transformers import AutoTokenizer

    about = json.loads((folder / "tokenizer_config.json").read_text())
    assert template_for(str(folder), about["chat_template"]) is TEMPLATES["chatml"]
    said = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    text = ""
    for at, message in enumerate(said):
        before, after = TEMPLATES["chatml"].around(message["role"], said[:at])
        text += before + message["content"] + after
    text += TEMPLATES["chatml"].around("assistant", said)[0]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True) == text
    assert tokenizer.chat_template == TEMPLATE
    ids = tokenizer(text).input_ids
    assert ids.count(tokenizer.convert_tokens_to_ids(END_TURN)) == 2
    assert tokenizer.decode(ids) == text
