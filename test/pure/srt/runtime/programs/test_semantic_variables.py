"""Sizes of values: what a value is counted for is at least its JSON text in UTF-8."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sglang.srt.runtime.programs.semantic_variables import size_of


@pytest.mark.parametrize(
    "value", ["x" * 99, "é" * 99, "語" * 99, "😀" * 99, ["😀"] * 9, {"😀" * 9: "é"}, "\ud800"]
)
def test_a_text_counts_its_bytes(value: Any) -> None:
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert size_of(value) >= len(data.encode("utf-8", "surrogatepass"))
