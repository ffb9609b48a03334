"""The check of an attention implementation at the start, over right and wrong ones."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from sglang.srt.attention import self_check
from sglang.srt.attention.attention_protocol import Attention, Heads, KVShape
from sglang.srt.attention.native_attention import NativeAttention
from torch import Tensor

CPU, KV = torch.device("cpu"), KVShape(2, 16, 16)
WINDOWS = (0, 24)


class Wrong(NativeAttention):
    """An implementation with a mistake."""

    mistake = ""

    def attend(self, heads: Heads, q: Tensor, k: Tensor, v: Tensor | None) -> Tensor:
        if self.mistake == "scale":
            q = q * 0.9
        if self.mistake == "window" and heads.window:
            heads = Heads(0, heads.num_heads, heads.num_kv_heads, 16, heads.scale, heads.window + 8)
        if self.mistake == "old keys":
            k = k.flip(0)
        out = super().attend(heads, q, k, v)
        if self.mistake == "nan":
            out[3, 5] = float("nan")
        if self.mistake == "last row":
            out[-1] = 0
        return out


def make(mistake: str, page_size: int, keys: list[Tensor], values: list[Tensor]) -> Attention:
    attention = Wrong(keys, values, page_size, (0, *WINDOWS, 32))
    attention.mistake = mistake
    return attention


def check(mistake: str, page_size: int = 1, dtype: torch.dtype = torch.bfloat16) -> None:
    build = partial(make, mistake, page_size)
    self_check.check(build, 4, KV, WINDOWS, page_size, dtype, CPU)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_right_implementation_passes(page_size: int, dtype: torch.dtype) -> None:
    check("", page_size, dtype)


@pytest.mark.parametrize("mistake", ["scale", "window", "old keys", "nan", "last row"])
def test_a_wrong_implementation_is_refused(mistake: str) -> None:
    with pytest.raises(ValueError, match=r"differ from the reference by .*; 2% are allowed"):
        check(mistake)
