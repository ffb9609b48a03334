"""Prompt templates as people write them: what differs from call to call often comes first.

In some the order cannot change: a piece says "above", or what differs is at the end already.
"""

from __future__ import annotations

from typing import Any

import sglang as sgl


@sgl.function
def math_expert(s: Any, question: str) -> None:
    s += "Here is a question: " + question + ". "
    s += "Please act as a math expert and solve the given question."
    s += sgl.gen("answer")


@sgl.function
def translate(s: Any, text: str) -> None:
    s += "Text:\n" + text + "\n\n"
    s += "Translate the text into French. Keep names and numbers as they are.\n"
    s += "Use the polite form of address and plain words.\nTranslation:"
    s += sgl.gen("translation")


@sgl.function
def summarise_above(s: Any, article: str) -> None:
    s += article + "\n\n"
    s += "Summarise the article above in three sentences.\n"
    s += "Write for readers who know nothing of the subject. Give no opinion.\n"
    s += sgl.gen("summary")


@sgl.function
def summarise_following(s: Any, article: str) -> None:
    s += "Summarise the following article in three sentences.\n\n" + article + "\n\n"
    s += "Write for readers who know nothing of the subject.\n"
    s += "Do not begin with the words 'the article'.\nSummary:"
    s += sgl.gen("summary")


@sgl.function
def sentiment(s: Any, review: str) -> None:
    s += sgl.system("You classify reviews of products.")
    s += sgl.user(
        "Review: " + review + "\n"
        "Say whether the author is content. Answer with one word: positive, negative or mixed.\n"
        "Irony counts as what is meant, not as what is written."
    )
    s += sgl.assistant(sgl.select("label", ["positive", "negative", "mixed"]))


@sgl.function
def extract(s: Any, letter: str) -> None:
    s += sgl.user(
        letter + "\n\n"
        "Find the sender, the date and the sum of money in the letter.\n"
        "Rules:\n- write dates as YYYY-MM-DD\n- write sums without the currency\n"
        "- write 'none' for what is missing\n"
    )
    s += sgl.assistant("Sender: " + sgl.gen("sender", stop="\n"))


@sgl.function
def retrieval(s: Any, passages: str, question: str) -> None:
    s += sgl.user(
        "Passages:\n" + passages + "\n\n"
        "Question: " + question + "\n\n"
        "Answer with what the passages say and nothing else.\n"
        "Name the passage that you used. If none has the answer, say that you do not know."
    )
    s += sgl.assistant(sgl.gen("answer"))


@sgl.function
def few_shot(s: Any, word: str) -> None:
    s += "Word: " + word + "\n\n"
    s += "Give the opposite of the word, as in the examples.\n"
    s += "# Examples\nhot -> cold\nbig -> small\nearly -> late\n\nOpposite:"
    s += sgl.gen("opposite", stop="\n")


@sgl.function
def judge(s: Any, essay: str) -> None:
    s += sgl.system("You are a strict and fair judge of essays.")
    s += sgl.user(
        "Essay:\n" + essay + "\n\n"
        "Evaluate the essay by its clarity, its originality and its evidence.\n"
        "Give each a grade from 1 to 10 and one sentence that explains it."
    )
    s += sgl.assistant(sgl.gen("verdict"))


@sgl.function
def code_review(s: Any, language: str, code: str) -> None:
    s += "You review code written in " + language + ".\n"
    s += "Code:\n" + code + "\n"
    s += "List at most five faults, the gravest one first.\n"
    s += "Do not mention style. Do not repeat the code.\n"
    s += "Faults:\n" + sgl.gen("faults")


@sgl.function
def email(s: Any, recipient: str, subject: str) -> None:
    s += sgl.user(
        "Write to " + recipient + " about " + subject + ".\n"
        "The message has at most a hundred words and ends with a question.\n"
        "Do not use exclamation marks. Sign as the support team."
    )
    s += sgl.assistant(sgl.gen("message"))


@sgl.function
def sql(s: Any, schema: str, question: str) -> None:
    s += "Schema:\n" + schema + "\n"
    s += "Question: " + question + "\n"
    s += "Write one SQL query that answers the question.\n"
    s += "Use only columns of the schema. Use upper case for keywords.\n"
    s += "Query:" + sgl.gen("query", stop=";")


@sgl.function
def tutor(s: Any, name: str, topic: str) -> None:
    s += sgl.system(
        "The name of the pupil is " + name + ". "
        "You are a patient teacher. Never give the solution itself, only the next hint. "
        "Praise what is right."
    )
    s += sgl.user("Today we learn " + topic + ". Ask me a first question.")
    s += sgl.assistant(sgl.gen("question"))


@sgl.function
def rewrite(s: Any, text: str, tone: str) -> None:
    s += "Original: " + text + "\n"
    s += "Tone: " + tone + "\n"
    s += "Rewrite the original in the given tone. Keep its meaning and its length.\n"
    s += "Rewritten:" + sgl.gen("rewritten")


@sgl.function
def constants_already_first(s: Any, question: str) -> None:
    s += "You are a helpful assistant. Answer briefly and truthfully.\n"
    s += "Question: " + question + "\nAnswer:"
    s += sgl.gen("answer")


@sgl.function
def steps_in_order(s: Any, recipe: str) -> None:
    s += "Step 1. Read the next paragraph with care.\n"
    s += recipe + "\n"
    s += "Step 2. List the ingredients of the preceding paragraph.\n"
    s += sgl.gen("ingredients")


@sgl.function
def caption(s: Any, picture: Any) -> None:
    s += sgl.user(
        "The picture was taken in " + picture + ".\n"
        "Write a caption of at most ten words. Name no persons. Use the present tense."
    )
    s += sgl.assistant(sgl.gen("caption"))


@sgl.function
def plan(s: Any, goal: str, budget: str) -> None:
    s += sgl.user(
        "Goal: " + goal + "\nBudget: " + budget + "\n\n"
        "Make a plan of five steps. Each step has a cost, and the costs stay within the budget.\n"
        "Write each step on a line of its own."
    )
    s += sgl.assistant(sgl.gen("plan"))


TEMPLATES = (
    math_expert, translate, summarise_above, summarise_following, sentiment, extract, retrieval,
    few_shot, judge, code_review, email, sql, tutor, rewrite, constants_already_first,
    steps_in_order, caption, plan,
)  # fmt: skip
