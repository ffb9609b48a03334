"""Launches of a decode layer and copies of a replayed step, counted without a GPU."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.paged import Paged
from helpers.paged import Sequence as Text
from helpers.tiny_model import write_config
from sglang.ir.sampling import SamplingParams
from sglang.srt.attention.backend_choice import build
from sglang.srt.config.sections import LAYER_KERNELS
from sglang.srt.core.batch import Batch, Sample
from sglang.srt.parallel.staging import Readback
from sglang.srt.worker.forward import Eager
from sglang.srt.worker.graphs import Graphs
from torch import Tensor

if find_spec("triton") is None:
    pytest.skip("needs triton, which has no build for this system", allow_module_level=True)

from helpers import fake_flashinfer
from helpers.launches import KERNELS, Launches, counted, uncounted
from sgl_kernel.triton import sampling_kernels
from sglang.srt.attention import flashinfer_attention
from sglang.srt.logits import gpu_draw

CPU = torch.device("cpu")
LLAMA = {"linear": 4, "rotate_append": 1, "attend": 1, "merge": 1, "norm": 2, "gate": 1}
EAGER = {
    "linear": 4, "mul": 1, "roll": 1, "addcmul_": 1, "append": 1, "attend": 1, "merge": 1,
    "rms_norm": 2, "add": 2, "silu": 1, "mul_": 1,
}  # fmt: skip
PLAIN = {"linear": 4, "attend": 1, "merge": 1, "layer_norm": 2, "add": 2, "gelu": 1}
GREEDY = Sample(SamplingParams(temperature=0.0))


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused kernels are chosen as they are on a GPU; ``counted`` launches none of them."""
    assert KERNELS, "compiled before the environment changes"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer)
    monkeypatch.setattr(flashinfer_attention, "SCHEDULE", 1 << 10)


def worker(directory: Path, layers: int = 2, disabled: Sequence[str] = (), **shape: Any) -> Paged:
    path = write_config(directory, head_dim=16, num_hidden_layers=layers, **shape)
    return Paged(
        path, 1, 0, load_format="dummy", cpu_kernels="torch", dtype="bfloat16",
        attention_backend="triton", disable_fused_kernels=tuple(disabled), max_total_tokens=2048,
    )  # fmt: skip


def decoded(paged: Paged, found: Launches) -> Counter[str]:
    """The launches of a pass over two rows of 900 tokens."""
    texts = [Text([5] * 900), Text([6] * 900)]
    rows = [(paged.row(text, 899), paged.row(text, 1))[1] for text in texts]
    with torch.inference_mode():
        paged.worker.model.rotary.table  # type: ignore[attr-defined]  # noqa: B018  made once, before the first pass
        found.clear()
        paged.logits(rows)
    return found.count()


def of_a_layer(directory: Path, prepare: Callable[..., None], **shape: Any) -> dict[str, int]:
    """A third layer's launches in a decode pass: those of three less those of two."""
    counts = []
    for layers in (2, 3):
        paged = worker(directory / str(layers), layers, **shape)
        with counted() as found:
            prepare(paged, found)
            counts.append(decoded(paged, found))
    more = counts[1] - counts[0]
    assert counts[0] == counts[1] - more
    return dict(more)


def triton(paged: Paged, found: Launches) -> None:
    """Triton's attention, with the multiprocessors of an H100: rows are read in parts."""
    attention: Any = paged.worker.runner.forward
    attention.attention.processors = 132


def flashinfer(paged: Paged, found: Launches) -> None:
    """Attention by FlashInfer's stand-in: ``run`` is one launch, or two where rows are split."""
    pool = paged.worker.runner.pool
    attention: Any = build("flashinfer", pool.keys, pool.values, 1, paged.worker.model.spec)
    wrapper = attention.library.BatchDecodeWithPagedKVCacheWrapper
    kind = type("Decode", (wrapper,), {})
    for name in ("run", "plan"):
        setattr(kind, name, uncounted(found, f"flashinfer {name}", getattr(wrapper, name)))
    attention.library = type("Library", (), {"BatchDecodeWithPagedKVCacheWrapper": kind})
    attention.shares = False
    paged.worker.runner.forward = Eager(paged.worker.model, attention)


