"""Random regular expressions together with members of their language."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

Sampler = Callable[[random.Random], str]

WORDS = (
    "the", "The", "theory", " the", " and", "and", " about", "about", "New York", "don't", "it's",
    "Gryffindor", "HTTPServer", "camelCase", "x", " ", "  ", "    ", "\n", "\n\n", "\n    ", "\t",
    '"', '": "', '",\n', "{", "}", "[", "]", ", ", ".", "...", ".com", "://", "1", "12", "2024-06",
    "3.14", "-", " - ", "_", "(a)", "=>", "'s", "'ll", "é", "Zürich", "naïve", "東京", "日本語の",
    "🙂", "🚀🚀", "Ω", "ab", "abab", "a,b", "\r\n", " \n", "”", "’s",
)  # fmt: skip
SETS: tuple[tuple[str, str], ...] = (
    ("[a-z]", "abcehorstxyz"),
    ("[A-Z]", "ABHSTZ"),
    ("[0-9]", "0123456789"),
    (r"\d", "0179"),
    (r"\w", "abzAZ09_éß日"),
    (r"\s", " \n\t"),
    (r'[^"\\]', "aZ0 .,'é日🙂\n"),
    (".", "aZ0 \"'.,é日🙂"),
    ("[ab]", "ab"),
    ("[ \\n]", " \n"),
    ("[a-zA-Z']", "adlstvS'"),
    ("[éèß]", "éèß"),
)


def random_pattern(generator: random.Random, depth: int = 3) -> tuple[str, Sampler]:
    """A pattern in the syntax of ``re``, and a sampler of its members."""
    kind = generator.randrange(5 if depth else 2)
    if kind == 0 or (kind == 1 and generator.random() < 0.5):
        text = "".join(generator.choices(WORDS, k=generator.randint(1, 3)))
        return re.escape(text), lambda _: text
    if kind == 1:
        source, chars = generator.choice(SETS)
        return source, lambda draw: draw.choice(chars)
    if kind == 4:
        return _repeat(generator, *random_pattern(generator, depth - 1))
    parts = [random_pattern(generator, depth - 1) for _ in range(generator.randint(2, 4))]
    if kind == 2:
        return (
            "".join(f"(?:{source})" for source, _ in parts),
            lambda draw: "".join(sample(draw) for _, sample in parts),
        )
    return (
        "(?:" + "|".join(source for source, _ in parts) + ")",
        lambda draw: draw.choice(parts)[1](draw),
    )


def _repeat(generator: random.Random, source: str, sample: Sampler) -> tuple[str, Sampler]:
    low = generator.randint(0, 2)
    high = max(1, low + generator.choice([0, 1, 3]))
    suffix = generator.choice([f"{{{low},{high}}}", "*" if low == 0 else "+"])
    least = {"*": 0, "+": 1}.get(suffix, low)
    return (
        f"(?:{source}){suffix}",
        lambda draw: "".join(sample(draw) for _ in range(draw.randint(least, max(high, least)))),
    )
