"""Models that write nothing: classifiers and models without a head, against transformers."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import torch
import transformers
from helpers.hf_models import CONFIGS, SMALL, save
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Close, Done, Embed, Failed, Generate, Open
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import local_executor

PROMPTS = [[5], [9, 4, 33, 2, 8], [9, 4, 33, 2, 9, 60, 1, 0, 7]]


def model_of(architecture: str, family: str, **settings: object) -> torch.nn.Module:
    torch.manual_seed(3)
    config = CONFIGS[family](**{**SMALL, "eos_token_id": None, "pad_token_id": 96, **settings})
    return getattr(transformers, architecture)(config).eval()


def served(path: str) -> EngineCore:
    config = Config.of(model_path=path, dtype="float32", device="cpu", max_total_tokens=256)
    executor, info = local_executor(config)
    return EngineCore(executor, info, config.schedule, [b"x"] * 97)


def ask(engine: EngineCore, prompt: list[int], goal: Embed | Generate) -> Done | Failed:
    events = engine.handle([Open(1, ints(prompt).tobytes()), Advance(1, 1, goal, close=True)])
    while engine.busy:
        events += engine.step()
    engine.handle([Close(1)])  # where the request was refused the context is still open
    (end,) = (event for event in events if isinstance(event, Done | Failed))
    return end


def vector(done: Done | Failed) -> torch.Tensor:
    assert isinstance(done, Done)
    values = array("f")
    values.frombytes(done.embedding)
    return torch.tensor(values)


@pytest.mark.parametrize(
    ("family", "labels"),
    [("LlamaForCausalLM", 3), ("Qwen3ForCausalLM", 1), ("Gemma2ForCausalLM", 2)],
)
def test_classifiers(family: str, labels: int, tmp_path: Path) -> None:
    architecture = family.replace("ForCausalLM", "ForSequenceClassification")
    model = model_of(architecture, family, num_labels=labels)
    engine = served(save(model, tmp_path))
    assert engine.info.purpose == "classify"
    assert len(engine.info.labels) == labels
    for prompt in PROMPTS:
        with torch.no_grad():
            wanted = model(torch.tensor([prompt])).logits[0]
        assert (vector(ask(engine, prompt, Embed())) - wanted).abs().max() < 1e-4
    refused = ask(engine, PROMPTS[0], Generate(SamplingParams(max_new_tokens=1)))
    assert isinstance(refused, Failed)
    assert "use /classify" in refused.message


def test_a_model_without_a_head(tmp_path: Path) -> None:
    """Tensors of such a model have no prefix."""
    model = model_of("Qwen3Model", "Qwen3ForCausalLM")
    engine = served(save(model, tmp_path))
    assert engine.info.purpose == "embed"
    for prompt in PROMPTS:
        with torch.no_grad():
            wanted = model(torch.tensor([prompt])).last_hidden_state[0]
        assert (vector(ask(engine, prompt, Embed())) - wanted[-1]).abs().max() < 1e-4
        assert (vector(ask(engine, prompt, Embed("mean"))) - wanted.mean(0)).abs().max() < 1e-4
    refused = ask(engine, PROMPTS[0], Generate(SamplingParams(max_new_tokens=1)))
    assert isinstance(refused, Failed)
    assert "use /v1/embeddings" in refused.message
