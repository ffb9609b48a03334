"""The worker's outputs: sampled tokens, log-probabilities, scores, probes, errors, and refusals."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import hf_models
from helpers.hf_models import make, save
from helpers.paged import Paged, Sequence
from helpers.tiny_model import write_config
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, Row, RowScore, Sample
from sglang.srt.core.ints import ints
from sglang.srt.core.workers import Mask
from sglang.srt.engine.info import EngineInfo
from sglang.srt.logits.drawing import NOT_FINITE
from sglang.srt.worker import runner as runner_module
from sglang.srt.worker.model_worker import ModelWorker

GREEDY = SamplingParams(temperature=0.0)
VOCAB = 97


@pytest.fixture(scope="module")
def model():
    return make("LlamaForCausalLM", seed=2)


@pytest.fixture(scope="module")
def path(model, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(model, tmp_path_factory.mktemp("model"))


def text(seed: int, length: int) -> list[int]:
    r = random.Random(seed)
    return [r.randrange(VOCAB) for _ in range(length)]


@pytest.mark.parametrize("limit", [1 << 24, 3 * VOCAB], ids=["at once", "three at a time"])
def test_every_output_is_the_model_s_own(
    limit: int, model, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampled tokens, tops, probes and scores of rows of all kinds in one batch, against
    transformers."""
    monkeypatch.setattr(runner_module, "LOGITS", limit)
    paged = Paged(path, 2, 0)
    texts = [text(seed, length) for seed, length in ((1, 9), (2, 5), (3, 12), (4, 1), (5, 7))]
    biased = SamplingParams(temperature=0.0, logit_bias={11: 100.0}, repetition_penalty=1.5)
    targets = ints([*texts[2][3:], 7])
    wanted: list[dict[str, Any]] = [
        {"sample": Sample(GREEDY, top=2)},
        {"sample": Sample(biased, prompt=ints(texts[1]), top=0), "probe": (5, 0, 5)},
        {"score": RowScore(2, targets, top=3, probe=(1, 2))},
        {"tip_top": 4, "probe": (8,)},
        {"score": RowScore(0, ints(texts[4][1:])), "sample": Sample(GREEDY)},
    ]
    rows = [paged.row(Sequence(t), len(t), **w) for t, w in zip(texts, wanted)]
    result = paged.run(rows)
    out, truth = result.rows, [hf_models.logits(model, t).log_softmax(-1) for t in texts]
    assert result.id == 1
    assert not any(o.error for o in out)

    def top(at: torch.Tensor, n: int) -> list[tuple[int, float]]:
        values, ids = at.topk(n)
        near: Any = pytest.approx
        return [(i, near(v, abs=1e-4)) for i, v in zip(ids.tolist(), values.tolist())]

    best = int(truth[0][-1].argmax())
    assert out[0].token == best
    assert out[0].logprob == pytest.approx(truth[0][-1, best].item(), abs=1e-4)
    assert out[0].top == top(truth[0][-1], 2)
    assert out[1].token == 11
    assert out[1].logprob == pytest.approx(truth[1][-1, 11].item(), abs=1e-4)
    assert out[1].top == []
    assert out[1].probe == pytest.approx([truth[1][-1, i].item() for i in (5, 0, 5)], abs=1e-4)
    scores = [truth[2][2 + i, t].item() for i, t in enumerate(targets)]
    assert out[2].scores == pytest.approx(scores, abs=1e-4)
    assert out[2].score_tops == [top(truth[2][2 + i], 3) for i in range(len(targets))]
    assert [p[1] for p in out[2].score_probes] == pytest.approx(truth[2][2:, 2].tolist(), abs=1e-4)
    assert out[2].token == -1
    assert out[3].top == top(truth[3][-1], 4)
    assert (out[3].token, len(out[3].probe)) == (-1, 1)
    assert out[4].scores == pytest.approx(
        [truth[4][i, t].item() for i, t in enumerate(texts[4][1:])], abs=1e-4
    )
    assert out[4].token == int(truth[4][-1].argmax())
    assert (out[4].logprob, out[4].top, out[4].score_tops) == (0.0, [], [[]] * 6)