@pytest.mark.parametrize(
    ("architecture", "shape", "want", "total"),
    [
        ("LlamaForCausalLM", {}, LLAMA, 10),
        ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}, LLAMA, 10),
        ("Qwen3ForCausalLM", {"attention_bias": True}, LLAMA, 10),
        ("Phi3ForCausalLM", {"partial_rotary_factor": 0.5, "pad_token_id": 0}, LLAMA, 10),
        ("Gemma3ForCausalLM", {}, LLAMA, 10),
        # LayerNorm, plain sums and plain activations are torch's.
        ("GPTNeoXForCausalLM", {"num_key_value_heads": 4}, {**PLAIN, "rotate_append": 1}, 12),
        ("GPT2LMHeadModel", {"num_key_value_heads": 4}, {**PLAIN, "append": 1}, 12),
    ],
)
def test_launches_of_a_decode_layer(
    architecture: str, shape: dict[str, Any], want: dict[str, int], total: int, tmp_path: Path
) -> None:
    found = of_a_layer(tmp_path, triton, architectures=[architecture], **shape)
    assert found == want
    assert sum(found.values()) == total


def test_launches_without_fused_kernels(tmp_path: Path) -> None:
    found = of_a_layer(tmp_path, triton, disabled=LAYER_KERNELS)
    assert found == EAGER
    assert sum(found.values()) == 16
    gemma = {"architectures": ["Gemma3ForCausalLM"], "disabled": LAYER_KERNELS}
    # Each of its six norms is three: to float32 and back.
    assert sum(of_a_layer(tmp_path / "gemma", triton, **gemma).values()) == 35


@pytest.mark.parametrize(("name", "more"), [("rotate_append", 3), ("add_rms_norm", 2), ("gate", 1)])
def test_each_kernel_saves_launches(name: str, more: int, tmp_path: Path) -> None:
    found = of_a_layer(tmp_path, triton, disabled=[name])
    assert sum(found.values()) == 10 + more


def test_flashinfer_reads_what_the_fused_kernel_has_written(tmp_path: Path) -> None:
    want = Counter(LLAMA) - Counter(["attend", "merge"]) + Counter(["flashinfer run"])
    assert of_a_layer(tmp_path, flashinfer) == dict(want)
    eager = of_a_layer(tmp_path / "eager", flashinfer, disabled=LAYER_KERNELS)
    assert eager["index_copy_"] == 2
    assert sum(eager.values()) == 16, "and the merge of rows that are split"


class Recorder:
    """Graphs whose replay is one launch, and which compute nothing."""

    def __init__(self, found: Launches) -> None:
        self.found = found

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: self.found.names.append("graph")


class Lane:
    """Copies to the host, one for each tensor."""

    def __init__(self, found: Launches) -> None:
        self.found = found

    def copy(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[], None]]:
        self.found.names += ["fetch"] * len(tensors)
        return list(tensors), lambda: None


def step(paged: Paged, found: Launches, sample: Sample) -> Counter[str]:
    """Launches of a replayed step: two rows decode tokens that the step before has sampled."""
    runner, model = paged.worker.runner, paged.worker.model
    pool, attention = runner.pool, runner.forward.attention  # type: ignore[attr-defined]
    graphs = Graphs(model, attention, Recorder(found), pool, 2, 256)
    graphs.eager.draw = gpu_draw.draw  # type: ignore[method-assign]
    results: Any = runner.results
    runner.forward, results.readback = graphs, Readback(Lane(found))
    texts = [Text([5] * 4), Text([6] * 4)]
    for number, count in enumerate((2, 1, 1)):
        rows = [paged.row(text, count, sample=sample) for text in texts]
        for i, row in enumerate(rows):
            row.context, row.follows = i, i if number else -1
        found.clear()
        runner.launch(Batch(number, rows))
    return found.count()


def test_a_replayed_step_is_one_graph_and_nine_copies(tmp_path: Path) -> None:
    with counted() as found:
        got = step(worker(tmp_path), found, GREEDY)
    sampled = {name: got.pop(name) for name in got.keys() & vars(sampling_kernels).keys()}
    assert sampled
    assert got == {
        "graph": 1,
        # Ids, positions and the rows that are followed; new entries of page tables; the plan, into
        # the graph's buffer.
        "send": 3,
        # The tokens that are followed; both inputs, and the entries, into the graph's buffers.
        "index_select": 1, "copy_": 2, "index_copy_": 1,
        # Tokens and their logits to the host.
        "fetch": 2,
    }  # fmt: skip
    assert sum(got.values()) == 1 + 9
