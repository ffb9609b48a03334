"""The worker in the precision of serving, against the same weights in float64 on the CPU."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import gpu_device
from helpers.gpu_device import BACKENDS, EVERY_CASE, ON_GPU, worker_settings
from helpers.paged import Paged, Sequence
from helpers.tiny_model import write_config
from sglang.ir.sampling import SamplingParams
from sglang.srt.attention.attention_protocol import Layout
from sglang.srt.attention.native_attention import NativeAttention
from sglang.srt.config.sections import LAYER_KERNELS
from sglang.srt.core.batch import RowScore, Sample
from sglang.srt.core.ints import ints
from sglang.srt.layers.torch_writer import ForwardStep, forward
from sglang.srt.layers.weight import Place
from sglang.srt.models.model_spec import read_config
from sglang.srt.models.registry import lookup
from sglang.srt.worker.device_tables import DeviceTables
from sglang.srt.worker.graphs import Again, Graphs
from torch import Tensor

gpu_device.needs_device()

SHAPE: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512,
    "num_hidden_layers": 3 if ON_GPU else 2 if EVERY_CASE else 1,
}  # fmt: skip
GREEDY = Sample(SamplingParams(temperature=0.0))
# Lengths of texts, and of the chunks they are computed in. The interpreter is slow.
TEXTS, CHUNKS = ((70, 33, 5), (70, 16, 1)) if ON_GPU else ((9, 4), (9, 3))


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    gpu_device.needs(request.param)
    if not ON_GPU and request.param == "flashinfer":
        pytest.skip("on a CPU test/cpu/srt/worker/test_graphs.py takes the stand-in")
    return str(request.param)


@torch.no_grad()
def truth(paged: Paged, path: str, tokens: list[int]) -> Tensor:
    """Logits [len(tokens), vocab] of the worker's own weights, in float64 on the CPU."""
    model = paged.worker.model
    architecture = read_config(Path(path))[1]
    place = Place(torch.device("cpu"), torch.float64)
    exact: Any = lookup(architecture)(model.spec, place, 512)
    for name, slot in exact.slots().items():
        slot.target.copy_(model.slots()[name].target)
    n, spec = len(tokens), model.spec
    shape = (n + 1, spec.num_kv_heads, spec.head_dim)
    pools = [torch.zeros(shape, dtype=torch.float64) for _ in range(2 * spec.num_layers)]
    attention = NativeAttention(pools[: len(pools) // 2], pools[len(pools) // 2 :], 1, spec.windows)
    positions, ends = np.arange(n, dtype=np.int32), np.array([0, n], dtype=np.int32)
    attention.plan(Layout(ends[:1], ends[1:], ends, positions, positions))
    step = ForwardStep(torch.from_numpy(positions), attention)
    return exact.logits(forward(exact, torch.tensor(tokens), step))


@pytest.mark.parametrize("page_size", [1, 16] if ON_GPU else [4])
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("MistralForCausalLM", {"sliding_window": 24 if ON_GPU else 5}),
        ("LlamaForCausalLM", {}),
        ("Qwen3ForCausalLM", {"tie_word_embeddings": True}),
    ][: 3 if EVERY_CASE else 1],
)
def test_logits(
    architecture: str, settings: dict[str, Any], page_size: int, backend: str, tmp_path: Path
) -> None:
    """Whole, in chunks and token by token: off by no more than the dtype makes it. Decode passes
    of a GPU are replayed graphs where the backend can be captured."""
    path = write_config(tmp_path, architectures=[architecture], **SHAPE, **settings)
    r = random.Random(1)
    texts = [[r.randrange(512) for _ in range(n)] for n in TEXTS]
    paged = Paged(path, page_size, 1, **worker_settings(backend), cuda_graph_max_bs=4)
    wanted = [truth(paged, path, text) for text in texts]
    most, mean = (0.12, 0.02) if ON_GPU else (1e-3, 1e-4)
    for longest in CHUNKS:
        sequences = [Sequence(text) for text in texts]
        while left := [s for s in sequences if s.done < len(s.tokens)]:
            paged.advance([(s, min(longest, len(s.tokens) - s.done)) for s in left])
        for sequence, want in zip(sequences, wanted):
            error = (sequence.result.double().cpu() - want).abs()
            assert error.max() < most * want.std()
            assert error.mean() < mean * want.std()


def test_outputs_and_following_rows(backend: str, tmp_path: Path) -> None:
    """Greedy text, sampled ahead on the device, equals the text sampled step by step."""
    path = write_config(tmp_path, **SHAPE)
    options = worker_settings(backend)
    if backend != "flashinfer":  # FlashInfer's kernels need 16-bit dtypes
        options["dtype"] = "float32"
    steps, prompt = 12 if ON_GPU else 3, [5, 6, 7]
    want = Paged(path, 1, 0, **options).greedy([prompt], steps)[0]
    paged = Paged(path, 1, 0, **options)
    sequence, got = Sequence(list(prompt)), []
    row = paged.row(sequence, 3, sample=GREEDY, score=RowScore(0, ints([6, 7]), top=2))
    for step in range(steps):
        output = paged.run([row]).rows[0]
        assert len(output.scores) == (2 if step == 0 else 0)
        got.append(output.token)
        sequence.tokens.append(0)
        row = paged.row(sequence, 1, sample=GREEDY)
        row.follows = 0
    assert got == want


