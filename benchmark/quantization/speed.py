"""Decode with weights as they were published in 4 and 8 bits, against bfloat16
(`python -m benchmark.quantization.speed`).

The models have one shape and random weights. Passes of all of them take turns, each on one thread,
and of each the least processor time counts; so other work on the machine shows little.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from time import thread_time
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.batch import Batch, Row, Sample
from sglang.srt.core.ints import ints
from sglang.srt.worker.model_worker import ModelWorker
from torch import Tensor

from benchmark.harness.command import command_parser
from benchmark.models import SHAPES, cached

CONTEXT = 64  # tokens of each row when decoding begins
Maker = Callable[[int, int], dict[str, Tensor]]


def random_words(*shape: int) -> Tensor:
    return torch.randint(-(1 << 31), (1 << 31) - 1, shape, dtype=torch.int32)


def gptq(bits: int, group: int, act_order: bool = False) -> tuple[Maker, dict[str, Any]]:
    def make(n: int, k: int) -> dict[str, Tensor]:
        groups = torch.arange(k, dtype=torch.int32) // group
        if act_order:
            groups = groups[torch.randperm(k, generator=torch.Generator().manual_seed(k))]
        count = -(-k // group)
        return {
            "qweight": random_words(k * bits // 32, n),
            "qzeros": random_words(count, n * bits // 32) & 0x77777777,
            "scales": torch.full((count, n), k**-0.5 / (1 << bits)).half(),
            "g_idx": groups,
        }

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order}
    return make, config


def int8(activations: bool) -> tuple[Maker, dict[str, Any]]:
    def make(n: int, k: int) -> dict[str, Tensor]:
        weight = torch.randint(-127, 128, (n, k), dtype=torch.int8)
        return {"weight": weight, "weight_scale": torch.full((n, 1), k**-0.5 / 128)}

    group: dict[str, Any] = {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
    }
    if activations:
        group["input_activations"] = {"num_bits": 8, "type": "int", "dynamic": True}
    config = {
        "quant_method": "compressed-tensors", "format": "int-quantized",
        "config_groups": {"group_0": group},
    }  # fmt: skip
    return make, config


FORMATS: dict[str, tuple[Maker, dict[str, Any]] | None] = {
    "bfloat16": None,
    "4 bits, groups of 128": gptq(4, 128),
    "4 bits, groups of 32": gptq(4, 32),
    "4 bits, groups of 128, act-order": gptq(4, 128, act_order=True),
    "8 bits, groups of 128": gptq(8, 128),
    "8 bits, a scale a row": int8(activations=False),
    "8 bits, int8 activations": int8(activations=True),
}


def checkpoint(root: Path, source: Path, number: int, format: tuple[Maker, dict[str, Any]]) -> Path:
    """A copy of ``source`` whose projections are quantised."""
    path = root / f"{source.name}-quantised-{number}"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(source, path)
    make, config = format
    tensors: dict[str, Any] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            made = make(*weight.shape)
            tensors |= {name.removesuffix("weight") + part: t for part, t in made.items()}
        else:
            tensors[name] = weight
    save_file(tensors, path / "model.safetensors")
    model = json.loads((path / "config.json").read_text())
    model["quantization_config"] = config
    (path / "config.json").write_text(json.dumps(model))
    return path


class Decoder:
    """``rows`` sequences of a model, advanced a token a pass."""

    def __init__(self, path: Path, rows: int, passes: int) -> None:
        length = CONTEXT + passes + 1
        config = Config.of(
            model_path=str(path), device="cpu", dtype="bfloat16", max_total_tokens=rows * length,
            threads=1,
        )  # fmt: skip
        self.worker, self.rows, self.at, self.batches = ModelWorker(config), rows, 0, 0
        self.pages = [list(range(r * length, (r + 1) * length)) for r in range(rows)]
        self.sample = Sample(SamplingParams(temperature=0.0))
        self._pass(CONTEXT)

    def _pass(self, tokens: int) -> None:
        end, self.batches = self.at + tokens, self.batches + 1
        batch = [
            Row(r, self.at, ints([65] * tokens), ints(pages[:end]), sample=self.sample)
            for r, pages in enumerate(self.pages)
        ]
        self.worker.run(Batch(self.batches, batch))
        self.at = end

    def seconds(self) -> float:
        started = thread_time()
        self._pass(1)
        return thread_time() - started

    @property
    def bits(self) -> float:
        """Bits of a weight of the projections in memory, scales included."""
        layers = self.worker.model.layers  # type: ignore[attr-defined]
        packed = [s.packed for layer in layers for s in layer.stored()]
        size: int = sum(p.data.numel() for p in packed)
        weights: int = sum(p.n * p.k for p in packed)
        return 8 * size / weights


def main() -> None:
    parser = command_parser("benchmark.quantization.speed", __doc__)
    parser.add_argument("--shape", choices=SHAPES, default="M", help="of the models (default: M)")
    parser.add_argument("--passes", type=int, default=30, help="of each model (default: 30)")
    parser.add_argument("--root", type=Path, default=Path(gettempdir()) / "sglang-bench")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    source = cached(arguments.root, arguments.shape)
    paths = {
        name: source if made is None else checkpoint(arguments.root, source, i, made)
        for i, (name, made) in enumerate(FORMATS.items())
    }
    found: dict[str, list[float]] = {name: [] for name in FORMATS}
    for rows in (1, 16):
        decoders = {name: Decoder(path, rows, arguments.passes) for name, path in paths.items()}
        times = {name: float("inf") for name in decoders}
        for _ in range(arguments.passes):
            for name, decoder in decoders.items():
                times[name] = min(times[name], decoder.seconds())
        for name, decoder in decoders.items():
            found[name] += [times[name]] if rows > 1 else [decoder.bits, times[name]]
    print(f"{'weights':34} {'bits':>6} {'1 row':>10} {'':>6} {'16 rows':>10}")
    base = found["bfloat16"]
    for name, (bits, one, many) in found.items():
        print(
            f"{name:34} {bits:6.2f} {one * 1e3:7.2f} ms {base[1] / one:5.2f}x "
            f"{many * 1e3:7.2f} ms {base[2] / many:5.2f}x"
        )


if __name__ == "__main__":
    main()
