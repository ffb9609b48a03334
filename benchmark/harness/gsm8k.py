"""GSM8K: grade-school problems whose answer is a number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from benchmark.harness import data

MARK = "#### "
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def problems() -> list[tuple[str, str, float]]:
    """Question, solution in words, and the number, of each."""
    found = []
    for record in data.records("gsm8k.jsonl"):
        solution, _, last = record["answer"].rpartition(MARK)
        value = number(last)
        assert value is not None
        found.append((record["question"], re.sub(r"<<.*?>>", "", solution).strip(), value))
    return found


def number(text: str) -> float | None:
    """The last number in ``text``, or None."""
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def vote(texts: Iterable[str]) -> float | None:
    """The number that most of ``texts`` end in, the first of those; None where none has one."""
    counts = Counter(value for text in texts if (value := number(text)) is not None)
    return counts.most_common(1)[0][0] if counts else None
