"""The fingerprint of a KV cache: all that its bytes depend on besides the tokens.

Two servers with one fingerprint compute the same keys and values for the same tokens, in the same
layout. Weights are known by their files' names, sizes and times, and by samples of their bytes:
reading all of them would take as long as loading the model.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from sglang.srt.config import Config
from sglang.srt.core.version import __version__
from sglang.srt.worker.model_loading import ModelPlan

SAMPLES = 16  # parts of a file that are read
SAMPLE_BYTES = 1 << 14
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")


def fingerprint(plan: ModelPlan, config: Config, kernels: str, page_bytes: int) -> bytes:
    """Return the fingerprint, 32 bytes. ``kernels``: those that compute; ``page_bytes``: of a page
    in all layers. Raises OSError where a file of the model cannot be read."""
    storage, settings = plan.storage, config.model
    facts: dict[str, object] = {
        "version": __version__,
        "spec": repr(plan.spec),
        "dtype": str(storage.dtype),
        "kv_dtype": str(storage.kv_dtype),
        "quantization": [storage.quantization, storage.bits, repr(dict(storage.float8))],
        "device": plan.device.type,
        "kernels": kernels,
        "disabled": list(settings.disable_fused_kernels),
        "layers": plan.spec.num_layers,
        "page_size": config.memory.page_size,
        "page_bytes": page_bytes,
    }
    if plan.checkpoint is None:
        facts["dummy"] = settings.random_seed
    digest = sha256(json.dumps(facts, sort_keys=True).encode())
    for path in files_of(plan):
        digest.update(sampled(path))
    return digest.digest()


def files_of(plan: ModelPlan) -> list[Path]:
    """The files that describe the model, and its weights, in order."""
    if plan.directory.is_file():
        return [plan.directory]
    wanted = ("config.json",) if plan.checkpoint is None else ("config.json", *WEIGHTS)
    return sorted(path for path in plan.directory.iterdir() if path.name.endswith(wanted))


def sampled(path: Path) -> bytes:
    """Digest of a file's name, size and time, and of samples of its bytes. Raises OSError."""
    about = path.stat()
    digest = sha256(f"{path.name} {about.st_size} {about.st_mtime_ns}".encode())
    with path.open("rb") as file:
        for number in range(SAMPLES):
            file.seek(about.st_size * number // SAMPLES)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()
