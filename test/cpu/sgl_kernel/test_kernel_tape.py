"""A model recorded on a native tape against the same model in torch: whole, in chunks, token by
token; and the promise that a row's bits do not depend on its batch."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.paged import Paged, Sequence
from helpers.paths import TESTS
from helpers.tiny_model import write_config

native = pytest.importorskip("sgl_kernel.native")
if not native.AVAILABLE:
    pytest.skip(f"no native kernels: {native.WHY}", allow_module_level=True)

from sgl_kernel import packed  # noqa: E402
from sgl_kernel.tape import Pass, Tape  # noqa: E402

SHAPE: dict[str, Any] = {
    "hidden_size": 96, "intermediate_size": 160, "head_dim": 32, "num_attention_heads": 6,
    "num_key_value_heads": 2, "vocab_size": 301, "num_hidden_layers": 3,
}  # fmt: skip
FAMILIES = [
    ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    ("MistralForCausalLM", {"sliding_window": 24}),
    ("Qwen2ForCausalLM", {}),
    ("Qwen3ForCausalLM", {"tie_word_embeddings": True}),
]


def texts() -> list[list[int]]:
    r = random.Random(3)
    shared = [r.randrange(301) for _ in range(40)]
    return [[r.randrange(301) for _ in range(n)] for n in (70, 33, 5, 1)] + [
        [*shared, *(r.randrange(301) for _ in range(n))] for n in (1, 9)
    ]


def logits(path: str, longest: int, alone: bool = False, **settings: Any) -> list[torch.Tensor]:
    """Logits of every position of every text, computed at most ``longest`` tokens a pass."""
    paged = Paged(path, settings.pop("page_size", 1), 1, load_format="dummy",
                  max_total_tokens=4096, **settings)  # fmt: skip
    sequences = [Sequence(text) for text in texts()]
    while left := [s for s in sequences if s.done < len(s.tokens)]:
        left = left[:1] if alone else left
        paged.advance([(s, min(longest, len(s.tokens) - s.done)) for s in left])
    return [s.result.float() for s in sequences]


@pytest.mark.parametrize(("architecture", "settings"), FAMILIES)
@pytest.mark.parametrize("page_size", [1, 16])
def test_float32_logits_are_those_of_torch(
    architecture: str, settings: dict[str, Any], page_size: int, tmp_path: Path
) -> None:
    path = write_config(tmp_path, architectures=[architecture], **SHAPE, **settings)
    options: dict[str, Any] = {"page_size": page_size, "dtype": "float32"}
    wanted = logits(path, 100, cpu_kernels="torch", **options)
    for longest in (100, 16, 1):
        for got, want in zip(logits(path, longest, cpu_kernels="native", **options), wanted):
            assert (got - want).abs().max() <= 2e-5 * want.abs().max()


@pytest.mark.parametrize("quantization", ["none", "int8", "int8wo", "int4"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_a_row_has_the_same_bits_in_every_batch(
    quantization: str, kv_cache_dtype: str, tmp_path: Path
) -> None:
    path = write_config(tmp_path, architectures=["LlamaForCausalLM"], **SHAPE)
    options: dict[str, Any] = {
        "cpu_kernels": "native", "dtype": "bfloat16", "quantization": quantization,
        "kv_cache_dtype": kv_cache_dtype,
    }  # fmt: skip
    whole = logits(path, 100, **options)
    for other in (
        logits(path, 100, alone=True, **options),
        logits(path, 7, **options),
        logits(path, 1, threads=2, **options),
        logits(path, 100, threads=2, **options),
    ):
        assert all(torch.equal(a, b) for a, b in zip(whole, other))


def test_bfloat16_is_near_float64(tmp_path: Path) -> None:
    """Closer than torch's own bfloat16, which rounds after every operation."""
    path = write_config(tmp_path, architectures=["LlamaForCausalLM"], **SHAPE)
    exact = logits(path, 100, cpu_kernels="torch", dtype="float32")
    ours = logits(path, 100, cpu_kernels="native", dtype="bfloat16")
    theirs = logits(path, 100, cpu_kernels="torch", dtype="bfloat16")

    def off(some: list[torch.Tensor]) -> float:
        return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(some, exact))

    assert off(ours) <= min(0.03, off(theirs))