class OneToken:
    """The mask of a pass that allows one token. ``made``: what the device had done by then."""

    def __init__(self, token: int, done: list[str]) -> None:
        self.token, self.done, self.made = token, done, [""]

    def make(self) -> list[Mask]:
        self.made = list(self.done)
        words = bytearray(4 * ((VOCAB + 31) // 32))
        words[self.token // 8] |= 1 << self.token % 8
        return [Mask(bytes(words))]


def test_masks_are_made_once_the_device_has_started(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paged = Paged(path, 1, 0)
    done: list[str] = []
    hidden = paged.worker.runner.forward.hidden

    def noted(*given: Any) -> torch.Tensor:
        done.append("hidden states")
        return hidden(*given)

    monkeypatch.setattr(paged.worker.runner.forward, "hidden", noted)
    row = paged.row(Sequence(text(1, 5)), 5, sample=Sample(GREEDY, mask=0))
    masks = OneToken(42, done)
    assert paged.worker.run(Batch(1, [row]), masks).rows[0].token == 42
    assert masks.made == ["hidden states"]


def test_a_penalty_counts_the_token_that_a_row_follows(path: str) -> None:
    """The batches stay as they are (``helpers/wired``)."""
    paged = Paged(path, 1, 0)
    prompt, repeats = text(1, 6), SamplingParams(temperature=0.0, frequency_penalty=2.0)
    known, placed = Sequence(list(prompt)), Sequence(list(prompt))
    tokens: list[int] = []
    for step in range(6):
        samples = [Sample(repeats, history=ints(tokens[:n])) for n in (step, max(step - 1, 0))]
        count = 6 if step == 0 else 1
        rows = [paged.row(s, count, sample=w) for s, w in zip((known, placed), samples)]
        rows[1].follows = 1 if step else -1
        one, other = (out.token for out in paged.run(rows).rows)
        assert one == other
        tokens.append(one)
        known.tokens.append(one)
        placed.tokens.append(-7)


def test_rows_follow_the_tokens_of_the_batch_before(path: str) -> None:
    """Rows planned ahead, with placeholders and in another order, sample the same tokens."""
    prompts = [text(seed, 6) for seed in range(3)]
    want = Paged(path, 1, 0).greedy(prompts, 8)
    paged = Paged(path, 1, 0)
    sequences = [Sequence(list(p)) for p in prompts]
    sample, order = Sample(GREEDY), [0, 1, 2]
    got: list[list[int]] = [[] for _ in prompts]
    rows = [paged.row(s, 6, sample=sample) for s in sequences]
    for step in range(8):
        for i, output in zip(order, paged.run(rows).rows):
            got[i].append(output.token)
        previous, order = order, order[1:] + order[:1]
        rows = []
        for i in order:
            sequences[i].tokens.append(-7)
            rows.append(paged.row(sequences[i], 1, sample=sample))
            rows[-1].follows = previous.index(i)
        if step == 3:  # a row that samples nothing must not shift the others
            extra = Sequence(text(9, 2))
            rows.insert(0, paged.row(extra, 2))
            for output_row in (paged.run(rows).rows,):
                assert output_row[0].token == -1
                for i, output in zip(order, output_row[1:]):
                    got[i].append(output.token)
            rows = []
            for i in order:
                sequences[i].tokens.append(-7)
                rows.append(paged.row(sequences[i], 1, sample=sample))
                rows[-1].follows = 1 + order.index(i)
    assert [tokens[:8] for tokens in got] == want


def test_a_broken_row_fails_alone(path: str) -> None:
    paged = Paged(path, 1, 0)
    good, bad = Sequence(text(1, 4)), Sequence(text(2, 4))
    before = paged.run([paged.row(good, 4, sample=Sample(GREEDY, top=1))]).rows[0]
    paged.run([paged.row(bad, 3)])
    pool = paged.worker.runner.pool
    with torch.inference_mode():
        pool.values[0][bad.pages[1]] = math.nan
    again = Row(0, 3, ints(good.tokens[3:]), good.pages, sample=Sample(GREEDY, top=1))
    wanted: list[dict[str, Any]] = [
        {"sample": Sample(GREEDY)},
        {"sample": Sample(SamplingParams(), top=3)},
        {"tip_top": 2},
        {"score": RowScore(0, ints([5]))},
    ]
    for want in wanted:
        broken = Row(1, 3, ints(bad.tokens[3:]), ints([*bad.pages, paged.free[-1]]), **want)
        outputs = paged.run([broken, again]).rows
        assert outputs[0].error == NOT_FINITE
        assert (outputs[0].token, outputs[0].top) == (-1, [])
        assert outputs[1].error == ""
        assert outputs[1].token == before.token
        assert outputs[1].logprob == pytest.approx(before.logprob, abs=1e-5)


def test_what_cannot_be_served_is_said_in_the_row(path: str) -> None:
    paged = Paged(path, 1, 0)
    rows = [paged.row(Sequence(text(1, 3)), 3, sample=Sample(GREEDY)) for _ in range(2)]
    rows[0].adapter = 7
    rows.append(paged.row(Sequence(text(2, 3)), 3, score=RowScore(2, ints([1, 2]))))
    outputs = paged.run(rows).rows
    assert outputs[0].error == "adapter 7 is not loaded"
    assert outputs[1].error == ""
    assert "lie outside" in outputs[2].error


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tokens": ints([1, VOCAB])}, "token id outside"),
    ({"tokens": ints([-1, 1])}, "token id outside"),
    ({"tokens": ints()}, "has no tokens"),
    ({"start": -1}, "starts before position 0"),
    ({"start": 63}, "context length"),
    ({"pages": ints([0])}, "too few pages"),
    ({"pages": ints([0, 512])}, "page outside"),
    ({"pages": ints([0, -1])}, "page outside"),
    ({"follows": 5}, "follows a row"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_batch_that_reaches_outside_is_refused(number: int, path: str) -> None:
    changes, message = REFUSED[number]
    paged = Paged(path, 2, 0)
    row = Row(
        **{"context": 0, "start": 1, "tokens": ints([1, 2]), "pages": ints([3, 4]), **changes}
    )
    before = [pool.copy() for pool in paged.worker.runner.pool.keys]
    with pytest.raises(ValueError, match=message):
        paged.run([row])
    for pool, was in zip(paged.worker.runner.pool.keys, before):
        assert np.array_equal(pool, was, equal_nan=True)
    with pytest.raises(ValueError, match="no rows"):
        paged.worker.run(Batch(1, []))


def test_the_worker_describes_itself(tmp_path: Path) -> None:
    """``info`` is EngineInfo less what the scheduler knows; small models are float32 on a CPU."""
    settings = {"torch_dtype": "bfloat16", "eos_token_id": [2, 9], "max_position_embeddings": 512}
    path = write_config(tmp_path, **settings)
    worker = ModelWorker(Config.of(model_path=path, load_format="dummy", page_size=3, device="cpu"))
    info = EngineInfo(**worker.info, max_running_requests=1, max_queued_requests=1)
    assert (info.dtype, info.device, info.architecture) == ("float32", "cpu", "LlamaForCausalLM")
    assert (info.vocab_size, info.context_length, info.eos) == (160, 512, (2, 9))
    assert info.kv_bytes_per_token == 2 * 2 * 2 * 8 * 4
    assert info.capacity % 3 == 0
    assert info.capacity <= 32 * 512
    assert info.parameters == 2 * 160 * 32 + 32 + 2 * (2 * 32 + 3 * 32 * 48 + 2 * 32**2 + 32**2)
    settings = {"model_path": path, "load_format": "dummy", "device": "cpu"}
    half = ModelWorker(Config.of(**settings, dtype="bfloat16", max_total_tokens=64))
    assert (half.info["dtype"], half.info["capacity"]) == ("bfloat16", 64)
    row = Row(0, 0, ints([1, 2, 3]), ints([0, 1, 2]), sample=Sample(GREEDY, top=3))
    assert half.run(Batch(0, [row])).rows[0].top
    with pytest.raises(ValueError, match="context_length is 513"):
        ModelWorker(Config.of(**settings, context_length=513))
    with pytest.raises(ValueError, match="'tpu' cannot be used"):
        ModelWorker(Config.of(**{**settings, "device": "tpu"}))


def test_starting_and_running_import_no_compiler(tmp_path: Path) -> None:
    """The compiler takes seconds to import, and an operation on a meta tensor may bring it in."""
    code = """
import sys
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, Row, Sample
from sglang.srt.core.ints import ints
from sglang.ir.sampling import SamplingParams
from sglang.srt.worker.model_worker import ModelWorker

worker = ModelWorker(Config.of(model_path=sys.argv[1], load_format="dummy", device="cpu"))
row = Row(0, 0, ints([1, 2]), ints([0, 1]), sample=Sample(SamplingParams(top_p=0.5), top=2))
assert not worker.run(Batch(0, [row])).rows[0].error
print([name for name in ("torch._dynamo", "transformers") if name in sys.modules])
"""
    path = write_config(tmp_path)
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
