"""The RAG pipeline's retrieval against BM25 written out, and its prompts' form."""

from __future__ import annotations

import math
import re

from hypothesis import given as drawn
from hypothesis import strategies as st

from benchmark.dspy_rag.claim import CLAIM, messages, right, solved
from benchmark.dspy_rag.retrieve import PASSAGES, Index
from benchmark.harness.claim import Scale

WORD = st.sampled_from(["red", "key", "shed", "The", "the", "lamp"])
TEXT = st.lists(WORD, min_size=1, max_size=8).map(" ".join)


def bm25(question: str, passages: list[str], passage: str) -> float:
    """Robertson and Zaragoza 2009, with k1 = 1.5 and b = 0.75, term by term."""
    split = [text.lower().split() for text in passages]
    mean = sum(map(len, split)) / len(split)
    own, score = passage.lower().split(), 0.0
    for term in question.lower().split():
        holders = sum(term in other for other in split)
        idf = math.log(1 + (len(split) - holders + 0.5) / (holders + 0.5))
        often = own.count(term)
        score += idf * often * 2.5 / (often + 1.5 * (0.25 + 0.75 * len(own) / mean))
    return score


@drawn(st.lists(TEXT, min_size=1, max_size=6), TEXT)
def test_search_finds_the_best_by_bm25(passages: list[str], question: str) -> None:
    found = Index(tuple(passages)).search(question, 3)
    assert len(found) == min(3, len(passages))
    scores = [bm25(question, passages, passage) for passage in found]
    best = sorted((bm25(question, passages, passage) for passage in passages), reverse=True)
    assert all(math.isclose(one, other) for one, other in zip(scores, best))


def test_the_passage_that_answers_is_found() -> None:
    for item in CLAIM.items(Scale(20, True), 2):
        found = Index(item["passages"]).search(item["question"])
        assert len(found) == PASSAGES
        assert any(item["expected"] in passage for passage in found)


def test_questions_of_the_examples_are_not_asked() -> None:
    items = CLAIM.items(Scale(80, True), 0)
    assert not {demo["question"] for demo in items[0]["demos"]} & {i["question"] for i in items}


def test_the_form_of_a_conversation() -> None:
    (item,) = CLAIM.items(Scale(1), 0)
    system, *turns = messages(item)
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 2 + ["user"]
    headings = re.findall(r"\[\[ ## (\w+) ## \]\]", system["content"])
    assert headings == ["context", "question", "reasoning", "answer", "completed"]
    assert item["question"] in turns[-1]["content"]
    assert turns[-1]["content"].endswith("`[[ ## completed ## ]]`.")


def test_an_answer_is_read_from_its_field() -> None:
    (item,) = CLAIM.items(Scale(1), 0)
    demo = {"reasoning": "So it is.", "answer": item["expected"]}
    assert right(item, solved(demo))
    assert right(item, f" {item['expected']}.")
    assert not right(item, solved({**demo, "answer": "something else"}))
