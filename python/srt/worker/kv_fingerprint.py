"""The fingerprint of a KV cache: a digest of everything that its bytes depend on except the tokens.

Two servers with the same fingerprint compute the same keys and values for the same tokens, in the
same layout. Weights are compared by samples of their files (``files/file_digests``).
"""

from __future__ import annotations

import json
from hashlib import sha256

from sglang.srt.config import Config
from sglang.srt.core.version import __version__
from sglang.srt.files.file_digests import model_files, sampled
from sglang.srt.worker.model_loading import ModelPlan


def fingerprint(plan: ModelPlan, config: Config, kernels: str, page_bytes: int) -> bytes:
    """Return the fingerprint, 32 bytes. ``kernels``: names of kernels and attention.
    ``page_bytes``: of a page in all layers. Raises OSError if a model file cannot be read."""
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
    for path in model_files(plan.directory, plan.checkpoint is not None):
        digest.update(sampled(path))
    return digest.digest()
