"""The same judge in plain calls of the ``openai`` package: strings, threads, retries by hand."""

from __future__ import annotations

import base64
import json
import mimetypes
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DIMENSIONS = ["Clarity", "Originality", "Evidence"]
REPORT = r'\{"summary": "[\w\s,]+\.", "grade": "[ABCD][+-]?"\}'
TRIES = 3


def turn(role, content):
    return {"role": role, "content": content}


def complete(client, model, messages, begun="", **options):
    """The reply; it goes on with what the assistant has ``begun``."""
    if begun:
        messages = [*messages, turn("assistant", begun)]
    options = {"max_tokens": 128, **options}
    reply = client.chat.completions.create(model=model, messages=messages, **options)
    text = reply.choices[0].message.content
    if text is None:
        raise ValueError(f"the model gave no text: {reply.choices[0].finish_reason}")
    return text.removeprefix(begun)


def complete_as(client, model, messages, pattern):
    """A reply that matches ``pattern``, asking again where it does not."""
    for _ in range(TRIES):
        text = complete(client, model, messages)
        if re.fullmatch(pattern, text):
            return text
        complaint = f"{text!r} does not match. Answer with text that matches {pattern}"
        messages = [*messages, turn("assistant", text), turn("user", complaint)]
    raise ValueError(f"after {TRIES} tries the reply is still {text!r}")


def judge_dimension(client, model, messages, dimension):
    question = f"Judge the {dimension}. End your judgment with the word END."
    messages = [*messages, turn("user", question)]
    return complete(client, model, messages, "Judgment:", stop=["END"])


def judge(client, model, path, essay):
    mime = mimetypes.guess_type(path)[0] or "image/png"
    data = base64.b64encode(Path(path).read_bytes()).decode()
    picture = {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}
    text = {"type": "text", "text": "Essay: " + essay}
    messages = [
        turn("system", "Evaluate an essay about an image."),
        turn("user", [picture, text]),
        turn("assistant", "Sure!"),
        turn("user", "Is the essay related to the image?"),
    ]
    related = complete_as(client, model, messages, "yes|no")
    if related == "no":
        return None
    messages.append(turn("assistant", related))
    with ThreadPoolExecutor(len(DIMENSIONS)) as pool:
        futures = [
            pool.submit(judge_dimension, client, model, messages, dimension)
            for dimension in DIMENSIONS
        ]
        judgments = "\n".join(future.result() for future in futures)
    messages.append(turn("user", "Give the judgments, a summary and a letter grade."))
    begun = judgments + "\nIn summary,"
    begun += complete(client, model, messages, begun, stop=["."]) + ". The grade is"
    begun += complete(client, model, messages, begun, max_tokens=4)
    messages.append(turn("assistant", begun))
    messages.append(turn("user", 'Return {"summary": ..., "grade": ...} as JSON.'))
    report = complete_as(client, model, messages, REPORT)
    return json.loads(report)
