"""Load: the whole engine with many requests of mixed lengths, sampled, overlap on and off.

speed     1 B random weights in the precision of serving: tokens a second; texts may differ where
          two tokens are nearly equal, since passes have other rows
texts     the embedded model in float32: every way gives the same texts, or the stage is wrong
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang.backend.engine.embedded import Engine

from benchmark.gpu.bench import Bench
from benchmark.gpu.compiles import Compiles
from benchmark.gpu.shapes import SHAPES
from benchmark.gpu.workload import free
from benchmark.models import write_tokenizer

# Settings by name. Each is compared with the first.
WAYS: dict[str, dict[str, Any]] = {
    "overlap on": {},
    "overlap off": {"disable_overlap_schedule": True},
    "overlap on, no graphs": {"disable_cuda_graph": True},
}
WORDS = ("Once upon a time", "The", "A small dog and a cat", "It was raining. ", "One day, Tom")


@dataclass(frozen=True)
class Requests:
    """Prompts as token ids, and the parameters of each."""

    prompts: list[list[int]]
    params: list[dict[str, Any]]

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


def mixed(count: int, vocab: int, longest: int, most: int) -> Requests:
    """Requests of 4 to ``longest`` tokens that generate 4 to ``most``, skewed to the short."""
    r = random.Random(0)
    lengths = [4 + int((longest - 4) * r.random() ** 3) for _ in range(count)]
    prompts = [[r.randrange(1, vocab) for _ in range(length)] for length in lengths]
    return Requests(prompts, [_params(r, i, most) for i in range(count)])


def _params(r: random.Random, number: int, most: int) -> dict[str, Any]:
    return {
        "temperature": r.choice([0.0, 0.7, 1.0]), "top_p": r.choice([1.0, 0.9]),
        "top_k": r.choice([-1, 40]), "seed": number, "ignore_eos": True,
        "max_new_tokens": 4 + int((most - 4) * r.random()),
    }  # fmt: skip


def load(bench: Bench) -> bool:
    """Whether all ways gave the same texts in float32."""
    same = _texts(bench)
    free(bench)
    if not bench.tiny:
        _speed(bench)
    return same


def _texts(bench: Bench) -> bool:
    count, most = (6, 8) if bench.tiny else (64, 48)
    params = [_params(random.Random(i), i, most) for i in range(count)]
    prompts = [WORDS[i % len(WORDS)] * (1 + i % 7) for i in range(count)]
    settings = {"device": str(bench.device), "dtype": "float32", "max_total_tokens": 32768}
    if bench.tiny:
        settings |= {"max_total_tokens": 1024}
    elif bench.settings.get("attention_backend", "auto") == "auto":
        settings |= {"attention_backend": "triton"}  # FlashInfer has no float32
    results = {}
    for way, changes in WAYS.items():
        if not bench.enough(15, f"texts, {way}"):
            break
        answers, seconds, compiles = _run(
            {**bench.settings, **settings, **changes}, {"prompt": prompts}, params
        )
        results[way] = [str(answer["text"]) for answer in answers]
        _row(bench, "texts in float32", way, results, answers, seconds, compiles)
    return all(texts == next(iter(results.values())) for texts in results.values())


def _speed(bench: Bench) -> None:
    shape, results = SHAPES[0], dict[str, list[str]]()
    requests = mixed(64, shape.vocab, 2000, 256)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = shape.config(str(bench.dtype)[6:], 8192)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        write_tokenizer(folder, shape.vocab)
        for way, changes in WAYS.items():
            if not bench.enough(30, f"{shape.name}, {way}"):
                return
            settings = {
                "model_path": name, "load_format": "dummy", "device": str(bench.device),
                "max_total_tokens": 1 << 18, **bench.settings, **changes,
            }  # fmt: skip
            try:
                answers, seconds, compiles = _run(
                    settings, {"input_ids": requests.prompts}, requests.params
                )
            except Exception as error:
                bench.failed(f"{shape.name}, {way}", error)
                continue
            finally:
                free(bench)
            results[way] = [str(answer["text"]) for answer in answers]
            table = f"speed of {shape.name}"
            _row(bench, table, way, results, answers, seconds, compiles, requests.prompt_tokens)


def _run(
    settings: dict[str, Any], prompts: dict[str, Any], params: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], float, Compiles]:
    """Answers of all requests at once, after a first few that are not timed; seconds; what Triton
    compiled meanwhile."""
    engine = Engine(**settings)
    try:
        ((name, values),) = prompts.items()
        few: Any = {name: values[:3]}
        engine.generate(sampling_params=params[:3], **few)
        engine.flush_cache()
        with Compiles() as compiles:
            began = time.perf_counter()
            answers: list[dict[str, Any]] = engine.generate(sampling_params=params, **prompts)
            seconds = time.perf_counter() - began
    finally:
        engine.shutdown()
    return answers, seconds, compiles


def _row(
    bench: Bench, table: str, way: str, results: dict[str, list[str]],
    answers: list[dict[str, Any]], seconds: float, compiles: Compiles, prompt_tokens: int = 0,
) -> None:  # fmt: skip
    generated = sum(int(answer["meta_info"]["completion_tokens"]) for answer in answers)
    first, own = next(iter(results.values())), results[way]
    equal = sum(a == b for a, b in zip(first, own))
    bench.row(
        table, way=way, requests=len(answers), **{
            "generated tokens": generated, "prompt tokens": prompt_tokens or None,
            "seconds": seconds, "generated a second": generated / seconds,
            "texts as the first way's": f"{equal} of {len(first)}",
            "compiled meanwhile": sum(compiles.fresh.values()),
            "read meanwhile": sum(compiles.read.values()),
        },
    )  # fmt: skip
