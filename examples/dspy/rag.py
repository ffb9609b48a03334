"""Questions over a small corpus: BM25 finds a passage, a DSPy predictor answers from it.

Needs `pip install 'dspy>=3.4'`. Without --url it runs on the embedded model in this process.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import sglang as sgl
from sglang.integrations.dspy import SGLang

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
QUESTIONS = [
    "Where does Ines live?",
    "Where does Tomas live?",
    "How old is Nadia?",
    "Who owns the sword?",
    "Where is the atlas?",
    "How much is the lamp?",
]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def search(query: str, passages: list[str], k: int) -> list[str]:
    """The ``k`` best passages by BM25 (k1 = 1.5, b = 0.75)."""
    bags = [Counter(words(passage)) for passage in passages]
    mean = sum(bag.total() for bag in bags) / len(bags)

    def score(bag: Counter[str]) -> float:
        length, found = 1.5 * (0.25 + 0.75 * bag.total() / mean), 0.0
        for word in words(query):
            holders = sum(word in other for other in bags)
            rarity = math.log(1 + (len(bags) - holders + 0.5) / (holders + 0.5))
            found += rarity * bag[word] * 2.5 / (bag[word] + length)
        return found

    ranked = sorted(zip(bags, passages), key=lambda pair: score(pair[0]), reverse=True)
    return [passage for _, passage in ranked[:k]]


class Bare(dspy.Adapter):
    """Inputs line by line, and the reply is the answer: the embedded model has 3 million
    parameters and cannot follow DSPy's own formats."""

    def format(self, signature: Any, demos: Any, inputs: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"role": "user", "content": "\n".join(inputs.values())}]

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        return dict.fromkeys(signature.output_fields, completion.strip())


class Rag(dspy.Module):
    """Retrieve, then answer."""

    def __init__(self, passages: list[str], predictor: Any, k: int) -> None:
        super().__init__()
        self.passages, self.k = passages, k
        self.answer = predictor("context, question -> answer")

    def forward(self, question: str) -> Any:
        context = "\n".join(search(question, self.passages, self.k))
        return self.answer(context=context, question=question)


def main(url: str = "") -> list[str]:
    passages = [path.read_text().strip() for path in sorted(CORPUS.glob("*.txt"))]
    if url:
        target: str | sgl.Engine = url
        adapter = dspy.JSONAdapter()
        rag = Rag(passages, dspy.ChainOfThought, k=3)
    else:
        target, adapter = sgl.Engine(log_level="warning"), Bare()
        rag = Rag(passages, dspy.Predict, k=1)
    with dspy.context(lm=SGLang(target, temperature=0.0, cache=False), adapter=adapter):
        answers = [rag(question).answer for question in QUESTIONS]
    for question, answer in zip(QUESTIONS, answers):
        print(f"{question} {answer}")
    return answers


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="", help="a running server with a larger model")
    main(parser.parse_args().url)
