"""Questions about several documents, encoded side by side: each attends to the task, and to itself,
as if the others were not there. Four questions follow each set of documents.

A document is a few facts, after an essay where lengths are as in the paper. Plain client code
sends the documents as one text, since OpenAI's API knows no other way: see ``line_retrieval``.
"""

from __future__ import annotations

import random

import sglang as sgl

from benchmark.harness import data
from benchmark.harness.claim import Api, Claim, Item, Scale
from benchmark.harness.facts import facts, passage

DOCUMENTS = 4
FACTS = 3  # in a document
QUESTIONS = 4  # about each set of documents
TASK = "Answer the question from the documents below.\n\n"


def items(scale: Scale, seed: int) -> list[Item]:
    draw, essays = random.Random(seed), data.records("essays.jsonl")
    found: list[Item] = []
    while len(found) < scale.items:
        known = facts(draw, DOCUMENTS * FACTS)
        before = [f"{essay}\n\n" for essay in draw.sample(essays, DOCUMENTS)]
        documents = []
        for number in range(DOCUMENTS):
            told = passage(draw, known[number::DOCUMENTS], FACTS + 1)
            essay = before[number] if scale.long else ""
            documents.append(f"Document {number + 1}:\n{essay}{told}\n\n")
        found += [
            {"documents": documents, "question": fact.question, "expected": fact.answer}
            for fact in draw.sample(known, QUESTIONS)
        ]
    return found[: scale.items]


def ask(question: str) -> str:
    return f"Question: {question}\nAnswer:"


@sgl.function
def program(s, documents, question, expected):
    s += TASK
    forks = s.fork(len(documents))
    forks += documents
    forks.join("concate_and_append")
    s += ask(question) + sgl.gen("answer", 16, stop="\n")
    return s["answer"]


async def plain(api: Api, item: Item) -> str:
    prompt = TASK + "".join(item["documents"]) + ask(item["question"])
    [answer] = await api.complete(prompt, 16, stop=["\n"])
    return answer


CLAIM = Claim(
    name="multi_document_qa",
    title="Multi-document questions (parallel encoding)",
    paper="section 2, fork and join; not in Fig. 5",
    items=items,
    program=program,
    plain=plain,
    right=lambda item, answer: answer.strip().rstrip(".") == item["expected"],
)