@pytest.mark.skipif(
    not ON_GPU, reason="needs a CUDA device: test/cpu/srt/worker/test_graphs.py has a fake"
)
@pytest.mark.parametrize("name", ["triton", "flashinfer"])
def test_graphs_give_the_text_of_eager_passes(name: str, tmp_path: Path) -> None:
    """Rows come and go; each decode pass is padded to a bucket of its own."""
    gpu_device.needs(name)
    path = write_config(tmp_path, **SHAPE)
    texts = []
    for settings in ({"disable_cuda_graph": True}, {"cuda_graph_max_bs": 6}):
        paged = Paged(path, 1, 0, **{**worker_settings(name), **settings})
        r, running, done = random.Random(5), [], []
        for step in range(40):
            if step < 30 and r.random() < 0.4:
                running.append(Sequence([r.randrange(512) for _ in range(r.randint(1, 30))]))
            if not running:
                continue
            rows = [paged.row(s, len(s.tokens) - s.done, sample=GREEDY) for s in running]
            for sequence, output in zip(running, paged.run(rows).rows):
                assert not output.error
                sequence.tokens.append(output.token)
            done += [s for s in running if len(s.tokens) > 40]
            running = [s for s in running if len(s.tokens) <= 40]
        texts.append([s.tokens for s in done + running])
    same = sum(a == b for a, b in zip(*texts))
    # In bfloat16 two nearly equal tokens may swap if a product is computed for another number of
    # rows; a wrong row of a table shows in every text.
    assert same >= 0.8 * len(texts[0])


def test_replays_read_tables_that_stay_on_the_device(tmp_path: Path) -> None:
    """Work done again in place of graphs: rows come, go and move, and texts are those of eager
    passes."""
    gpu_device.needs("triton")
    path = write_config(tmp_path, **SHAPE)
    texts, kept = [], None
    for replayed in (False, True):
        # On a CPU torch's attention computes the eager passes: the interpreter is slow.
        options = worker_settings("triton" if replayed or ON_GPU else "native")
        options |= {"dtype": "float32", "disable_cuda_graph": True}
        paged = Paged(path, 1, 0, **options)
        runner = paged.worker.runner
        eager: Any = runner.forward
        if replayed:
            runner.forward = Graphs(
                paged.worker.model, eager.attention, Again(), runner.pool, 3, 128
            )
            kept = runner.forward.resident
        r, sent = random.Random(5), dict[int, int]()
        running, done = list[Sequence](), list[Sequence]()
        for step in range(24 if ON_GPU else 6):
            if step in (0, 2, 5):
                running.append(Sequence([r.randrange(512) for _ in range(r.randint(1, 9))]))
            rows = [paged.row(s, len(s.tokens) - s.done, sample=GREEDY) for s in running]
            for row, sequence in zip(rows, running):  # new entries alone
                row.context, row.kept = id(sequence), sent.get(id(sequence), 0)
                row.pages = row.pages[row.kept :]
                sent[id(sequence)] = len(sequence.pages)
            for sequence, output in zip(running, paged.run(rows).rows):
                assert not output.error
                sequence.tokens.append(output.token)
            if step == 3:
                done.append(running.pop(0))
        texts.append([s.tokens for s in done + running])
    assert texts[0] == texts[1]
    assert isinstance(kept, DeviceTables)
    assert kept._segments


def test_the_engine_s_text_is_the_same_however_it_is_computed() -> None:
    """End to end in float32: plain torch, eager kernels and, on a GPU, replayed ones."""
    from sglang import Engine

    gpu_device.needs("triton")
    ways: list[dict[str, Any]] = [
        {"attention_backend": "native", "disable_fused_kernels": LAYER_KERNELS},
        {"attention_backend": "triton", "disable_cuda_graph": True},
    ]
    ways += [{"attention_backend": "triton"}] if ON_GPU else []
    prompts = ["The", "A small dog and a cat", "Once upon a time"]
    prompts = prompts * 3 if ON_GPU else prompts[: 3 if EVERY_CASE else 2]
    options = {"temperature": 0, "max_new_tokens": 24 if ON_GPU else 3 if EVERY_CASE else 2}
    texts = []
    for way in ways:
        settings = {**worker_settings("native"), **way, "load_format": "auto", "dtype": "float32"}
        engine = Engine(**settings)
        try:
            texts.append([out["text"] for out in engine.generate(prompts, options)])
        finally:
            engine.shutdown()
    assert texts.count(texts[0]) == len(ways)
