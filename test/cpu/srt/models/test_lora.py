"""Adapters equal their merged models, row by row; their bits do not depend on the batch; files that
are no adapters of the model are refused."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import hf_models
from helpers.hf_models import make, save
from helpers.paged import Paged, Sequence
from helpers.peft_adapters import LLAMA, make_adapter, merged
from safetensors.torch import load_file, save_file
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import Batch, Row, RowOutput, Sample
from sglang.srt.models.peft import _site

GREEDY = Sample(SamplingParams(temperature=0.0))
# Architecture, what is adapted, settings of the adapter, settings of the worker.
CASES: list[tuple[str, tuple[str, ...], dict[str, Any], dict[str, Any]]] = [
    ("LlamaForCausalLM", LLAMA, {"rank": 5, "dtype": torch.bfloat16}, {}),
    ("LlamaForCausalLM", LLAMA, {"use_rslora": True}, {"cpu_kernels": "torch"}),
    ("Qwen2ForCausalLM", ("q_proj", "v_proj", "down_proj"), {
        "rank_pattern": {"layers.1.self_attn.q_proj": 9, "v_proj": 2},
        "alpha_pattern": {"^model.layers.0.mlp.down_proj": 1.5}}, {}),
    ("Qwen3ForCausalLM", ("gate_proj", "k_proj"), {"target_modules": ".*(gate|k)_proj"}, {}),
]  # fmt: skip


def greedy(paged: Paged, rows: list[tuple[list[int], int]], count: int) -> list[list[int]]:
    """``count`` tokens after each prompt, by its adapter, all in one batch."""
    sequences = [Sequence(list(prompt)) for prompt, _ in rows]
    for _ in range(count):
        batch = [
            paged.row(s, len(s.tokens) - s.done, sample=GREEDY, adapter=adapter)
            for s, (_, adapter) in zip(sequences, rows)
        ]
        for sequence, output in zip(sequences, paged.run(batch).rows):
            assert not output.error
            sequence.tokens.append(output.token)
    return [s.tokens[len(prompt) :] for s, (prompt, _) in zip(sequences, rows)]


def states(paged: Paged, rows: list[Row]) -> list[torch.Tensor]:
    """Sums of the final hidden states, float64, of all tokens of each row."""
    for row in rows:
        row.pool = 0
    paged.batches += 1
    outputs = paged.worker.run(Batch(paged.batches, rows)).rows
    return [torch.tensor(out.pooled) for out in outputs]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_rows_equal_their_merged_models(number: int, tmp_path: Path) -> None:
    architecture, targets, config, settings = CASES[number]
    model = make(architecture, seed=number, max_position_embeddings=128)
    paged = Paged(save(model, tmp_path / "model"), 4, number, enable_lora=True, **settings)
    paths = [
        make_adapter(model, tmp_path / f"a{i}", i, targets=targets, **config) for i in range(2)
    ]
    for i, path in enumerate(paths, 1):
        facts = paged.worker.load_adapter(i, path)
        assert facts["modules"] == sorted(targets)
    models = [model, *(merged(model, path) for path in paths)]
    r = random.Random(number)
    rows = [([r.randrange(97) for _ in range(n)], n % 3) for n in (9, 4, 2, 1, 30)]
    got = greedy(paged, rows, 12)
    for (prompt, adapter), tokens in zip(rows, got):
        ids = torch.tensor([prompt])
        wanted = models[adapter].generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
        )
        assert tokens == wanted[0, len(prompt) :].tolist()
    texts = [greedy(paged, [(rows[0][0], adapter)], 12)[0] for adapter in range(3)]
    assert len(set(map(tuple, texts))) == 3, "adapters that change nothing tell nothing"


@pytest.mark.parametrize(
    ("architecture", "targets"),
    [("GPT2LMHeadModel", ("c_attn", "c_proj", "c_fc")),
     ("Phi3ForCausalLM", ("qkv_proj", "o_proj", "gate_up_proj"))],
)  # fmt: skip
def test_fused_and_transposed_modules(
    architecture: str, targets: tuple[str, ...], tmp_path: Path
) -> None:
    """Both have one matrix for q, k and v; GPT-2 has all of them as [inputs, outputs]."""
    model = make(architecture)
    path = make_adapter(model, tmp_path / "a", 1, targets=targets)
    paged = Paged(save(model, tmp_path / "model"), 1, 0, enable_lora=True)
    paged.worker.load_adapter(1, path)
    prompt = list(range(5, 20))
    ids, wanted = torch.tensor([prompt]), []
    for one in (model, merged(model, path)):
        out = one.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12,
                           do_sample=False)  # fmt: skip
        wanted.append(out[0, len(prompt) :].tolist())
    assert wanted[0] != wanted[1]
    assert greedy(paged, [(prompt, 0), (prompt, 1)], 12) == wanted


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_a_pass_has_the_adapters_that_it_is_given(kernels: str, tmp_path: Path) -> None:
    """Inputs of two passes are made before either is computed, and each has its own adapters."""
    model = make("LlamaForCausalLM", num_hidden_layers=1)
    paged = Paged(save(model, tmp_path / "m"), 1, 0, enable_lora=True, cpu_kernels=kernels)
    paged.worker.load_adapter(1, make_adapter(model, tmp_path / "a", 1))
    runner = paged.worker.runner
    batches = [
        Batch(i, [paged.row(Sequence([3, 1, 4, 1, 5]), 5, adapter=adapter)])
        for i, adapter in enumerate((1, 0))
    ]
    made = [
        runner.adapters.applied(batch, runner.reader.read(batch), [RowOutput()])
        for batch in batches
    ]
    wanted = np.arange(5, dtype=np.int32)
    with torch.inference_mode():
        first, again = (
            [torch.as_tensor(runner.forward.hidden(inputs, wanted)).clone() for inputs in order]
            for order in (made, made[::-1])
        )
    assert not torch.equal(first[0], first[1])
    assert torch.equal(first[0], again[1])
    assert torch.equal(first[1], again[0])


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_the_bits_of_a_row_do_not_depend_on_its_batch(quantization: str, tmp_path: Path) -> None:
    model = make("LlamaForCausalLM", num_hidden_layers=1)
    paged = Paged(save(model, tmp_path / "m"), 1, 0, enable_lora=True, quantization=quantization)
    for i in range(1, 4):
        path = make_adapter(model, tmp_path / f"a{i}", i, rank=(1, 8, 11)[i - 1])
        paged.worker.load_adapter(i, path)
    r = random.Random(1)
    shapes = ((7, 1), (1, 2), (12, 0), (3, 3), (5, 1), (1, 0))
    rows = [([r.randrange(97) for _ in range(length)], adapter) for length, adapter in shapes]

    def row(prompt: list[int], adapter: int) -> Row:
        return paged.row(Sequence(prompt), len(prompt), adapter=adapter)

    together = states(paged, [row(*each) for each in rows])
    for each, wanted in zip(rows, together):
        assert torch.equal(states(paged, [row(*each)])[0], wanted)
    plain = Paged(save(model, tmp_path / "m"), 1, 0, quantization=quantization)
    base = states(plain, [row(rows[2][0], 0)])[0]
    assert torch.equal(base, together[2]), "adapters change rows that have none"


def test_a_hundred_adapters(tmp_path: Path) -> None:
    """Mixed batches of a hundred adapters: every row has its merged model's logits' choice, and
    memory is what the files say."""
    model = make("LlamaForCausalLM", num_hidden_layers=1, hidden_size=16, intermediate_size=24,
                 num_attention_heads=2, num_key_value_heads=1)  # fmt: skip
    paged = Paged(save(model, tmp_path / "m"), 1, 0, enable_lora=True, max_total_tokens=4096)
    paths = [
        make_adapter(model, tmp_path / f"a{i}", i, rank=1 + i % 4, targets=LLAMA[i % 3 :])
        for i in range(100)
    ]
    size = 0
    for i, path in enumerate(paths, 1):
        size += paged.worker.load_adapter(i, path)["bytes"]
    files = sum(t.nbytes for path in paths for t in load_file(f"{path}/{FILE}").values())
    assert paged.worker.adapters is not None
    assert paged.worker.adapters.bytes == size == files
    r = random.Random(3)
    rows = [([r.randrange(97) for _ in range(r.randint(1, 8))], i) for i in range(101)]
    r.shuffle(rows)
    got = greedy(paged, rows, 6)
    models = {i: merged(model, path) for i, path in enumerate(paths, 1)} | {0: model}
    for (prompt, adapter), tokens in zip(rows, got):
        text = list(prompt)
        for token in tokens:
            logits = hf_models.logits(models[adapter], text)[-1]
            assert logits[token] > logits.max() - 1e-4
            text.append(token)
    for i in range(1, 101):
        paged.worker.unload_adapter(i)
    assert paged.worker.adapters.bytes == 0
    lost = paged.run([paged.row(Sequence([1, 2]), 2, sample=GREEDY, adapter=7)]).rows[0]
    assert lost.error == "adapter 7 is not loaded"


CONFIG, FILE = "adapter_config.json", "adapter_model.safetensors"
A = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
BAD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, {}, "peft_type is 'IA3'; only LORA"),
    ({"use_dora": True}, {}, "use_dora is True; it is not supported"),
    ({"modules_to_save": ["lm_head"]}, {}, "modules_to_save"),
    ({"bias": "all"}, {}, "bias is 'all'; only none"),
    ({"init_lora_weights": "pissa"}, {}, "init_lora_weights is 'pissa'"),
    ({"r": 65}, {}, "has shape"),
    ({"r": "4"}, {}, "r is '4'"),
    ({"rank_pattern": {"(a+)+$": 4}}, {}, "is no name of a module"),
    ({"lora_alpha": float("nan")}, {}, "lora_alpha is nan"),
    ({"target_modules": ["v_proj"]}, {}, "target_modules is ['v_proj']; the file has weights of"),
    ({}, {A: torch.zeros(4, 31)}, "has shape [4, 31]; rank 4 and the model ask for [4, 32]"),
    ({}, {A: None}, "has only half of its two matrices"),
    ({}, {A: torch.full((4, 32), float("inf"))}, "values that are not finite"),
    ({}, {A: torch.zeros(4, 32, dtype=torch.int32)}, "has dtype I32"),
    ({}, {"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 32)}, "output head, which"),
    ({}, {A.replace("q_proj", "x_proj"): torch.zeros(4, 32)}, "is no part of an adapter of this"),
    ({}, {A.replace("lora_A.weight", "lora_magnitude_vector"): torch.zeros(32)}, "is no part of"),
]  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Paged]:
    model = make("LlamaForCausalLM", num_hidden_layers=1)
    path = save(model, tmp_path_factory.mktemp("lora") / "m")
    return model, Paged(path, 1, 0, enable_lora=True, max_lora_rank=8)


@pytest.mark.parametrize("number", range(len(BAD)))
def test_a_bad_adapter_is_refused(number: int, small: tuple[Any, Paged], tmp_path: Path) -> None:
    model, paged = small
    config, tensors, complaint = BAD[number]
    path = Path(make_adapter(model, tmp_path / "a", 0))
    (path / CONFIG).write_text(json.dumps({**json.loads((path / CONFIG).read_text()), **config}))
    found = {**load_file(path / FILE), **tensors}
    save_file({k: v for k, v in found.items() if v is not None}, path / FILE)
    with pytest.raises(ValueError, match=re.escape(complaint)):
        paged.worker.load_adapter(1, str(path))
    assert paged.worker.adapters is not None
    assert paged.worker.adapters.bytes == 0


def test_limits_are_named(small: tuple[Any, Paged], tmp_path: Path) -> None:
    model, paged = small
    path = make_adapter(model, tmp_path / "a", 0, rank=9)
    with pytest.raises(ValueError, match=r"rank 9; the limit is 8 \(--max-lora-rank\)"):
        paged.worker.load_adapter(1, path)
    with pytest.raises(ValueError, match=r"has no adapter_config\.json"):
        paged.worker.load_adapter(1, str(tmp_path))
    data = (tmp_path / "a" / FILE).read_bytes()
    (tmp_path / "a" / FILE).write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="data_offsets"):
        paged.worker.load_adapter(1, path)


def test_modules_of_a_text_model_that_sees() -> None:
    """A text model has had several names. Layers of its vision tower end in the same names and are
    not among its modules."""
    sites: dict[str, Any] = {"model.layers.0.self_attn.q_proj": None}
    for name in ("model.language_model.layers", "language_model.model.layers", "model.layers"):
        found = _site(f"{name}.0.self_attn.q_proj", sites)
        assert found == "model.layers.0.self_attn.q_proj"
    assert _site("model.vision_tower.encoder.layers.0.self_attn.q_proj", sites) is None
    assert _site("model.language_model.layers.1.self_attn.q_proj", sites) is None