@pytest.mark.parametrize("isa", native.isas())
def test_a_pass_of_which_nobody_wants_an_output(isa: str) -> None:
    """A pass over the first part of a prompt needs no output. Calls of several threads take
    turns."""
    native.choose(isa)
    try:
        weights = [packed.pack(torch.randn(n, 40), "bf16") for n in (30, 40)]
        tape = Tape()
        x = tape.embed(weights[0])
        tape.linear(tape.choose(x), weights[1])
        ints = np.zeros(5, np.int32)
        ids = np.arange(5, dtype=np.int32)
        work = Pass(ids, ints, ints[:1], np.array([5], np.int32), ints[:2], ints[:1], 16)
        assert tape.run(work, ints[:0]).shape == (0, 40)
        whole = tape.run(work, ids, threads=0)
        wanted = packed.linear(weights[0].rows(torch.arange(5)), weights[1])
        assert np.array_equal(whole, wanted.numpy())
        with ThreadPoolExecutor(4) as several:
            runs = [several.submit(tape.run, work, ids[i % 5 :], 1 + i % 3) for i in range(60)]
            assert all(np.array_equal(run.result(), whole[i % 5 :]) for i, run in enumerate(runs))
    finally:
        native.choose()
    with pytest.raises(ValueError, match="int64; contiguous int32"):
        tape.run(work, ids.astype(np.int64))
    with pytest.raises(ValueError, match="no operations"):
        Tape().run(work, ids)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("at", [[], [0], [4], [1, 2, 4], [0, 1, 2, 3, 4]])
def test_embeddings_may_be_given(at: list[int], threads: int) -> None:
    table, states = packed.pack(torch.randn(30, 40), "bf16"), torch.randn(len(at), 40)
    tape = Tape()
    tape.embed(table, 2.0)
    ids, none = np.arange(5, dtype=np.int32), np.zeros(5, np.int32)
    places = np.array(at, np.int32)

    def work(where: np.ndarray[Any, Any], rows: torch.Tensor) -> Pass:
        count = np.array([5], np.int32)
        return Pass(ids, none, none[:1], count, none[:2], none[:1], 16, (where, rows))

    wanted = 2 * table.rows(torch.arange(5))
    wanted[at] = states
    assert np.array_equal(tape.run(work(places, states), ids, threads), wanted.numpy())
    with pytest.raises(ValueError, match="embeddings"):
        tape.run(work(places, torch.randn(len(at), 41)), ids)
    for where, rows in (([1, 1], 2), ([4, 5], 2), ([-1, 2], 2), ([1, 2], 3)):
        with pytest.raises(ValueError, match="embeddings are"):
            work(np.array(where, np.int32), torch.randn(rows, 40))
    with pytest.raises(ValueError, match="float64"):
        work(places, states.double())


def test_a_second_worker_has_as_many_threads(tmp_path: Path) -> None:
    """The first one leaves torch a single thread, which is not to be taken for torch's choice."""
    path = write_config(tmp_path, architectures=["LlamaForCausalLM"], **SHAPE)
    child = (
        "import sys; from helpers.paged import Paged\n"
        "made = [Paged(sys.argv[1], 1, 1, load_format='dummy', threads=0) for _ in range(2)]\n"
        "print([one.worker.runner.forward.threads for one in made])"
    )
    run = subprocess.run(
        [sys.executable, "-c", child, path], capture_output=True, text=True, check=True,
        cwd=TESTS, env={**os.environ, "OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert run.stdout.strip() == "[2, 2]"


def test_what_cannot_run_natively_says_so(tmp_path: Path) -> None:
    path = write_config(tmp_path, architectures=["LlamaForCausalLM"], **SHAPE)
    with pytest.raises(ValueError, match="needs native kernels: --cpu-kernels torch"):
        Paged(path, 1, 1, load_format="dummy", cpu_kernels="torch", quantization="int8")
