"""Features of a model on two tensor-parallel shards, threads here: the outputs of one worker."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest
from helpers import hf_models, quantised, vision
from helpers.peft_adapters import make_adapter
from helpers.tiny_model import write_config
from sgl_kernel.meeting import Meeting, meeting_bytes
from sgl_kernel.native import AVAILABLE
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, Piece, Row, RowOutput, RowScore, Sample
from sglang.srt.core.ints import ints
from sglang.srt.parallel.groups import Shard, SharedGroup
from sglang.srt.worker.model_loading import plan_of
from sglang.srt.worker.model_worker import ModelWorker

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="the native part is not built")
Prepare = Callable[[ModelWorker], None]
TEXT = [5, 17, 80, 3, 44, 9, 61, 30, 2, 77, 14, 50]


def batches(adapter: int = 0, more: Callable[[], list[Row]] = list) -> list[Batch]:
    """A prompt whose tokens are scored, beside another one; then a step of both."""
    sample = Sample(SamplingParams(temperature=0.0), top=3)
    score = RowScore(0, ints(TEXT[1:]))
    table = [ints(range(20)), ints(range(20, 40))]
    first = [
        Row(1, 0, ints(TEXT), table[0], score=score, sample=sample, adapter=adapter),
        Row(2, 0, ints(TEXT[:5]), table[1], sample=sample),
    ]
    second = [
        Row(1, 12, ints([7]), ints(), kept=20, sample=sample, adapter=adapter),
        Row(2, 5, ints([8]), ints(), kept=20, sample=sample),
    ]
    return [Batch(0, [*first, *more()]), Batch(1, second)]


def computed(worker: ModelWorker, prepare: Prepare, work: list[Batch]) -> list[RowOutput]:
    prepare(worker)
    return [row for batch in work for row in worker.run(batch).rows]


def on_shards(
    config: Config, prepare: Prepare, work: list[Batch], size: int = 2
) -> list[RowOutput]:
    """The outputs of the first of ``size`` shards."""
    memory = mmap(-1, meeting_bytes(size))

    def rank(number: int) -> list[RowOutput]:
        group = SharedGroup(number, size, None, Meeting(memory, number, size))
        return computed(ModelWorker(config, plan_of(config, Shard(group))), prepare, work)

    with ThreadPoolExecutor(size) as threads:
        return next(iter(list(threads.map(rank, range(size)))))


def values(outputs: list[RowOutput]) -> list[float]:
    """All log-probabilities of the outputs."""
    found: list[float] = []
    for row in outputs:
        assert not row.error
        found += [*row.scores, row.logprob, *(value for _, value in row.top), *row.pooled]
    return found


def nothing(worker: ModelWorker) -> None:
    pass


def compare(
    path: str, abs: float = 1e-4, prepare: Prepare = nothing,
    work: list[Batch] | None = None, size: int = 2, **settings: Any,
) -> None:  # fmt: skip
    base = {"device": "cpu", "dtype": "float32", "max_total_tokens": 64, "threads": 1}
    config = Config.of(model_path=path, **{**base, **settings})
    work = work or batches()
    alone = computed(ModelWorker(config), prepare, work)
    shards = on_shards(config, prepare, work, size)
    assert values(shards) == pytest.approx(values(alone), abs=abs)
    if abs <= 1e-3:
        assert [row.token for row in shards] == [row.token for row in alone]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = hf_models.make("LlamaForCausalLM", 5, num_hidden_layers=2)
    return hf_models.save(model, tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("kernels", ["native", "torch"])
def test_adapters(kernels: str, llama: str, tmp_path: Path) -> None:
    adapter = make_adapter(hf_models.make("LlamaForCausalLM", 5, num_hidden_layers=2), tmp_path, 3)

    def load(worker: ModelWorker) -> None:
        worker.load_adapter(1, adapter)

    settings: dict[str, Any] = {"enable_lora": True, "max_lora_rank": 8, "cpu_kernels": kernels}
    compare(llama, prepare=load, work=batches(adapter=1), **settings)


def test_adapters_where_key_heads_are_repeated(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = hf_models.make("LlamaForCausalLM", 6, **shape)
    path = hf_models.save(model, tmp_path / "model")
    adapter = make_adapter(model, tmp_path / "adapter", 3)

    def load(worker: ModelWorker) -> None:
        worker.load_adapter(1, adapter)

    compare(path, prepare=load, work=batches(adapter=1), size=4, enable_lora=True)


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ({"kv_cache_dtype": "int8"}, 1e-4),
        ({"kv_cache_dtype": "fp8"}, 1e-4),
        ({"enable_hierarchical_cache": True}, 1e-4),
        ({"dtype": "bfloat16"}, 0.1),
    ],
)
def test_formats(settings: dict[str, Any], tolerance: float, llama: str) -> None:
    compare(llama, tolerance, **settings)


@pytest.mark.parametrize("quantization", ["int8wo", "int8", "int4"])
def test_rounded_weights_are_as_close_as_of_one_worker(quantization: str, llama: str) -> None:
    """A row's scale is that of the inputs which a shard has, so the rounding differs."""
    base = {"model_path": llama, "device": "cpu", "max_total_tokens": 64, "threads": 1}
    exact = values(computed(ModelWorker(Config.of(**base)), nothing, batches()))
    config = Config.of(**base, quantization=quantization)
    alone = values(computed(ModelWorker(config), nothing, batches()))
    shards = values(on_shards(config, nothing, batches()))
    error, own = (sum(abs(a - b) for a, b in zip(x, exact)) for x in (shards, alone))
    assert 0 < error < 1.5 * own


@pytest.mark.parametrize("name", ["awq", "gptq"])
def test_published_weights_become_floats(name: str, tmp_path: Path) -> None:
    model = hf_models.make("LlamaForCausalLM", 5, hidden_size=64, intermediate_size=128)
    path = hf_models.save(model, tmp_path)
    format = next(f for key, f in quantised.FORMATS.items() if key.startswith(name))
    quantised.convert(tmp_path, model, format)
    compare(path)


def test_pooled_states_and_labels(tmp_path: Path) -> None:
    rows = [Row(1, 0, ints(TEXT), ints(range(20)), pool=0)]
    embeds = write_config(tmp_path / "embeds", architectures=["LlamaModel"])
    compare(embeds, work=[Batch(0, rows)], load_format="dummy")
    three = {str(i): f"label {i}" for i in range(3)}  # labels, which two ranks pad
    labels = write_config(
        tmp_path / "labels", architectures=["LlamaForSequenceClassification"], id2label=three
    )
    compare(labels, work=[Batch(0, rows)], load_format="dummy")


def test_images(tmp_path: Path) -> None:
    """Every shard has the whole vision tower."""
    path = vision.save(vision.make("LlavaForConditionalGeneration"), tmp_path)
    prepared = vision.processor(path).image(vision.picture(30, 20))
    tokens, media = vision.prompt([TEXT[:4], TEXT[4:]], [prepared])
    pieces = [Piece(m, m.start, 0, m.count) for m in media]
    sample = Sample(SamplingParams(temperature=0.0), top=5)
    table = ints(range(len(tokens)))
    row = Row(1, 0, ints(tokens), table, sample=sample, pieces=pieces)
    compare(str(path), work=[Batch(0, [row])])
