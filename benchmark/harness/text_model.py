"""Text model: random weights of a realistic shape that read and write English.

Speed is measured with random weights, and programs are made of text, so every engine must cut text
into the same tokens, and what a model writes must be text that is cut the way it was written, as
what a trained model writes nearly always is. Else a prompt that continues an answer would not
begin with the tokens whose KV is there, and caches would be measured at a loss that no user has.

So the head prefers whole words with the space before them: rows of other tokens are a tenth as
large, so greedy text without a constraint consists of words alone, which byte-level BPE never
merges with one another. They are not zero, or equal logits would let each engine sample another
token where a constraint allows only such.

The tokenizer is a byte-level BPE trained on the texts of ``benchmark/data`` and
``examples/corpus``, with ChatML's template; ids that training leaves are words no text becomes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmark.harness import data
from benchmark.models import EMBEDDED, SHAPES, Shape, draw, once, save, write_json
from benchmark.peers.gguf_file import ROOT, converted

CACHE = Path("~/.cache/sglang-bench").expanduser()
END, BEGIN_TURN, END_TURN = MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LESS = 0.1  # scale of rows of the head that are not words


def checkpoint(size: str, root: Path | None = None) -> Path:
    """Folder of a bfloat16 checkpoint of ``SHAPES[size]``, its head its own, made if it is not
    there. Its name has a digest of all it was made from.

    Raises KeyError for an unknown size.
    """
    shape = SHAPES[size]
    sizes = f"{shape.hidden}x{shape.layers}x{shape.heads}x{shape.kv_heads}x{shape.inner}"
    folder = (root or CACHE) / f"text-{size}-{sizes}-{_digest()}"
    return once(folder, lambda half: make(half, shape))


def gguf(checkpoint: Path, peers: Path) -> Path:
    """The same as llama.cpp reads it, written by the environment of llama.cpp below ``peers``.

    Raises OSError where there is none.
    """
    out = None
    if checkpoint == EMBEDDED:  # nothing is written into the source tree
        digest = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()[:12]
        CACHE.mkdir(parents=True, exist_ok=True)
        out = CACHE / f"embedded-{digest}-BF16.gguf"
    return converted(checkpoint, peers / "llama" / "bin" / "python", "BF16", out)


def make(folder: Path, shape: Shape, seed: int = 0) -> Path:
    """Write such a checkpoint to ``folder``, which is returned."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = trained(shape.vocab)
    weights = draw(shape, "bfloat16", seed)
    random = torch.Generator().manual_seed(seed + 1)
    head = torch.randn(shape.vocab, shape.hidden, generator=random) / shape.hidden**0.5
    others = torch.ones(shape.vocab, dtype=torch.bool)
    others[words(tokenizer)] = False
    head[others] *= LESS
    weights["lm_head.weight"] = head.to(torch.bfloat16)
    save(folder, shape, "bfloat16", weights, end=MARKS.index(END_TURN))
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_TURN, "pad_token": END,
        "clean_up_tokenization_spaces": False, "model_max_length": shape.context,
        "chat_template": TEMPLATE,
    })  # fmt: skip
    return folder


def words(tokenizer: Mapping[str, Any]) -> list[int]:
    """Ids of the tokens that are a word of ASCII letters and the space before it, and into which
    that text is cut."""
    from tokenizers import Tokenizer

    cut = Tokenizer.from_str(json.dumps(tokenizer))
    found = []
    for name, number in tokenizer["model"]["vocab"].items():
        word = name.removeprefix("Ġ")
        letters = word != name and word.isalpha() and word.isascii()
        if letters and cut.encode(f" {word}").ids == [number]:
            found.append(number)
    return found


def trained(vocab: int) -> dict[str, Any]:
    """A tokenizer of ``vocab`` tokens, as tokenizer.json has it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=list(MARKS), show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts(), trainer)
    found: dict[str, Any] = json.loads(tokenizer.to_str())
    names = found["model"]["vocab"]
    names |= {f"Ġw{number}": number for number in range(len(names), vocab)}
    return found


@cache
def texts() -> tuple[str, ...]:
    """Texts that the tokenizer is trained on."""
    found: list[str] = []
    for folder in (data.FOLDER, ROOT / "examples" / "corpus"):
        for path in sorted(folder.iterdir()):
            if path.suffix == ".jsonl":
                found += _strings(data.records(path.name))
            elif path.suffix == ".txt":
                found.append(path.read_text(encoding="utf-8"))
    return tuple(found)


def _strings(value: Any) -> Iterator[str]:
    """Texts anywhere in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(part)


def _digest() -> str:
    """Digest of the texts and of the code that makes a checkpoint of them."""
    found = hashlib.sha256(json.dumps(texts()).encode())
    for path in (Path(__file__), ROOT / "benchmark" / "models.py"):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]
