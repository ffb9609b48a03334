"""The worker on a GPU in bfloat16, against the same weights in float64 on the CPU."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import numpy as np
from helpers.paged import Paged, Sequence
from helpers.tiny_model import write_config
from srt.attention import reference
from srt.attention.base import Heads, Layout
from srt.attention.native import NativeAttention
from srt.core.batch import Sample, Score
from srt.core.ints import ints
from srt.core.sampling import SamplingParams
from srt.layers.weight import Place
from srt.models.config import read_config
from srt.models.llama import LlamaForCausalLM
from srt.models.registry import lookup
from srt.worker.sampler import NOT_FINITE, draw
from torch import Tensor

SHAPE: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "num_hidden_layers": 3,
}  # fmt: skip


@torch.no_grad()
def truth(paged: Paged, path: str, tokens: list[int]) -> Tensor:
    """Logits [len(tokens), vocab] of the worker's own weights, in float64 on the CPU."""
    model = paged.worker.model
    architecture = read_config(Path(path))[1]
    place = Place(torch.device("cpu"), torch.float64)
    exact: LlamaForCausalLM = lookup(architecture)(model.spec, place, 512)
    for name, slot in exact.slots().items():
        slot.target.copy_(model.slots()[name].target)
    n, spec = len(tokens), model.spec
    shape = (n + 1, spec.num_kv_heads, spec.head_dim)
    pools = [torch.zeros(shape, dtype=torch.float64) for _ in range(2 * spec.num_layers)]
    attention = NativeAttention(pools[: len(pools) // 2], pools[len(pools) // 2 :], 1, spec.windows)
    positions, ends = np.arange(n, dtype=np.int32), np.array([0, n], dtype=np.int32)
    attention.plan(Layout(ends[:1], ends[1:], ends, positions, positions))
    return exact.logits(exact.forward(torch.tensor(tokens), torch.from_numpy(positions), attention))


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("LlamaForCausalLM", {}),
        ("MistralForCausalLM", {"sliding_window": 24}),
        ("Qwen3ForCausalLM", {"tie_word_embeddings": True}),
    ],
)
def test_logits_in_bfloat16(
    architecture: str, settings: dict[str, Any], page_size: int, tmp_path: Path
) -> None:
    """Whole, in chunks and token by token: off by no more than bfloat16 makes it."""
    path = write_config(tmp_path, architectures=[architecture], **SHAPE, **settings)
    r = random.Random(1)
    texts = [[r.randrange(512) for _ in range(n)] for n in (70, 33, 5)]
    paged = Paged(
        path, page_size, 1, device="cuda", dtype="bfloat16", load_format="dummy",
        max_total_tokens=4096,
    )  # fmt: skip
    wanted = [truth(paged, path, text) for text in texts]
    for longest in (70, 16, 1):
        sequences = [Sequence(text) for text in texts]
        while left := [s for s in sequences if s.done < len(s.tokens)]:
            paged.advance([(s, min(longest, len(s.tokens) - s.done)) for s in left])
        for sequence, want in zip(sequences, wanted):
            error = (sequence.result.double().cpu() - want).abs()
            assert error.max() < 0.12 * want.std()
            assert error.mean() < 0.02 * want.std()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    starts, counts = np.array([5, 0, 40, 9], np.int32), np.array([1, 30, 8, 1], np.int32)
    needed = -(-(starts + counts) // 4)
    tables = np.cumsum([0, *needed]).astype(np.int32)
    pages = np.random.default_rng(0).permutation(int(tables[-1])).astype(np.int32)
    positions = np.concatenate(
        [np.arange(s, s + c, dtype=np.int32) for s, c in zip(starts, counts)]
    )
    layout = Layout(starts, counts, tables, pages, positions)
    pools = [torch.randn(4 * len(pages) + 1, 2, 64, dtype=dtype, device="cuda") for _ in range(2)]
    for pool in pools:
        pool[-1] = 0
    exact = [pool.double().cpu() for pool in pools]
    attention = NativeAttention(pools[:1], pools[1:], 4, (0, 11))
    attention.plan(layout)
    for window in (0, 11):
        heads = Heads(0, 6, 2, 64, 0.125, window)
        q, k, v = (
            torch.randn(len(positions), n, 64, dtype=dtype, device="cuda") for n in (6, 2, 2)
        )
        got = attention.attend(heads, q, k, v).double().cpu()
        inputs = (x.double().cpu() for x in (q, k, v))
        want = reference.attend(heads, layout, *inputs, *exact, page_size=4)
        tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_sampler_draws_what_the_cpu_draws() -> None:
    torch.manual_seed(0)
    logits = torch.randn(64, 5000) * 3
    r = random.Random(0)
    bits = bytes(r.randrange(1, 256) for _ in range(4 * 157))
    samples = [
        Sample(
            SamplingParams(
                temperature=r.choice([0.0, 1.0]), top_p=r.choice([1.0, 0.8]),
                top_k=r.choice([-1, 20]), repetition_penalty=r.choice([1.0, 1.2]),
            ),
            uniform=r.random(),
            history=ints(r.randrange(5000) for _ in range(20)),
            forbidden=(1, 2),
            mask=r.choice([None, bits, lambda: bits]),
        )
        for _ in range(64)
    ]  # fmt: skip
    here, errors = draw(logits, samples)
    there, _ = draw(logits.cuda(), samples)
    assert errors == [""] * 64
    # A uniform that falls on a boundary may go either way in another order of summation.
    assert (here != there.cpu()).sum() <= 1
    greedy = [Sample(SamplingParams(temperature=0.0))] * 3
    ties = torch.zeros(3, 5000, device="cuda")
    ties[1, [70, 300, 4999]] = 1.0
    ties[2, 9] = float("nan")
    tokens, errors = draw(ties, greedy)
    assert tokens.tolist()[:2] == [0, 70]
    assert errors == ["", "", NOT_FINITE]


def test_outputs_and_following_rows(tmp_path: Path) -> None:
    """Greedy text, drawn ahead on the device, equals the text drawn step by step."""
    path = write_config(tmp_path, **SHAPE)
    options = {"device": "cuda", "load_format": "dummy", "dtype": "float32"}
    prompt = [5, 6, 7]
    want = Paged(path, 1, 0, **options).greedy([prompt], 12)[0]
    paged = Paged(path, 1, 0, **options)
    sequence, got, sample = Sequence(list(prompt)), [], Sample(SamplingParams(temperature=0.0))
    row = paged.row(sequence, 3, sample=sample, score=Score(0, ints([6, 7]), top=2))
    for step in range(12):
        output = paged.run([row]).rows[0]
        assert len(output.scores) == (2 if step == 0 else 0)
        got.append(output.token)
        sequence.tokens.append(0)
        row = paged.row(sequence, 1, sample=sample)
        row.follows = 0
    assert got == want
