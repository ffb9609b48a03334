"""The format of a checkpoint, detected from its configuration, and its tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sglang.srt.models.checkpoint import Checkpoint
from sglang.srt.models.config_fields import Fields, read_json
from sglang.srt.models.formats.awq import open_awq
from sglang.srt.models.formats.bnb import open_bitsandbytes
from sglang.srt.models.formats.compressed import open_compressed
from sglang.srt.models.formats.float8 import open_fp8
from sglang.srt.models.formats.gptq import open_gptq
from sglang.srt.models.formats.mxfp4 import open_mxfp4
from sglang.srt.models.formats.quantised_files import QuantisedCheckpoint, QuantisedFiles
from sglang.srt.models.gguf.gguf_checkpoint import GgufCheckpoint
from sglang.srt.models.gguf.gguf_config import GgufFields
from sglang.srt.models.safetensors import SafetensorsCheckpoint

METHODS: dict[str, Callable[[QuantisedFiles, Fields], QuantisedCheckpoint]] = {
    "awq": open_awq,
    "bitsandbytes": open_bitsandbytes,
    "compressed-tensors": open_compressed,
    "fp8": open_fp8,
    "gptq": open_gptq,
    "mxfp4": open_mxfp4,
}
# Older files with a quantisation config, and their default methods.
OLDER = {"quantize_config.json": "gptq", "quant_config.json": "awq"}


def quantisation_of(directory: Path, config: Fields) -> tuple[Fields, str] | None:
    """The quantisation config in ``config.json`` or an older file beside it, and its method.
    Raises ValueError for a method that is not supported."""
    missing = ""
    fields = None
    for key in ("quantization_config", "compression_config"):
        if config.has(key):
            fields = config.fields(key)
            break
    else:
        for name, method in OLDER.items():
            if (directory / name).is_file():
                fields, missing = read_json(directory / name), method
                break
    if fields is None:
        return None
    method = (fields.text("quant_method") or missing).replace("_", "-")
    if not method and (fields.flag("load_in_8bit") or fields.flag("load_in_4bit")):
        method = "bitsandbytes"
    if method not in METHODS:
        raise fields.error("quant_method", f"supported are {', '.join(METHODS)}.")
    return fields, method


def open_checkpoint(directory: Path, config: Fields) -> Checkpoint:
    """The tensors of a model directory, dequantised where ``config`` says that they are quantised.

    Only headers are read. Raises ValueError where the tensors cannot be used.
    """
    if isinstance(config, GgufFields):
        return GgufCheckpoint(config)
    plain = SafetensorsCheckpoint(directory)
    found = quantisation_of(directory, config)
    return plain if found is None else METHODS[found[1]](QuantisedFiles(plain), found[0])
