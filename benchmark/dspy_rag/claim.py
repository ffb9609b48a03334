"""DSPy's pipeline for retrieval-augmented generation: three passages are retrieved, and a chain of
thought with solved examples answers from them.

The program here is ours, in the form of DSPy's chat prompts (3.4), so that it runs everywhere and
every side gets the same requests. What DSPy itself sends is measured by ``python -m
benchmark.dspy_rag`` where DSPy is installed (``pipeline``): the same prompts, to the letter, or it
fails.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import sglang as sgl

from benchmark.dspy_rag.retrieve import index
from benchmark.harness.claim import Api, Claim, Item, Message, Scale
from benchmark.harness.facts import Fact, facts, passage

TASK = "Answer questions with short factoid answers."
ABOUT = {"context": "may contain relevant facts", "answer": "often between 1 and 5 words"}
INPUTS, OUTPUTS = {"context": "list[str]", "question": "str"}, {"reasoning": "str", "answer": "str"}
FACTS = 2  # a passage
KNOWN = 90  # facts in all passages that are searched

Demo = Mapping[str, Any]


def items(scale: Scale, seed: int) -> list[Item]:
    draw, shots = random.Random(seed), 4 if scale.long else 2
    demos: list[Demo] = []
    found: list[Item] = []
    while len(found) < scale.items:
        known = facts(draw, KNOWN)
        passages = tuple(
            passage(draw, known[at : at + FACTS], 8 if scale.long else 3)
            for at in range(0, KNOWN, FACTS)
        )
        asked = draw.sample(known, KNOWN)
        demos = demos or [_demo(fact, passages) for fact in asked[:shots]]
        found += [
            {"demos": demos, "passages": passages, "question": fact.question,
             "tokens": 48 if scale.long else 12, "expected": fact.answer}
            for fact in asked[shots:]
        ]  # fmt: skip
    return found[: scale.items]


def _demo(fact: Fact, passages: tuple[str, ...]) -> Demo:
    return {
        "context": index(passages).search(fact.question),
        "question": fact.question,
        "reasoning": f"One of the passages says: {fact.sentence}",
        "answer": fact.answer,
    }


def fields(values: Mapping[str, Any]) -> str:
    """Values under their headings."""
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in values.items()
    }
    return "\n\n".join(f"[[ ## {name} ## ]]\n{text}" for name, text in texts.items())


def system() -> str:
    """System message of DSPy: the task and its form."""
    form = fields({name: f"{{{name}}}" for name in (*INPUTS, *OUTPUTS)})
    return (
        f"Your input fields are:\n{_listed(INPUTS)}\nYour output fields are:\n{_listed(OUTPUTS)}\n"
        "All interactions will be structured in the following way, with the appropriate values "
        f"filled in.\n\n{form}\n\n[[ ## completed ## ]]\n"
        f"In adhering to this structure, your objective is: \n        {TASK}"
    )


def _listed(kinds: Mapping[str, str]) -> str:
    lines = [
        f"{number}. `{name}` ({kind}): {ABOUT.get(name, '')}"
        for number, (name, kind) in enumerate(kinds.items(), 1)
    ]
    return "\n".join(lines).rstrip()


def given(context: Sequence[str], question: str) -> str:
    return fields({"context": list(context), "question": question})


def solved(demo: Demo) -> str:
    return fields({name: demo[name] for name in OUTPUTS}) + "\n\n[[ ## completed ## ]]\n"


ASK = (
    "\n\nRespond with the corresponding output fields, starting with the field "
    "`[[ ## reasoning ## ]]`, then `[[ ## answer ## ]]`, and then ending with the marker for "
    "`[[ ## completed ## ]]`."
)


@sgl.function
def program(s, demos, passages, question, tokens, expected):
    s += sgl.system(system())
    for demo in demos:
        s += sgl.user(given(demo["context"], demo["question"])) + sgl.assistant(solved(demo))
    s += sgl.user(given(index(passages).search(question), question) + ASK)
    s += sgl.assistant(sgl.gen("reply", tokens))
    return s["reply"]


def messages(item: Item) -> list[Message]:
    found: list[Message] = [{"role": "system", "content": system()}]
    for demo in item["demos"]:
        found.append({"role": "user", "content": given(demo["context"], demo["question"])})
        found.append({"role": "assistant", "content": solved(demo)})
    context = index(item["passages"]).search(item["question"])
    return [*found, {"role": "user", "content": given(context, item["question"]) + ASK}]


async def plain(api: Api, item: Item) -> str:
    return await api.chat(messages(item), item["tokens"])


def right(item: Item, answer: str) -> bool:
    """A reply that leaves the form counts as the answer as a whole."""
    said = answer.rpartition("[[ ## answer ## ]]")[2].partition("[[ ## ")[0]
    return bool(said.strip().rstrip(".") == item["expected"])


CLAIM = Claim(
    name="dspy_rag",
    title="DSPy RAG",
    paper="Fig. 5, DSPy RAG Pipeline",
    items=items,
    program=program,
    plain=plain,
    right=right,
)
