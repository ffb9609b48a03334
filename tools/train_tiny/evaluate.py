"""Greedy accuracy on fresh samples: `python -m tools.train_tiny.evaluate --model FOLDER`.

Samples come from another seed and use held-out words wherever a job copies words. The last answer
of a sample counts, after the right earlier ones, and it must agree to the letter.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tqdm import tqdm

from tools.train_tiny.export import load_exported
from tools.train_tiny.model import TinyLlama, complete
from tools.train_tiny.sample import END_OF_TEXT, IM_END, Sample
from tools.train_tiny.tasks import GENERATORS, LONG_TASKS, write
from tools.train_tiny.tasks.lists import TIPS
from tools.train_tiny.tokenizer import load_tokenizer
from tools.train_tiny.words import CATEGORIES, Words

BATCH = 32
FORMS = ("chat", "raw")


@dataclass(frozen=True)
class Question:
    """One held-out sample, cut before its last answer."""

    group: str
    form: str
    prompt: str
    expected: str


def questions(seed: int, count: int, lengths: list[int]) -> list[Question]:
    """`count` questions for each job and form, and for each long job at each context length."""
    found = []
    words = Words(held_out=True)
    wanted = [(name, 0) for name in GENERATORS]
    wanted += [(name, length) for name in LONG_TASKS for length in lengths]
    for name, length in wanted:
        for form in FORMS:
            rng = random.Random(f"evaluate {seed} {name} {length} {form}")
            for _ in range(count):
                size = length or rng.randrange(30, 150)
                sample = write(GENERATORS[name](rng, words, size), rng, form)
                found.append(_question(sample, name if not length else f"{name}@{length}"))
    return found


def _question(sample: Sample, group: str) -> Question:
    prompt, expected = sample.split_last()
    for end in (END_OF_TEXT, IM_END):
        expected = expected.removesuffix(end)
    return Question(group, sample.form, prompt, expected.strip())


def is_right(question: Question, answer: str) -> bool:
    """Equal to the expected text, or for free lists: as many different members as were asked."""
    expected = question.expected
    if question.group in ("list_category", "list_tips") and expected.startswith("1. "):
        asked = question.prompt.lower()
        lines = answer.split("\n")
        items = {line.partition(". ")[2] for line in lines}
        pools = [v for k, v in {**CATEGORIES, **TIPS}.items() if k in asked]
        numbers = [line.partition(". ")[0] for line in lines]
        counted = numbers == [str(i + 1) for i in range(len(expected.split("\n")))]
        return counted and len(items) == len(lines) and any(items <= set(p) for p in pools)
    return answer == expected


def answers(model: TinyLlama, tokenizer: Tokenizer, asked: list[Question]) -> list[str]:
    """Greedy answers, in batches of similar length."""
    stops = frozenset(tokenizer.token_to_id(token) for token in (END_OF_TEXT, IM_END))
    prompts = [tokenizer.encode(q.prompt, add_special_tokens=False).ids for q in asked]
    limits = [len(tokenizer.encode(q.expected).ids) + 6 for q in asked]
    order = sorted(range(len(asked)), key=lambda i: len(prompts[i]))
    results = [""] * len(asked)
    bar = tqdm(total=len(asked), desc="evaluate", mininterval=5)
    while order:
        width = BATCH if len(prompts[order[0]]) < 500 else 4
        chosen, order = order[:width], order[width:]
        outputs = complete(
            model, [prompts[i] for i in chosen], max(limits[i] for i in chosen), stops
        )
        for index, output in zip(chosen, outputs, strict=True):
            results[index] = tokenizer.decode(output, skip_special_tokens=False).strip()
        bar.update(len(chosen))
    bar.close()
    return results


def evaluate(
    folder: Path, seed: int, count: int, lengths: list[int], show: int = 0
) -> dict[str, dict[str, float]]:
    """Accuracy by job and form, with the mean; mistakes are printed if asked for."""
    asked = questions(seed, count, lengths)
    given = answers(load_exported(folder), load_tokenizer(folder / "tokenizer.json"), asked)
    marks: dict[str, dict[str, list[bool]]] = {}
    shown: dict[str, int] = {}
    for question, answer in zip(asked, given, strict=True):
        right = is_right(question, answer)
        marks.setdefault(question.group, {}).setdefault(question.form, []).append(right)
        if not right and shown.setdefault(question.group, 0) < show:
            shown[question.group] += 1
            tail = question.prompt[-300:]
            print(f"--- {question.group}\n{tail}\n  got  {answer!r}\n  want {question.expected!r}")
    table = {
        group: {form: sum(values) / len(values) for form, values in forms.items()}
        for group, forms in marks.items()
    }
    table["mean"] = {f: sum(row[f] for row in table.values()) / len(table) for f in FORMS}
    return table


def as_markdown(table: dict[str, dict[str, float]]) -> str:
    """The table of the README."""
    lines = ["| job | chat | raw |", "| --- | --- | --- |"]
    for group, row in table.items():
        lines.append(f"| {group} | {100 * row['chat']:.0f} % | {100 * row['raw']:.0f} % |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="exported folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=50, help="samples for each job and form")
    parser.add_argument("--lengths", type=int, nargs="*", default=[500, 1000, 2000])
    parser.add_argument("--show", type=int, default=0, help="mistakes printed for each job")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the table here")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    table = evaluate(chosen.model, chosen.seed, chosen.count, chosen.lengths, chosen.show)
    print(as_markdown(table))
    if chosen.json:
        chosen.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
