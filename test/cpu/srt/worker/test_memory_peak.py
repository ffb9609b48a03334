"""The engine's process needs no more memory than its weights, its KV pool and 300 MB: weights are
packed while they are loaded, and no file that was read stays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import TESTS
from helpers.tiny_model import write_config

if not Path("/proc/self/status").exists():
    pytest.skip("needs /proc", allow_module_level=True)

SHAPE = {
    "hidden_size": 768, "intermediate_size": 2048, "head_dim": 64, "num_attention_heads": 12,
    "num_key_value_heads": 4, "vocab_size": 16000, "num_hidden_layers": 10,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
CHILD = """
import json, re, sys
from helpers.paged import Paged
from sglang.srt.core.batch import Sample
from sglang.ir.sampling import SamplingParams
paged = Paged(sys.argv[1], 1, 1, max_total_tokens=8192, **json.loads(sys.argv[2]))
paged.greedy([list(range(1, 1500)), list(range(50))], 4)
status = open("/proc/self/status").read()
info = paged.worker.info
print(json.dumps({
    "peak": int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) * 1024,
    "parameters": info["parameters"], "kv": info["kv_bytes_per_token"] * info["capacity"],
    "kernels": info["kernels"],
}))
"""


@pytest.mark.parametrize("source", ["dummy", "file"])
@pytest.mark.parametrize(("quantization", "size"), [("none", 2), ("int8", 1.01)])
def test_peak_is_weights_and_kv_and_a_little(
    source: str, quantization: str, size: float, tmp_path: Path
) -> None:
    native = pytest.importorskip("sgl_kernel.native")
    if not native.AVAILABLE:
        pytest.skip(native.WHY)
    path = write_config(tmp_path, **SHAPE)
    settings = {"dtype": "bfloat16", "quantization": quantization, "load_format": "dummy"}
    if source == "file":
        save(tmp_path)
        settings["load_format"] = "auto"
    run = subprocess.run(
        [sys.executable, "-c", CHILD, path, json.dumps(settings)],
        capture_output=True, text=True, timeout=200, check=False,
        cwd=TESTS,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["parameters"] > 70e6
    allowed = found["parameters"] * size + found["kv"] + 300e6
    assert found["peak"] <= allowed, found


def save(directory: Path) -> None:
    """Zeros are as large as anything."""
    import torch
    from safetensors.torch import save_file
    from sglang.srt.layers.weight import Place
    from sglang.srt.models.model_spec import read_config
    from sglang.srt.models.registry import lookup

    fields, architecture = read_config(directory)
    family = lookup(architecture)
    model = family(family.read(fields, architecture), Place(torch.device("meta"), torch.float32), 1)
    tensors = {
        name: torch.zeros(slot.shape, dtype=torch.bfloat16) for name, slot in model.slots().items()
    }
    save_file(tensors, directory / "model.safetensors")
