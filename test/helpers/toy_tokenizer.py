"""Small tokenizers made on the spot, in the layouts that models come in."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [
    "The quick brown fox jumps over the lazy dog; the dog sleeps on.",
    "Grüße aus Köln! 日本語のテキスト、そして 🙂🚀 emoji.",
    "def main(argv):\n    return 0\n",
] * 20


def byte_level(directory: Path, size: int = 400) -> Path:
    """Byte-level BPE with ChatML, as Qwen has it. Ids: the specials come last."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    config: dict[str, object] = {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHATML,
    }
    return _save(tokenizer, directory, config)


def sentencepiece(directory: Path) -> Path:
    """Llama-2 style: "▁" for a space, byte fallback, a BOS before every text."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for piece in ("▁", "h", "e", "l", "o", "▁h", "el", "lo", "▁hel", "▁hello", "▁wor", "ld",
                  "w", "r", "d", "▁w", "or", "▁world"):  # fmt: skip
        vocab.setdefault(piece, len(vocab))
    merges = [("▁", "h"), ("e", "l"), ("l", "o"), ("▁h", "el"), ("▁hel", "lo")]
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return _save(tokenizer, directory, {"bos_token": "<s>", "eos_token": {"content": "</s>"}})


def _save(tokenizer: Tokenizer, directory: Path, config: dict[str, object]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory
