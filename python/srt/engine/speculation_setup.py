"""Speculation setup: the drafters of an engine, made from its configuration."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from sglang.srt.config import Config, LoraConfig
from sglang.srt.engine.draft_model import ModelDrafter
from sglang.srt.engine.drafts import Drafts
from sglang.srt.engine.executor import load_worker
from sglang.srt.engine.info import EngineInfo

GPU_SHARE = 0.4  # draft model's share of the memory that the model and its KV cache leave free
# Tokens of a pass up to which reading the weights takes longer than computing with them.
ROOM, GPU_ROOM = 64, 256


def make_drafts(config: Config, info: EngineInfo) -> tuple[Drafts, EngineInfo]:
    """Load the draft model, if one is configured. Return the drafters and ``info`` with its path.

    Raises ValueError if the draft model is unsupported or has another vocabulary, MemoryError if
    it does not fit.
    """
    settings, model = config.speculation, None
    if settings.speculative_draft_model_path:
        model = _draft_model(config, info)
        info = msgspec.structs.replace(info, draft_model=settings.speculative_draft_model_path)
    drafts = Drafts(
        config.grammar.jumps,
        settings.algorithm,
        settings.speculative_num_draft_tokens,
        GPU_ROOM if info.device.startswith("cuda") else ROOM,
        model,
    )
    return drafts, info


def _draft_model(config: Config, info: EngineInfo) -> ModelDrafter:
    path = config.speculation.speculative_draft_model_path
    tokens = min(config.memory.max_total_tokens, info.capacity)  # 0: by memory
    share = GPU_SHARE if info.device.startswith("cuda") else 0.0
    own = replace(
        config,
        model=replace(config.model, model_path=path, revision="", context_length=0),
        lora=LoraConfig(),
        memory=replace(
            config.memory,
            page_size=1,
            max_total_tokens=tokens,
            mem_fraction_static=share,
            enable_hierarchical_cache=False,
        ),
    )
    try:
        worker, found = load_worker(own)
    except (ValueError, MemoryError) as error:
        raise type(error)(f"--speculative-draft-model-path {path}: {error}") from error
    if found.vocab_size != info.vocab_size:
        raise ValueError(
            f"--speculative-draft-model-path {path} has a vocabulary of {found.vocab_size} tokens "
            f"and the model one of {info.vocab_size}; give a smaller model with the same tokenizer."
        )
    share_kv = not config.memory.disable_radix_cache
    return ModelDrafter(worker, found, config.schedule.chunked_prefill_size, share_kv)
