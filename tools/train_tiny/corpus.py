"""Batches of packed samples.

A batch is a function of the seed and the step alone. That makes the position in the data part of
the step number: a run that is resumed sees what an uninterrupted run would have seen.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from tools.train_tiny.sample import END_OF_TEXT, Sample
from tools.train_tiny.tasks import draw, draw_long
from tools.train_tiny.tokenizer import token_id
from tools.train_tiny.words import Words

PROMPT_SHARE = 0.1
"""Share of the prompt tokens that are learnt; the rest of the logits is not even computed."""
PROMPT_WEIGHT = 0.15
MISSES_ALLOWED = 30

Encoded = tuple[list[int], list[float]]
"""Token ids, and the weight of predicting each of them."""


@dataclass(frozen=True)
class Stage:
    """Settings of the samples up to a share of the run: row lengths, the share of drills, and the
    longest context of the ordinary samples, which decides how many facts compete."""

    until: float
    lengths: dict[int, float]
    drills: float
    size: int


STAGES = (
    Stage(0.06, {128: 1.0}, 0.25, 70),
    Stage(0.15, {256: 1.0}, 0.1, 70),
    Stage(0.50, {256: 1.0}, 0.02, 80),
    Stage(0.72, {256: 0.85, 512: 0.1, 1024: 0.05}, 0.04, 120),
    Stage(1.00, {256: 0.56, 512: 0.22, 1024: 0.19, 2048: 0.03}, 0.04, 160),
)
"""Copying is learnt first over short distances, then the context grows."""
COPYING_LEARNT = STAGES[2].until
"""Share of the stages that a run from trained weights leaves out."""


@dataclass(frozen=True)
class Batch:
    """Token ids, the number of the packed sample each token is in, and the loss weights."""

    tokens: NDArray[np.int64]
    documents: NDArray[np.int64]
    weights: NDArray[np.float32]


def stage_at(progress: float) -> Stage:
    """The stage of a point of the run."""
    return next(stage for stage in STAGES if progress < stage.until)


def drill(rng: random.Random, vocab_size: int, size: int) -> Encoded:
    """Random tokens that come twice: copying with nothing else to learn.

    Heads that copy form late when a dozen other jobs pull at the weights. Half of the drills repeat
    a sequence; the others repeat key-value pairs in another order. Any token may occur, which also
    teaches copying the tokens that the jobs rarely use.
    """
    count = rng.randint(4, max(5, size // 3))
    if rng.random() < 0.5:
        once = [rng.randrange(3, vocab_size) for _ in range(count)]
        weight = count**-0.5
        return once + once, [0.0] * (count + 1) + [weight] * (count - 1)
    pairs = [
        [[rng.randrange(3, vocab_size) for _ in range(rng.randint(1, 3))] for _ in range(2)]
        for _ in range(max(2, count // 4))
    ]
    ids = [token for key, value in pairs for token in key + value]
    weights = [0.0] * len(ids)
    asked = rng.sample(pairs, len(pairs))
    for key, value in asked:
        ids += key + value
        weights += [0.0] * len(key) + [len(asked) ** -0.5] * len(value)
    return ids, weights


def encode(tokenizer: Tokenizer, sample: Sample, rng: random.Random) -> Encoded:
    """Token ids with the weight of predicting each; parts are encoded apart, as a program does.

    The weight of an answer grows with the root of its length: a sheet of sixty tokens should not
    outweigh sixty times a `yes`.
    """
    ids: list[int] = []
    weights: list[float] = []
    for part in sample.parts:
        piece = tokenizer.encode(part.text, add_special_tokens=False).ids
        ids += piece
        if part.answer:
            weights += [len(piece) ** -0.5] * len(piece)
        else:
            weights += [PROMPT_WEIGHT * (rng.random() < PROMPT_SHARE) for _ in piece]
    return ids, weights


def make_batch(
    tokenizer: Tokenizer, seed: int, step: int, progress: float, batch_tokens: int
) -> Batch:
    """The batch of a step."""
    rng = random.Random(f"batch {seed} {step}")
    words = Words(held_out=False)
    stage = stage_at(progress)
    length = rng.choices(list(stage.lengths), list(stage.lengths.values()))[0]
    count = max(1, batch_tokens // length)
    rows: list[list[Encoded]] = [[] for _ in range(count)]
    room = [length] * count
    if length >= 512:
        for _ in range(count):
            size = int(length * rng.uniform(0.35, 0.95))
            pair = encode(tokenizer, draw_long(rng, words, size), rng)
            _place(pair, rows, room)
    misses = 0
    while misses < MISSES_ALLOWED:
        size = rng.randrange(15, stage.size)
        if stage.drills and rng.random() < stage.drills:
            pair = drill(rng, tokenizer.get_vocab_size(), size)
        else:
            pair = encode(tokenizer, draw(rng, words, size), rng)
        misses += not _place(pair, rows, room)
    return _pack(rows, length, token_id(tokenizer, END_OF_TEXT))


def _place(
    pair: Encoded,
    rows: list[list[Encoded]],
    room: list[int],
) -> bool:
    """Put an encoded sample into the emptiest row, if it fits there."""
    best = max(range(len(rows)), key=room.__getitem__)
    if len(pair[0]) > room[best]:
        return False
    rows[best].append(pair)
    room[best] -= len(pair[0])
    return True


def _pack(rows: list[list[Encoded]], length: int, padding: int) -> Batch:
    """Lay rows out as arrays; weights are shifted to the position that predicts the token."""
    tokens = np.full((len(rows), length), padding, dtype=np.int64)
    documents = np.full((len(rows), length), -1, dtype=np.int64)
    weights = np.zeros((len(rows), length), dtype=np.float32)
    for index, row in enumerate(rows):
        start = 0
        for number, (ids, values) in enumerate(row):
            end = start + len(ids)
            tokens[index, start:end] = ids
            documents[index, start:end] = number
            weights[index, start : end - 1] = values[1:]
            start = end
    return Batch(tokens, documents, weights)
