"""A model of LLaVA-1.5's architecture: a text model of ``text_model``, and random weights for a
CLIP tower before it and the projector between them. A picture becomes 576 tokens, as in LLaVA-1.5.

"T" is for tests: the embedded model with a tower that makes 16 tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.harness import text_model
from benchmark.models import EMBEDDED, once, write_json

MARK = "<image>"
MORE = 64  # rows of the embeddings after the text model's: the first is that of ``MARK``


@dataclass(frozen=True)
class Eyes:
    """Sizes of a CLIP tower."""

    hidden: int
    layers: int
    heads: int
    inner: int
    pixels: int = 336
    patch: int = 14

    @property
    def tokens(self) -> int:
        """Tokens of a picture."""
        return (self.pixels // self.patch) ** 2


# By the text model's size. LLaVA-1.5's tower has a twentieth of its parameters; here it is more, as
# a tower that is too small would cost nothing.
EYES = {
    "T": Eyes(hidden=32, layers=2, heads=2, inner=64, pixels=56),
    "S": Eyes(hidden=256, layers=6, heads=4, inner=1024),
    "M": Eyes(hidden=512, layers=8, heads=8, inner=2048),
}


def checkpoint(size: str, root: Path | None = None, dtype: str = "bfloat16") -> Path:
    """Folder of the checkpoint, made if it is not there.

    Raises KeyError for an unknown size, ImportError without transformers.
    """
    eyes, text = EYES[size], EMBEDDED if size == "T" else text_model.checkpoint(size, root)
    sizes = f"{eyes.hidden}x{eyes.layers}x{eyes.heads}x{eyes.inner}x{eyes.pixels}"
    folder = (root or text_model.CACHE) / f"llava-{sizes}-{dtype}-{text.name}"
    return once(folder, lambda half: make(half, text, eyes, dtype))


def make(folder: Path, text: Path, eyes: Eyes, dtype: str, seed: int = 0) -> None:
    """Write it to ``folder``; ``text`` is the checkpoint of the text model inside."""
    import torch
    from safetensors.torch import load_file
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    words = json.loads((text / "config.json").read_text())
    vocab, kind = words["vocab_size"], getattr(torch, dtype)
    tower = {
        "model_type": "clip_vision_model", "hidden_size": eyes.hidden, "patch_size": eyes.patch,
        "num_hidden_layers": eyes.layers, "num_attention_heads": eyes.heads,
        "intermediate_size": eyes.inner, "image_size": eyes.pixels,
    }  # fmt: skip
    config = LlavaConfig(
        text_config={**words, "vocab_size": vocab + MORE}, vision_config=tower,
        image_token_index=vocab, tie_word_embeddings=words["tie_word_embeddings"],
    )  # fmt: skip
    model = LlavaForConditionalGeneration(config).to(kind)
    inside = load_file(text / "model.safetensors")
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            own = inside.get(name.replace("model.language_model.", "model."))
            if own is not None:
                weight.zero_()[: len(own)] = own.to(kind)
            elif weight.ndim == 1:
                weight.fill_(float("norm" in name and name.endswith("weight")))
            else:
                values = torch.randn(weight.shape, generator=random)
                weight.copy_(values / weight[0].numel() ** 0.5)
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    _write_files(folder, text, eyes, vocab)


def _write_files(folder: Path, text: Path, eyes: Eyes, mark: int) -> None:
    """Write the files that turn text into tokens and pictures into pixels."""
    tokenizer: dict[str, Any] = json.loads((text / "tokenizer.json").read_text())
    like = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"].append({**like, "id": mark, "content": MARK})
    write_json(folder / "tokenizer.json", tokenizer)
    for name in ("tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((text / name).read_bytes())
    side = eyes.pixels
    pictures = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    write_json(
        folder / "preprocessor_config.json",
        {"image_processor_type": "CLIPImageProcessor", **pictures},
    )
    write_json(folder / "processor_config.json", {"image_token": MARK})
