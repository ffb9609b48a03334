"""Train the model: `python -m tools.train_tiny.train --out build/tiny`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tqdm import tqdm

from tools.train_tiny.circuit import write_induction_circuit
from tools.train_tiny.corpus import COPYING_LEARNT, Batch, make_batch
from tools.train_tiny.files import load_exported
from tools.train_tiny.model import Shape, TinyLlama
from tools.train_tiny.optimizer import build_optimizers
from tools.train_tiny.replicas import Replica, run
from tools.train_tiny.tokenizer import load_tokenizer, train_tokenizer

SMOKE = {
    "steps": 12,
    "batch_tokens": 512,
    "vocab": 600,
    "tokenizer_samples": 300,
    "hidden": 64,
    "layers": 2,
    "ffn": 64,
    "save_every": 6,
    "workers": 0,
    "threads": 1,
}
"""Settings of `--smoke`: every part of the recipe runs, nothing is learnt."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of checkpoints and logs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=7000, help="length of the whole schedule")
    parser.add_argument("--stop-at", type=int, help="stop here, as an interrupted run would")
    parser.add_argument("--batch-tokens", type=int, default=6144)
    parser.add_argument("--matrix-lr", type=float, default=0.016)
    parser.add_argument("--other-lr", type=float, default=0.005)
    parser.add_argument("--matrix-decay", type=float, default=0.1, help="weight decay of Muon")
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--decay-share", type=float, default=0.5)
    parser.add_argument(
        "--begin-with", type=Path, metavar="FOLDER",
        help="exported model to go on from, with its tokenizer; the schedule then leaves out the "
        "stages that teach copying",
    )  # fmt: skip
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json to use; default: trained")
    parser.add_argument("--vocab", type=int, default=3072)
    parser.add_argument("--tokenizer-samples", type=int, default=20_000)
    parser.add_argument("--hidden", type=int, default=Shape.hidden_size)
    parser.add_argument("--layers", type=int, default=Shape.num_hidden_layers)
    parser.add_argument("--ffn", type=int, default=Shape.intermediate_size)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1, help="processes that write batches")
    parser.add_argument("--threads", type=int, default=0, help="0 leaves the choice to torch")
    parser.add_argument("--replicas", type=int, default=1, help="processes that share each batch")
    parser.add_argument(
        "--bfloat16", action="store_true",
        help="products in bfloat16, for processors that have instructions for it",
    )  # fmt: skip
    parser.add_argument("--smoke", action="store_true", help="toy sizes, to see that it runs")
    settings = parser.parse_args(arguments)
    if settings.smoke:
        for name, value in SMOKE.items():
            if getattr(settings, name) == parser.get_default(name):
                setattr(settings, name, value)
    return settings


def rate(step: int, settings: argparse.Namespace) -> float:
    """Warm-up, a plateau, and a linear decay to zero."""
    up = min(1.0, (step + 1) / max(1, settings.warmup))
    down = (settings.steps - step) / max(1.0, settings.steps * settings.decay_share)
    return float(min(up, down, 1.0))


@lru_cache(maxsize=1)
def worker_tokenizer(path: str) -> Tokenizer:
    """The tokenizer of a batch-writing process, read once."""
    return load_tokenizer(Path(path))


def batch_of(path: str, seed: int, step: int, progress: float, batch_tokens: int) -> Batch:
    """The batch of a step, callable in another process."""
    return make_batch(worker_tokenizer(path), seed, step, progress, batch_tokens)


def progress_at(step: int, settings: argparse.Namespace) -> float:
    """The share of the stages that is done, 0 to 1."""
    first = COPYING_LEARNT if settings.begin_with else 0.0
    return first + (1 - first) * float(step / settings.steps)


def batches(settings: argparse.Namespace, path: Path, start: int, end: int) -> Iterator[Batch]:
    """Batches in order, written ahead by other processes if there are any."""

    def arguments(step: int) -> tuple[str, int, int, float, int]:
        progress = progress_at(step, settings)
        return str(path), settings.seed, step, progress, settings.batch_tokens

    if settings.workers == 0:
        for step in range(start, end):
            yield batch_of(*arguments(step))
        return
    with ProcessPoolExecutor(settings.workers) as pool:
        ahead: deque[Future[Batch]] = deque()
        for step in range(start, end):
            while len(ahead) < 8 and step + len(ahead) < end:
                ahead.append(pool.submit(batch_of, *arguments(step + len(ahead))))
            yield ahead.popleft().result()


