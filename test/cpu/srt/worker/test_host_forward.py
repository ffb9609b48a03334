"""Passes without torch: the same tokens and, but for the last bits of log-probabilities, the same
numbers as the same kernels among torch's tensors."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import hf_models
from helpers.paged import Paged, Sequence
from helpers.parity import Case, all_cases
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import WHOLE, RowOutput, RowScore, Sample
from sglang.srt.core.ints import ints
from sglang.srt.logits import sampler
from sglang.srt.logits.drawing import mask_bytes
from sglang.srt.logits.host_results import HostResults
from sglang.srt.logits.host_sampler import adjust
from sglang.srt.logits.results import Wanted
from sglang.srt.logits.torch_results import TorchResults
from sglang.srt.worker.host_forward import HostForward
from sglang.srt.worker.model_loading import ModelPlan
from sglang.srt.worker.native_forward import Native

FIRST = {case.architecture: case for case in all_cases() if isinstance(case, Case)}
STORAGES = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
}
NEAR = 1.1e-5  # natural logarithms
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.9, top_p=0.8, top_k=20),
    SamplingParams(temperature=0.7, frequency_penalty=0.4, presence_penalty=0.3),
    SamplingParams(temperature=1.2, repetition_penalty=1.3, logit_bias={5: 2.0, 9: -100.0}),
)  # fmt: skip


def worker(directory: Path, monkeypatch: pytest.MonkeyPatch, host: bool, **options: Any) -> Paged:
    if not host:
        monkeypatch.setattr(ModelPlan, "on_host", property(lambda plan: False))
    paged = Paged(str(directory), 4, 1, cpu_kernels="native", **options)
    monkeypatch.undo()
    assert type(paged.worker.runner.forward) is (HostForward if host else Native)
    return paged


def run(paged: Paged, vocab: int) -> list[RowOutput]:
    """Outputs of four texts in parallel, sampled in four ways, read and scored."""
    r, found = random.Random(3), []
    texts = [Sequence([r.randrange(vocab) for _ in range(length)]) for length in (9, 1, 14, 5)]
    prompts = [ints(text.tokens) for text in texts]
    for step in range(8):
        rows = []
        for text, params, prompt in zip(texts, PARAMS, prompts):
            history = ints(text.tokens[len(prompt) :]) if params.penalised else ints()
            sample = Sample(params, r.random(), history, prompt, top=3, forbidden=(step,))
            more: dict[str, Any] = {"probe": (1, 7), "packed": 4}
            if step == 0 and len(text.tokens) > 2:
                more["score"] = RowScore(0, ints(text.tokens[1:]), top=2, probe=(4,))
            count = len(text.tokens) - text.done
            rows.append(paged.row(text, count, sample=sample, pool=0, **more))
        outputs = paged.run(rows).rows
        for text, output in zip(texts, outputs):
            text.tokens.append(output.token)
        found += outputs
    return found


def numbers(output: RowOutput) -> list[float]:
    assert output.logprob is not None
    pairs = [*output.top, *(pair for top in output.score_tops for pair in top)]
    probes = [value for probe in output.score_probes for value in probe]
    packed = np.frombuffer(output.logprobs, np.float32).tolist()
    read = [value for _, value in pairs]
    return [output.logprob, *read, *output.probe, *output.scores, *probes, *packed]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("architecture", sorted(FIRST))
def test_a_family_has_the_same_tokens(
    architecture: str, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = hf_models.config(architecture, **FIRST[architecture].settings)
    config.architectures = [architecture]
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    options: dict[str, Any] = {"load_format": "dummy", **STORAGES[storage]}
    plain = Paged(str(tmp_path), 4, 1, cpu_kernels="native", **options)
    if type(plain.worker.runner.forward) is not HostForward:
        pytest.skip("no tape holds the model")
    if plain.worker.info["purpose"] != "generate":
        pytest.skip("it generates nothing")
    both = [worker(tmp_path, monkeypatch, host, **options) for host in (True, False)]
    vocab = plain.worker.info["vocab_size"]
    ours, theirs = (run(paged, vocab) for paged in both)
    assert [output.token for output in ours] == [output.token for output in theirs]
    for one, other in zip(ours, theirs):
        assert (one.error, one.ids) == (other.error, other.ids)
        assert [i for i, _ in one.top] == [i for i, _ in other.top]
        assert np.allclose(numbers(one), numbers(other), rtol=0, atol=NEAR)
        assert np.allclose(one.pooled, other.pooled, rtol=1e-12, atol=0)


def test_the_logits_have_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hf_models.save(hf_models.make("LlamaForCausalLM"), tmp_path / "m")
    for options in STORAGES.values():
        seen = []
        for host in (True, False):
            paged = worker(Path(path), monkeypatch, host, **options)
            sequence = Sequence(list(range(20)))
            paged.advance([(sequence, 20)])
            seen.append(sequence.result)
        assert torch.equal(*seen)


def wide(seed: int, rows: int = 4, vocab: int = 700) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(0, 6, (rows, vocab)).astype(np.float32)


@pytest.mark.parametrize("seed", range(4))
def test_adjusted_logits_are_those_of_torch(seed: int) -> None:
    r, logits = random.Random(seed), wide(seed)
    samples = [
        Sample(
            params,
            history=ints(r.choices(range(700), k=30)), prompt=ints(r.choices(range(700), k=30)),
            forbidden=tuple(r.sample(range(700), 3)),
        )
        for params in PARAMS
    ]  # fmt: skip
    wanted = sampler.adjust(torch.from_numpy(logits), samples).numpy()
    assert np.allclose(adjust(logits, samples), wanted, rtol=2e-7, atol=2e-6)
    plain = [Sample(PARAMS[0])] * 4
    assert adjust(logits, plain) is logits


def test_what_is_read_is_what_torch_reads() -> None:
    logits = wide(7)
    logits[0, :20] = logits[0].max() + 1  # equals
    logits[2] = -math.inf
    logits[3, 5] = math.nan
    wanted = Wanted([25, 0], [(1, 2), (5,)], [3, WHOLE])
    host = HostResults(2).read(logits[:2], [3, 4], wanted)
    torchs = TorchResults(torch.device("cpu")).read(torch.from_numpy(logits[:2]), [3, 4], wanted)
    assert np.allclose(host.chosen, torchs.chosen, rtol=0, atol=NEAR)
    assert [i for i, _ in host.tops[0][:20]] == list(range(20)), "the lowest id of equals is first"
    assert sorted(i for i, _ in host.tops[0]) == sorted(i for i, _ in torchs.tops[0])
    assert host.tops[1] == torchs.tops[1] == []
    assert [len(row) for row in host.probes] == [2, 1]
    for ours, theirs in zip(host.probes, torchs.probes):
        assert np.allclose(ours, theirs, rtol=0, atol=NEAR)
    whole = np.frombuffer(host.packed[1][1], np.float32)
    assert np.allclose(whole, np.frombuffer(torchs.packed[1][1], np.float32), rtol=0, atol=NEAR)
    broken = HostResults().read(logits[2:], [0, 0], Wanted([0, 0], [(), ()]))
    assert np.isnan(broken.chosen).all(), "what is not finite shows"


def test_narrowed_logits_keep_what_a_mask_allows() -> None:
    bits = np.zeros(mask_bytes(700), np.uint8)
    bits[[0, 87]] = 8  # ids 3 and 699
    logits, words = wide(1), bits.tobytes()
    masked = Sample(PARAMS[0], mask=words, masked=True)
    samples = [None, masked, Sample(PARAMS[0], mask=words), Sample(PARAMS[0])]
    wanted = TorchResults(torch.device("cpu")).narrowed(torch.from_numpy(logits.copy()), samples)
    found = HostResults().narrowed(logits, samples)
    assert np.array_equal(found, wanted.numpy())
    assert np.isfinite(found[1]).sum() == 2


@pytest.mark.parametrize("scored", [True, False])
def test_pooled_states_are_those_of_torch(scored: bool) -> None:
    states, spans = wide(2, 9, 16), [(0, 3, False), (3, 4, True), (4, 9, False), (4, 9, True)]
    labels = wide(3, 16, 5)

    def score(x: Any) -> Any:
        return x @ (labels if isinstance(x, np.ndarray) else torch.from_numpy(labels))

    made: Callable[[Any], Any] | None = score if scored else None
    ours = HostResults().pooled(states, spans, made)
    theirs = TorchResults(torch.device("cpu")).pooled(torch.from_numpy(states), spans, made)
    assert ours.values.shape == (8, 5 if scored else 16)
    assert np.allclose(ours.values, theirs.values, rtol=1e-6, atol=1e-5)
    assert ours.finite.tolist() == theirs.finite.tolist() == [True] * 8
