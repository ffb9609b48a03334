"""One call that compares an architecture with transformers, every way through the paged cache.

Each ``test_*_parity.py`` of the models lists ``CASES`` and calls ``check`` on each of them. The
list of verified models that ``sglang models`` prints is read from these (``test_verified.py``).
"""

from __future__ import annotations

import random
import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from helpers import hf_models
from helpers.paged import Paged, Sequence
from helpers.paths import TESTS
from torch import Tensor

MODELS = next((TESTS / "cpu").rglob("test_split_parity.py")).parent
TOLERANCE = 1e-4
LENGTHS = (40, 1, 13, 26)  # tokens of the texts whose logits are compared
PROMPTS = (3, 30)  # tokens of the texts that are continued
NEW_TOKENS = 32


@dataclass(frozen=True)
class Case:
    """One random small model.

    Attributes:
        settings: of its config, over ``hf_models.SMALL``.
        old_style: RoPE settings spelled as transformers releases before 5 did.
        decoded: the reference decodes token by token: for models whose whole prompt is computed
            otherwise in transformers (``dynamic`` in ``layers/rotary.py`` tells why).
        options: settings of the worker.
    """

    architecture: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    old_style: bool = False
    decoded: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.architecture}-{self.seed}"


def check(case: Case, directory: Path, model: Any = None) -> None:
    """Save the case's random model (or ``model``) in ``directory``; compare logits in float32
    whole, chunked and token by token, and greedy texts."""
    if model is None:
        model = hf_models.make(case.architecture, case.seed, **case.settings)
    path = hf_models.save(model, directory, case.old_style)
    check_saved(
        path,
        case,
        model.config.get_text_config().vocab_size,
        lambda text: hf_models.logits(model, text, case.decoded),
        lambda prompt: hf_models.greedy(model, prompt, NEW_TOKENS, case.decoded),
    )


def check_saved(
    path: str,
    case: Case,
    vocab: int,
    logits: Callable[[list[int]], Tensor],
    greedy: Callable[[list[int]], list[int]],
) -> None:
    """Compare the checkpoint with a reference: its logits of a text [tokens, vocab], and the
    tokens it puts after a prompt."""
    r = random.Random(case.seed)
    texts = [[r.randrange(vocab) for _ in range(n)] for n in LENGTHS]
    wanted = [logits(text) for text in texts]
    assert wanted[0].std() > 0.5, "logits too flat to tell a right model from a wrong one"
    prompts = [[r.randrange(vocab) for _ in range(n)] for n in PROMPTS]
    continued = [greedy(prompt) for prompt in prompts]
    assert len({tuple(tokens) for tokens in continued}) == len(prompts), "texts that do not differ"
    assert len(set(continued[0])) > 3, "a text that repeats one token tells little"
    # The native path is a tape or layer by layer, as the model can.
    for kernels, page_size in (("native", 1), ("native", 4), ("torch", 4 if case.seed % 2 else 1)):
        paged = Paged(path, page_size, case.seed, cpu_kernels=kernels, **case.options)
        for name, way in WAYS.items():
            sequences = [Sequence(text) for text in texts]
            way(paged, sequences, r)
            where = f"{name}, {kernels} kernels, pages of {page_size}"
            compare([s.result for s in sequences], wanted, where)
        if page_size == 4 or kernels == "torch":
            got = paged.greedy(prompts, NEW_TOKENS)
            assert got == continued, f"greedy text, {kernels} kernels"


@cache
def all_cases() -> list[Any]:
    """``CASES`` of every file below ``test/cpu/srt/models``: those of this file and, of multimodal
    models, others with an ``architecture``."""
    found: list[Any] = []
    for path in sorted(MODELS.rglob("test_*_parity.py")):
        if path.name != "test_split_parity.py":
            found += runpy.run_path(str(path)).get("CASES", [])
    return [case for case in found if hasattr(case, "architecture")]


def compare(results: list[Tensor], wanted: list[Tensor], where: str) -> None:
    """Compare the logits [tokens, vocab] of each text."""
    for result, want in zip(results, wanted, strict=True):
        worst = (result - want).abs().max().item()
        assert worst < TOLERANCE, f"{where}: logits differ by {worst:.2g}"


def hold_bits(paged: Paged) -> None:
    """A row has the same bits alone, in one piece, and in pieces beside others."""
    r = random.Random(1)
    texts = [[r.randrange(97) for _ in range(n)] for n in (23, 5, 31, 1, 12)]
    alone = [Sequence(text) for text in texts]
    whole(paged, alone, r)
    together = [Sequence(text) for text in texts]
    while left := [s for s in together if s.done < len(s.tokens)]:
        paged.advance([(s, r.randint(1, min(9, len(s.tokens) - s.done))) for s in left])
    for sequence, want in zip(together, alone):
        assert torch.equal(sequence.result, want.result)


def hold_shared_prefix(paged: Paged, model: Any, page_size: int) -> None:
    """Three rows share a prefix that the first of them computes in the same pass."""
    r = random.Random(5)
    prefix = [r.randrange(97) for _ in range(16)]
    texts = [prefix + [r.randrange(97) for _ in range(n)] for n in (6, 9, 1)]
    first = Sequence(texts[0])
    rows = [paged.row(first, len(texts[0]))]
    for text in texts[1:]:
        sharing = Sequence(text, first.pages[: 16 // page_size], done=16)
        rows.append(paged.row(sharing, len(text) - 16))
    # The reader may come before the writer: all rows are stored before any attends.
    got = paged.logits([rows[1], rows[0], rows[2]])
    want = [hf_models.logits(model, text) for text in texts]
    compare(got, [want[1][16:], want[0], want[2][16:]], "a prefix of the same pass")


def whole(paged: Paged, sequences: list[Sequence], r: random.Random) -> None:
    """Each prompt in one piece, alone."""
    for sequence in sequences:
        paged.advance([(sequence, len(sequence.tokens))])


def chunked(paged: Paged, sequences: list[Sequence], r: random.Random) -> None:
    """Random pieces of random sequences in each batch."""
    while left := [s for s in sequences if s.done < len(s.tokens)]:
        r.shuffle(left)
        chosen = left[: r.randint(1, len(left))]
        paged.advance([(s, r.randint(1, min(12, len(s.tokens) - s.done))) for s in chosen])


def token_by_token(paged: Paged, sequences: list[Sequence], r: random.Random) -> None:
    """One token of every sequence in each batch."""
    while left := [s for s in sequences if s.done < len(s.tokens)]:
        paged.advance([(s, 1) for s in left])


WAYS: dict[str, Callable[[Paged, list[Sequence], random.Random], None]] = {
    "whole": whole,
    "chunked": chunked,
    "token by token": token_by_token,
}
