"""Programs as people write them for SGLang, each with arguments, a script for the mock and the
result that it then has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sglang as sgl

FACTS = {"Orla": "Orla lives in Cork.", "Cork": "Cork is a harbor town."}
DIMENSIONS = ["clarity", "evidence"]


@sgl.function
def few_shot_qa(s, question):
    s += "Q: Which animal barks?\nA: dog\n\n"
    s += "Q: Which animal meows?\nA: cat\n\n"
    s += "Q: " + question + "\n"
    s += "A:" + sgl.gen("answer", max_tokens=16, stop="\n")
    return s["answer"]


@sgl.function
def tool_use(s, task):
    s += "Task: " + task + "\nThe right tool is the "
    s += sgl.gen("tool", choices=["calculator", "dictionary"]) + ".\n"
    if s["tool"] == "calculator":
        s += "Expression:" + sgl.gen("input", max_tokens=12, stop="\n")
    elif s["tool"] == "dictionary":
        s += "Word:" + sgl.gen("input", max_tokens=12, stop="\n")
    return s["tool"], s["input"]


@sgl.function
def react(s, question):
    s += "Question: " + question + "\n"
    for step in range(1, 4):
        s += f"Thought {step}:" + sgl.gen("thought", max_tokens=16, stop="\n")
        s += f"\nAction {step}:" + sgl.gen("action", max_tokens=16, stop="\n") + "\n"
        tool, _, topic = s["action"].strip(" ]").partition("[")
        if tool != "Search":
            break
        s += f"Observation {step}: " + FACTS.get(topic, "nothing found") + "\n"
    return step, topic


def propose(s, problem):
    s += sgl.user("Here is a problem: " + problem + " Give one idea.")
    forks = s.fork(3)
    for number, fork in enumerate(forks, 1):
        with fork.assistant():
            fork += f"Idea {number}:" + sgl.gen("idea", max_tokens=12, stop="\n")
    return forks


def rate(branches):
    for s in branches:
        s += sgl.user("How good is this idea, from 1 to 3?")
        s += sgl.assistant(sgl.select("rating", ["1", "2", "3"]))
    return max(branches, key=lambda s: int(s["rating"]))


@sgl.function
def tree_of_thought(s, problem):
    best = rate(propose(s, problem))
    leaf = rate(propose(best, "making it better."))
    leaf += sgl.user("Put the best idea in one sentence.")
    leaf += sgl.assistant(sgl.gen("plan", max_tokens=16))
    return leaf["rating"], leaf["plan"]


@sgl.function
def parallel_tips(s, topic):
    s += sgl.user("Give two tips for " + topic + ".")
    s += sgl.assistant("1. Sleep well. 2. Drink water.")
    forks = s.fork(2)
    for number, fork in enumerate(forks, 1):
        fork += sgl.user(f"Write a sentence about tip {number}.")
        fork += sgl.assistant(sgl.gen("sentence", max_tokens=24))
    s += sgl.user("Tip 1: " + forks[0]["sentence"] + "\nTip 2: " + forks[1]["sentence"])
    s += sgl.assistant("In short:" + sgl.gen("summary", max_tokens=16))
    return s["summary"]


@sgl.function
def multi_turn(s, first, second):
    s += sgl.system("You are a helpful assistant.")
    s += sgl.user(first)
    s += sgl.assistant(sgl.gen("answer_1", max_tokens=24))
    s += sgl.user(second)
    with s.assistant():
        s += sgl.gen("answer_2", max_tokens=24)
    return [s["answer_1"], s["answer_2"]]


@sgl.function
def scopes(s, fact):
    s += "Text: " + fact + "\n"
    with s.var_scope("dialogue"):
        s += "Question:" + sgl.gen("question", max_tokens=16, stop="\n") + "\n"
        with s.var_scope("reply"):
            s += "Answer:" + sgl.gen(max_tokens=16, stop="\n")
    return s["dialogue"], s["reply"]


@sgl.function
def skeleton_of_thought(s, question):
    s += sgl.user(question + " Write a numbered list.")
    s += sgl.assistant(sgl.gen("skeleton", max_tokens=32))
    points = s["skeleton"].splitlines()[:3]
    forks = s.fork(len(points))
    forks += [sgl.user("Say more about: " + point) for point in points]
    forks += sgl.assistant(sgl.gen("detail", max_tokens=16))
    forks.join()
    return s["detail"]


@sgl.function
def branch_solve_merge(s, essay):
    s += sgl.system("You judge essays.")
    s += sgl.user("Essay: " + essay)
    forks = s.fork(len(DIMENSIONS))
    for fork, dimension in zip(forks, DIMENSIONS):
        fork += sgl.user(f"Judge the {dimension}, then end with END.")
        fork += sgl.assistant("Judgment:" + sgl.gen("judgment", max_tokens=16, stop="END"))
    forks.join()
    with s.user():
        for dimension, judgment in zip(DIMENSIONS, s["judgment"]):
            s += dimension + ":" + judgment + "\n"
        s += "Merge these judgments."
    s += sgl.assistant(sgl.gen("merged", max_tokens=24))
    s += sgl.user("Is the essay good?")
    s += sgl.assistant(sgl.select("verdict", choices=["yes", "no"]))
    return s["merged"], s["verdict"]


@sgl.function
def nested(s, text):
    summary = few_shot_qa.run(text, temperature=0.0)
    s += "Known:" + summary["answer"] + "\n"
    judged = few_shot_qa(s, "Which animal is it?")
    return judged, summary["answer"]


@dataclass(frozen=True)
class Case:
    """``script``: as for ``Mock``; ``refused``: the source line at which tracing stops."""

    program: sgl.SglFunction
    arguments: dict[str, Any]
    script: Any
    result: Any
    refused: str = ""


CASES = {
    case.program.func.__name__: case
    for case in (
        Case(few_shot_qa, {"question": "Which animal moos?"}, [" cow\n\nQ:"], " cow"),
        Case(
            tool_use,
            {"task": "add 2 and 3"},
            ["calculator", " 2 + 3\nso"],
            ("calculator", " 2 + 3"),
            'if s["tool"] == "calculator":',
        ),
        Case(
            react,
            {"question": "Where does Orla live?"},
            [" I look.", " Search[Orla]", " She lives in Cork.", " Finish[Cork]"],
            (2, "Cork"),
            'tool, _, topic = s["action"].strip(" ]").partition("[")',
        ),
        Case(
            tree_of_thought,
            {"problem": "It is dark."},
            {"Idea 1:": " a lamp", "Idea 2:": " a fire", "Idea 3:": " a window",
             "one sentence.": "Light a fire by the window.", "1. a lamp": "1",
             " a lamp<|im_end|>\n<|im_start|>user\nHow": "1",
             " a fire<|im_end|>\n<|im_start|>user\nHow": "3",
             " a window<|im_end|>\n<|im_start|>user\nHow": "2"},
            ("3", "Light a fire by the window."),
            'return max(branches, key=lambda s: int(s["rating"]))',
        ),
        Case(
            parallel_tips,
            {"topic": "staying healthy"},
            {"tip 1.": "Sleep eight hours.", "tip 2.": "Drink a lot.", "In short:": " rest"},
            " rest",
        ),
        Case(
            multi_turn,
            {"first": "My name is Nora.", "second": "What is my name?"},
            ["Nice to meet you, Nora.", "Your name is Nora."],
            ["Nice to meet you, Nora.", "Your name is Nora."],
        ),
        Case(
            scopes,
            {"fact": "The key is in the shed."},
            [" Where is the key?\n", " the shed\n"],
            ("Question: Where is the key?\nAnswer: the shed", "Answer: the shed"),
        ),
        Case(
            skeleton_of_thought,
            {"question": "What is in a house?"},
            {"list.": "1. lamp\n2. table", "about: 1. lamp": "It is lit.", "about: 2.": "Of oak."},
            ["It is lit.", "Of oak."],
            'points = s["skeleton"].splitlines()[:3]',
        ),
        Case(
            branch_solve_merge,
            {"essay": "The sea is blue because it is."},
            {"the clarity,": " clear END", "the evidence,": " weak END x",
             "judgments.": "Clear but weak.", "good?": "no"},
            ("Clear but weak.", "no"),
        ),
        Case(nested, {"text": "Which animal purrs?"}, [" cat\n", " cat\n"], (" cat", " cat")),
    )
}  # fmt: skip
