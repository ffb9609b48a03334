"""Greedy accuracy on fresh samples: `python -m tools.train_tiny.evaluate --model FOLDER`.

Samples come from another seed and use held-out words wherever a job copies words. The last answer
of a sample counts, after the right earlier ones; it must agree to the letter, and end.
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

from tools.train_tiny.files import load_exported
from tools.train_tiny.model import TinyLlama, complete
from tools.train_tiny.sample import END_OF_TEXT, IM_END
from tools.train_tiny.tasks import GENERATORS, LONG_TASKS, write
from tools.train_tiny.tasks.lists import TIPS
from tools.train_tiny.tokenizer import load_tokenizer, token_id
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
                group = f"{name}@{length}" if length else name
                found.append(Question(group, form, *sample.split_last()))
    return found


def is_free(question: Question) -> bool:
    """Whether several answers are right, so that the model has to be let write its own."""
    return question.group in ("list_category", "list_tips") and "1. " in question.expected


def is_right_list(question: Question, answer: str) -> bool:
    """Whether the answer numbers as many different members of the kind as the question requests."""
    asked = question.prompt.lower()
    pools = [set(v) for k, v in {**CATEGORIES, **TIPS}.items() if k in asked]
    lines = answer.strip().split("\n")
    items = {line.partition(". ")[2] for line in lines}
    numbers = [line.partition(". ")[0] for line in lines]
    counted = numbers == [str(n + 1) for n in range(question.expected.count(". "))]
    return counted and len(items) == len(lines) and any(items <= pool for pool in pools)


def write_answer(model: TinyLlama, tokenizer: Tokenizer, question: Question) -> str:
    """The greedy answer."""
    stops = frozenset(token_id(tokenizer, token) for token in (END_OF_TEXT, IM_END))
    prompt = tokenizer.encode(question.prompt, add_special_tokens=False).ids
    limit = len(tokenizer.encode(question.expected).ids) + 8
    return tokenizer.decode(complete(model, [prompt], limit, stops)[0], skip_special_tokens=False)


@torch.inference_mode()
def marks_of(model: TinyLlama, tokenizer: Tokenizer, asked: list[Question]) -> list[bool]:
    """Whether the greedy continuation is the expected one, its end token included.

    One pass over prompt and answer tells: greedy decoding writes the expected text if and only if
    each of its tokens is the likeliest one after those before it.
    """
    pairs = [
        [tokenizer.encode(text, add_special_tokens=False).ids for text in (q.prompt, q.expected)]
        for q in asked
    ]
    order = sorted(range(len(asked)), key=lambda i: len(pairs[i][0]) + len(pairs[i][1]))
    marks = [False] * len(asked)
    bar = tqdm(total=len(asked), desc="evaluate", mininterval=5)
    while order:
        width = BATCH if len(pairs[order[0]][0]) < 500 else 4
        chosen, order = order[:width], order[width:]
        longest = max(sum(map(len, pairs[i])) for i in chosen)
        rows = [pairs[i][0] + pairs[i][1] for i in chosen]
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        causal = torch.ones(1, 1, longest, longest, dtype=torch.bool).tril()
        states, _ = model.hidden(tokens, causal)
        for row, index in enumerate(chosen):
            prompt, answer = pairs[index]
            span = states[row, len(prompt) - 1 : len(prompt) + len(answer) - 1]
            marks[index] = model.logits(span).argmax(-1).tolist() == answer
        bar.update(len(chosen))
    bar.close()
    for index, question in enumerate(asked):
        if is_free(question):
            marks[index] = is_right_list(question, write_answer(model, tokenizer, question))
    return marks


def evaluate(
    folder: Path, seed: int, count: int, lengths: list[int], show: int = 0
) -> dict[str, dict[str, float]]:
    """Accuracy by job and form, with the mean; mistakes are printed on request."""
    asked = questions(seed, count, lengths)
    model, tokenizer = load_exported(folder), load_tokenizer(folder / "tokenizer.json")
    marks: dict[str, dict[str, list[bool]]] = {}
    shown: dict[str, int] = {}
    for question, right in zip(asked, marks_of(model, tokenizer, asked), strict=True):
        marks.setdefault(question.group, {}).setdefault(question.form, []).append(right)
        if not right and shown.setdefault(question.group, 0) < show:
            shown[question.group] += 1
            got = write_answer(model, tokenizer, question)
            print(f"--- {question.group}\n{question.prompt[-300:]}\n  got  {got!r}")
            print(f"  want {question.expected!r}")
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