def prepare_tokenizer(settings: argparse.Namespace) -> Path:
    """Copy or train the tokenizer, unless the folder has it already."""
    path: Path = settings.out / "tokenizer.json"
    settings.out.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return path
    given = settings.tokenizer
    if settings.begin_with is not None:
        given = settings.begin_with / "tokenizer.json"
    if given is not None:
        shutil.copyfile(given, path)
    else:
        trained = train_tokenizer(settings.seed, settings.vocab, settings.tokenizer_samples)
        trained.save(str(path))
    return path


def save(path: Path, model: TinyLlama, optimizers: list[torch.optim.Optimizer], step: int) -> None:
    """Write a checkpoint; the rename makes a killed run leave the last whole one."""
    state: dict[str, Any] = {
        "shape": model.shape.to_dict(),
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "step": step,
    }
    torch.save(state, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def load_model(path: Path) -> tuple[TinyLlama, dict[str, Any]]:
    """The model of a checkpoint, and the whole checkpoint."""
    state = torch.load(path, weights_only=True)
    model = TinyLlama(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    return model, state


def build(
    settings: argparse.Namespace, vocab_size: int, replica: Replica
) -> tuple[TinyLlama, list[torch.optim.Optimizer], int]:
    """Model, optimizers and first step: from the checkpoint if there is one, else from the seed."""
    checkpoint = settings.out / "checkpoint.pt"
    dtype = torch.bfloat16 if settings.bfloat16 else torch.float32
    how = (settings.matrix_lr, settings.other_lr, replica, dtype, settings.matrix_decay)
    torch.manual_seed(settings.seed)
    if not checkpoint.exists() and settings.begin_with is not None:
        model = load_exported(settings.begin_with)
        return model, build_optimizers(model, *how), 0
    if not checkpoint.exists():
        shape = Shape(
            vocab_size=vocab_size,
            hidden_size=settings.hidden,
            num_hidden_layers=settings.layers,
            intermediate_size=settings.ffn,
        )
        model = TinyLlama(shape)
        write_induction_circuit(model)
        return model, build_optimizers(model, *how), 0
    model, state = load_model(checkpoint)
    optimizers = build_optimizers(model, *how)
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        asked = [group["lr"] for group in optimizer.param_groups]
        optimizer.load_state_dict(saved)
        for group, lr in zip(optimizer.param_groups, asked, strict=True):
            group["base_lr"] = lr
    return model, optimizers, int(state["step"])


def step_once(
    replica: Replica,
    model: TinyLlama,
    optimizers: list[torch.optim.Optimizer],
    batch: Batch,
    factor: float,
    bfloat16: bool = False,
) -> float:
    """One update; returns the loss."""
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        loss = replica.backward(model, batch)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("base_lr", group["lr"]) * factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss


def train(settings: argparse.Namespace) -> Path:
    """Run the schedule, from the last checkpoint if there is one."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    prepare_tokenizer(settings)
    run(settings.replicas, train_replica, settings)
    checkpoint: Path = settings.out / "checkpoint.pt"
    return checkpoint


def train_replica(replica: Replica, settings: argparse.Namespace) -> None:
    """The schedule as one replica sees it; the first one logs and saves."""
    tokenizer_path = settings.out / "tokenizer.json"
    vocab_size = load_tokenizer(tokenizer_path).get_vocab_size()
    model, optimizers, start = build(settings, vocab_size, replica)
    checkpoint: Path = settings.out / "checkpoint.pt"
    end = min(settings.steps, settings.stop_at or settings.steps)
    began, seen = time.perf_counter(), 0
    bar = tqdm(total=settings.steps, initial=start, desc="train", mininterval=10, smoothing=0.05,
               disable=not replica.first)  # fmt: skip
    with (settings.out / "log.jsonl" if replica.first else Path(os.devnull)).open("a", 1) as log:
        for step, batch in enumerate(batches(settings, tokenizer_path, start, end), start=start):
            loss = step_once(replica, model, optimizers, batch, rate(step, settings),
                             settings.bfloat16)  # fmt: skip
            seen += batch.tokens.size
            speed = seen / (time.perf_counter() - began)
            row = {"step": step, "loss": round(loss, 4), "length": batch.tokens.shape[1]}
            log.write(json.dumps({**row, "tokens_per_second": round(speed)}) + "\n")
            bar.set_postfix(loss=f"{loss:.3f}", speed=f"{speed:.0f}", refresh=False)
            bar.update()
            if replica.first and ((step + 1) % settings.save_every == 0 or step + 1 == end):
                save(checkpoint, model, optimizers, step + 1)
    bar.close()


if __name__ == "__main__":
    train(parse())
