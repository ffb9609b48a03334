"""``python -m benchmark.peers.gguf_file CHECKPOINT FILE {BF16,Q8_0}``: a checkpoint of
``benchmark.models`` as llama.cpp reads it. Needs numpy and gguf, no torch.

Weights are those of the checkpoint (bf16), or rounded to Q8_0; norms are float32, as llama.cpp
wants them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def converted(folder: Path, python: Path, kind: str, out: Path | None = None) -> Path:
    """The file ``out``, else one beside the checkpoint, written by ``python`` (which has gguf) if
    it is not there.

    Raises OSError where that fails.
    """
    out = out or folder / f"model-{kind}.gguf"
    if not out.exists():
        command = [str(python), "-m", "benchmark.peers.gguf_file", str(folder), str(out), kind]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{' '.join(command)} failed: {done.stderr[-500:]}")
    return out


def main(arguments: list[str]) -> None:
    folder, out, kind = Path(arguments[0]), Path(arguments[1]), arguments[2]
    half = out.with_name(out.name + ".half")
    write(folder, half, kind)
    half.rename(out)


def write(folder: Path, out: Path, kind: str) -> None:
    """Write ``folder`` to ``out``. Raises KeyError for a kind that gguf does not know."""
    import gguf

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(str(out), "llama")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(config["hidden_size"] // heads)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    ends = config["eos_token_id"]
    _add_vocabulary(writer, folder, ends[0] if isinstance(ends, list) else ends)
    quant = gguf.GGMLQuantizationType[kind]
    for name, bits in tensors(folder / "model.safetensors"):
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            bits = interleaved(bits, heads if "q_proj" in name else kv_heads)
        values = (bits.astype("uint32") << 16).view("float32")
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values)
        else:
            data = gguf.quants.quantize(values, quant)
            writer.add_tensor(gguf_name(name), data, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: Any, folder: Path, end: int) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = tokenizer["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    normal, control = 1, 3  # llama.cpp's token types
    marks = {token["content"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token in marks else normal for token in tokens])
    # An empty list cannot be written; "a b" makes no token where there is none to be made.
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]] or ["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
    about = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    if "chat_template" in about:
        writer.add_chat_template(about["chat_template"])


def tensors(path: Path) -> Iterator[tuple[str, Any]]:
    """Name and bits ([rows, columns] or [columns] uint16) of every bf16 tensor of a safetensors
    file: eight bytes of header length, a JSON header, the data."""
    import numpy

    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    data = numpy.memmap(path, dtype="uint8", mode="r", offset=8 + size)
    for name, about in header.items():
        if name == "__metadata__":
            continue
        if about["dtype"] != "BF16":
            raise ValueError(f"{name} is {about['dtype']}; only checkpoints in BF16 are converted")
        start, end = about["data_offsets"]
        yield name, data[start:end].view("uint16").reshape(about["shape"])


def interleaved(rows: Any, heads: int) -> Any:
    """Rows of a query or key projection in the order of llama.cpp, which rotates neighbouring
    dimensions where the checkpoint rotates the two halves of a head."""
    split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def gguf_name(name: str) -> str:
    """llama.cpp's name of a checkpoint's tensor. Raises KeyError for an unknown one."""
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "lm_head.weight":
        return "output.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, inner = name.split(".", 3)
    return f"blk.{layer}.{_LAYER[inner.removesuffix('.weight')]}.weight"


if __name__ == "__main__":
    main(sys.argv[1:])
