"""Azure: lengths of prompts and answers as a service saw them, from a published trace."""

from __future__ import annotations

import csv
import random
from pathlib import Path

from sglang.srt.commands.bench.workload import Conversation, Turn, WorkloadTokens

AZURE = Path(__file__).with_name("azure_conv_sample.csv")


def azure_lengths(
    rng: random.Random,
    tokens: WorkloadTokens,
    requests: int,
    *,
    scale: float = 1.0,
    longest: int = 4096,
    path: Path = AZURE,
) -> list[Conversation]:
    """Lengths of a public chat service's requests times ``scale``, sampled with replacement.

    Prompt and output together are cut to ``longest``: the output first keeps at most a quarter of
    it, the prompt gets the rest. Raises OSError where there is no ``path``.
    """
    rows = read_lengths(path)
    conversations = []
    for i in range(requests):
        prompt, output = rows[rng.randrange(len(rows))]
        wanted = min(max(1, round(output * scale)), max(1, longest // 4))
        length = min(max(1, round(prompt * scale)), longest - wanted)
        conversations.append(Conversation(i, (Turn(tokens.sample(rng, length), wanted),)))
    return conversations


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """(prompt, output) tokens of every row of a CSV with ContextTokens and GeneratedTokens."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in rows]
