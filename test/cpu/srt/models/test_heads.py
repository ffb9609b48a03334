"""Models that write nothing: classifiers and models without a head, against transformers."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import torch
import transformers
from helpers.hf_models import CONFIGS, SMALL, save
from safetensors.torch import load_file, save_file
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Advance,
    Close,
    Distribution,
    Done,
    Embed,
    Failed,
    Generate,
    Goal,
    Open,
)
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


def ask(engine: EngineCore, prompt: list[int], goal: Goal) -> Done | Failed:
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


def test_a_tied_embedding_may_be_saved_as_the_head(tmp_path: Path) -> None:
    model = model_of("LlamaForCausalLM", "LlamaForCausalLM", tie_word_embeddings=True)
    path = save(model, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    engine, goal = served(path), Distribution(3)
    for prompt in PROMPTS:
        with torch.no_grad():
            wanted = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
        end = ask(engine, prompt, goal)
        assert isinstance(end, Done), end
        top = end.top
        assert [i for i, _ in top] == wanted.topk(3).indices.tolist()
        assert max(abs(value - wanted[i]) for i, value in top) < 1e-4
