"""Sampling parameters that a model's generation_config.json recommends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.runtime.sampling_defaults import sampling_defaults
from sglang.srt.tokenizer.tokenizer import TokenizerError


def recommended(tmp_path: Path, **config: Any) -> dict[str, float]:
    (tmp_path / "generation_config.json").write_text(json.dumps(config), encoding="utf-8")
    return sampling_defaults(tmp_path)


def test_parameters_have_the_names_of_a_chat_request(tmp_path: Path) -> None:
    found = recommended(
        tmp_path, do_sample=True, temperature=0.6, top_p=0.95, top_k=20, max_new_tokens=2048,
        repetition_penalty=1.05, bos_token_id=1, eos_token_id=[2], transformers_version="4.51.0",
    )  # fmt: skip
    assert found == {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "max_tokens": 2048,
                     "repetition_penalty": 1.05}  # fmt: skip


def test_a_greedy_model_has_temperature_zero(tmp_path: Path) -> None:
    assert recommended(tmp_path, do_sample=False, temperature=0.7) == {"temperature": 0.0}


def test_values_that_no_request_may_have_are_left_out(tmp_path: Path) -> None:
    found = recommended(
        tmp_path, temperature=-1, top_p=2.0, top_k="20", min_p=True, max_new_tokens=0,
        repetition_penalty=float("nan"),
    )  # fmt: skip
    assert found == {}


def test_a_missing_file_recommends_nothing(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == {}
    assert sampling_defaults(tmp_path / "model.gguf") == {}


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("[", encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"generation_config\.json is not valid JSON"):
        sampling_defaults(tmp_path)
