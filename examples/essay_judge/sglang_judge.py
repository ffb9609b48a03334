"""The essay judge of the SGLang paper (Figure 2), for any backend that takes images."""

from __future__ import annotations

import json

import sglang as sgl

DIMENSIONS = ["Clarity", "Originality", "Evidence"]
REPORT = r'\{"summary": "[\w\s,]+\.", "grade": "[ABCD][+-]?"\}'


@sgl.function
def judge(s, path, essay):
    s += sgl.system("Evaluate an essay about an image.")
    s += sgl.user(sgl.image(path) + "Essay: " + essay)
    s += sgl.assistant("Sure!")
    s += sgl.user("Is the essay related to the image?")
    s += sgl.assistant(sgl.select("related", ["yes", "no"]))
    if s["related"] == "no":
        return None
    forks = s.fork(len(DIMENSIONS))
    for fork, dimension in zip(forks, DIMENSIONS):
        fork += sgl.user(f"Judge the {dimension}. End your judgment with the word END.")
        fork += sgl.assistant("Judgment:" + sgl.gen("judgment", stop="END"))
    judgments = "\n".join(fork["judgment"] for fork in forks)
    s += sgl.user("Give the judgments, a summary and a letter grade.")
    with s.assistant():
        s += judgments + "\nIn summary," + sgl.gen("summary", stop=".")
        s += ". The grade is" + sgl.gen("grade", max_tokens=4)
    s += sgl.user('Return {"summary": ..., "grade": ...} as JSON.')
    s += sgl.assistant(sgl.gen("report", regex=REPORT))
    return json.loads(s["report"])
