"""Workload: the conversations of a benchmark, as seeded token ids, the same for every peer.

A conversation is a list of turns; one that is not multi-turn has a single turn. Where an endpoint
takes only text, every id stands for one synthetic word. Only ``random.Random`` is used, whose
sequence for a seed does not change between Python versions, so peers in other environments sample
the same work.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

_ONSETS, _VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class Turn:
    """``tokens`` are new; what came before is the conversation so far. ``output`` is how many
    tokens are to be generated."""

    tokens: tuple[int, ...]
    output: int


@dataclass(frozen=True)
class Conversation:
    number: int
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class WorkloadTokens:
    """Ids sampled uniformly from ``[low, high)``: above control tokens, inside any vocabulary."""

    low: int = 100
    high: int = 1000

    def sample(self, rng: random.Random, count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(self.low, self.high) for _ in range(count))


def shared_prefix(
    rng: random.Random,
    tokens: WorkloadTokens,
    requests: int,
    *,
    prefixes: int = 1,
    prefix_len: int = 1024,
    question_len: int = 32,
    output_len: int = 16,
) -> list[Conversation]:
    """``requests`` questions dealt over ``prefixes`` prefixes, in random order.

    With more prefixes than requests, only as many prefixes as requests occur.
    """
    heads = [tokens.sample(rng, prefix_len) for _ in range(prefixes)]
    prompts = [heads[i % prefixes] + tokens.sample(rng, question_len) for i in range(requests)]
    rng.shuffle(prompts)
    return [Conversation(i, (Turn(prompt, output_len),)) for i, prompt in enumerate(prompts)]


def multi_turn(
    rng: random.Random,
    tokens: WorkloadTokens,
    requests: int,
    *,
    turns: int = 4,
    prefix_len: int = 128,
    question_len: int = 32,
    output_len: int = 16,
) -> list[Conversation]:
    """``requests / turns`` conversations, rounded up, that share a system prompt of
    ``prefix_len``; the prompt of a turn is everything said before plus its question."""
    head = tokens.sample(rng, prefix_len)
    conversations = []
    for number in range(math.ceil(requests / turns)):
        questions = [Turn(tokens.sample(rng, question_len), output_len) for _ in range(turns)]
        questions[0] = replace(questions[0], tokens=head + questions[0].tokens)
        conversations.append(Conversation(number, tuple(questions)))
    return conversations


def random_lengths(
    rng: random.Random,
    tokens: WorkloadTokens,
    requests: int,
    *,
    input_len: tuple[int, int] = (32, 512),
    output_len: tuple[int, int] = (16, 128),
) -> list[Conversation]:
    """Prompt and output lengths uniform in the two ranges, ends included; nothing is shared."""
    return [
        Conversation(
            i, (Turn(tokens.sample(rng, rng.randint(*input_len)), rng.randint(*output_len)),)
        )
        for i in range(requests)
    ]


def distinct_tokens(conversations: list[Conversation]) -> int:
    """Prompt tokens of first turns when every common prefix counts once: the least that a cache
    can compute (the edges of the prompts' radix tree, Zheng et al. 2024, theorem 3.1)."""
    total = 0
    before: tuple[int, ...] = ()
    for prompt in sorted(conversation.turns[0].tokens for conversation in conversations):
        shared = next((i for i, pair in enumerate(zip(before, prompt)) if pair[0] != pair[1]),
                      min(len(before), len(prompt)))  # fmt: skip
        total += len(prompt) - shared
        before = prompt
    return total


def words(tokens: tuple[int, ...]) -> str:
    """One synthetic word an id, separated by spaces: the text of a prompt without a tokenizer."""
    return " ".join(map(word, tokens))


def word(token: int) -> str:
    """A pronounceable word for an id; different ids have different words."""
    syllables = []
    base = len(_ONSETS) * len(_VOWELS)
    token += base  # at least two syllables
    while token:
        token, digit = divmod(token, base)
        syllables.append(_ONSETS[digit // len(_VOWELS)] + _VOWELS[digit % len(_VOWELS)])
    return "".join(syllables)
