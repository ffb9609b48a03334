"""Write the files that ship: `python -m tools.train_tiny.export --run FOLDER --to FOLDER`."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tools.train_tiny.model import Shape
from tools.train_tiny.sample import END_OF_TEXT, IM_END, IM_START, SPECIAL_TOKENS
from tools.train_tiny.tokenizer import load_tokenizer, token_id
from tools.train_tiny.train import load_model

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def config_of(shape: Shape, end_ids: list[int]) -> dict[str, Any]:
    """`config.json` of a Hugging Face Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": end_ids[1],
        "eos_token_id": end_ids,
        "pad_token_id": end_ids[1],
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.num_attention_heads,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocab_size,
    }


def tokenizer_config_of(ids: dict[str, int], length: int) -> dict[str, Any]:
    """`tokenizer_config.json`, with the chat template."""
    described = {
        str(index): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for token, index in ids.items()
    }
    return {
        "add_bos_token": False,
        "add_eos_token": False,
        "added_tokens_decoder": described,
        "additional_special_tokens": [IM_START, IM_END],
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "model_max_length": length,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def export(run: Path, to: Path) -> None:
    """Turn the checkpoint of a run into a folder that Hugging Face libraries load."""
    model, _ = load_model(run / "checkpoint.pt")
    tokenizer = load_tokenizer(run / "tokenizer.json")
    ids = {token: token_id(tokenizer, token) for token in SPECIAL_TOKENS}
    end_ids = [ids[IM_END], ids[END_OF_TEXT]]
    to.mkdir(parents=True, exist_ok=True)
    write_json(to / "config.json", config_of(model.shape, end_ids))
    generation = {
        "bos_token_id": end_ids[1],
        "eos_token_id": end_ids,
        "pad_token_id": end_ids[1],
        "do_sample": False,
        "json_whitespace_pattern": "[ ]?",  # as ``tasks.extract`` writes JSON
    }
    write_json(to / "generation_config.json", generation)
    write_json(
        to / "tokenizer_config.json", tokenizer_config_of(ids, model.shape.max_position_embeddings)
    )
    shutil.copyfile(run / "tokenizer.json", to / "tokenizer.json")
    weights = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items()}
    part = to / "model.safetensors.part"
    save_file(weights, str(part), metadata={"format": "pt"})
    part.chmod(0o644)
    part.replace(to / "model.safetensors")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder that train.py wrote")
    parser.add_argument("--to", type=Path, required=True, help="folder to write")
    chosen = parser.parse_args()
    export(chosen.run, chosen.to)
