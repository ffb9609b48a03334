"""Adapters: one model in memory, several that were made of it, one for each request.

Two random adapters of the embedded model are written to a temporary directory, in PEFT's layout,
and used in one batch with the model itself. Real ones come from `peft` (`model.save_pretrained`).
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import sglang as sgl
import torch
from safetensors.torch import save_file

RANK = 4


def write_adapter(directory: Path, seed: int, layers: int, width: int) -> str:
    """An adapter of all output projections that has learned nothing."""
    torch.manual_seed(seed)
    tensors = {}
    for layer in range(layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(RANK, width) / width**0.5
        tensors[f"{name}.lora_B.weight"] = torch.randn(width, RANK) / RANK**0.5
    directory.mkdir()
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["o_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "adapter_model.safetensors")
    return str(directory)


@sgl.function
def answer(s, question):
    s += sgl.user(question) + sgl.assistant(sgl.gen("answer", max_tokens=12, temperature=0))


def main() -> list[str]:
    with tempfile.TemporaryDirectory() as root, sgl.Engine(enable_lora=True) as engine:
        config = json.loads((Path(engine.tokenizer.path) / "config.json").read_text())
        layers, width = config["num_hidden_layers"], config["hidden_size"]
        for seed, name in enumerate(("poet", "judge")):
            made = write_adapter(Path(root) / name, seed, layers, width)
            print(name, engine.load_lora_adapter(name, made)["bytes"], "bytes")
        question = "What is 17 + 25?"
        for name in ("", "poet", "judge"):
            state = answer.run(question, backend=engine, lora_path=name)
            print(f"{name or 'the model':>10}: {state['answer']!r}")
        greedy = {"max_new_tokens": 6, "temperature": 0}
        rows = engine.generate(["It is"] * 3, greedy, lora_path=[None, "poet", "judge"])
        engine.unload_lora_adapter("poet")
    return [row["text"] for row in rows]


if __name__ == "__main__":
    print(main())
