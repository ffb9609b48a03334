"""Several questions about one image: the image is encoded and computed once, each question after
that costs its own words. Needs a multimodal model, such as LLaVA."""

from __future__ import annotations

from pathlib import Path

import sglang as sgl
from connect import connect

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "page-live-wide-light.png"
QUESTIONS = ["What does the picture show?", "Which colours are in it?", "Is there any text?"]


@sgl.function
def ask(s, picture, questions):
    s += sgl.user(sgl.image(picture) + "You will be asked about this picture.")
    s += sgl.assistant("Ask.")
    forks = s.fork(len(questions))
    for fork, question in zip(forks, questions):
        fork += sgl.user(question) + sgl.assistant(sgl.gen("answer", max_tokens=32))
    s["answers"] = [fork["answer"] for fork in forks]


def main() -> list[str]:
    try:
        state = ask.run(PICTURE, QUESTIONS, temperature=0)
    except sgl.SglangError as error:
        if "reads text only" not in str(error):
            raise
        print("skipped:", error)
        return []
    for question, answer in zip(QUESTIONS, state["answers"]):
        print(f"{question} {answer.strip()}")
    return list(state["answers"])


if __name__ == "__main__":
    connect()
    main()
