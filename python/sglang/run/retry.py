"""Retries: requests for valid completions if the backend does not enforce a constraint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from typing import Any

from sglang.backend.base import Call, Complete, Completion, Prompt
from sglang.backend.output_constraint import OutputConstraint
from sglang.errors import InvalidOutput
from sglang.ir.chat_template import ChatTemplate
from sglang.ir.params import GenParams
from sglang.run.typed import cut_at
from sglang.semantics import reasoning


def valid_completions(
    prompt: Prompt,
    params: GenParams,
    constraint: OutputConstraint,
    model_type: str,
    template: ChatTemplate,
    tell: Callable[[dict[str, Any]], None],
) -> Generator[Call, Any, list[Completion]]:
    """Request ``params.n`` completions that satisfy a constraint which is not enforced.

    An invalid completion is requested again, with the error in the prompt, up to ``max_retries``
    times. ``tell`` is called with the meta_info of each dropped completion. ``params.dtype`` is set
    if replies continue the prompt (``OutputConstraint.free``). Raises InvalidOutput if no retry is
    left."""
    valid = []
    for completion in (yield Complete(prompt, params)):
        left = params.max_retries or 0
        while True:
            reply = answer_of(completion, model_type)
            text = constraint.extract(reply.text, continues=params.dtype is not None)
            try:
                constraint.check(text)
                break
            except InvalidOutput as error:
                if left <= 0:
                    tell(completion.meta)
                    raise _given_up(error, reply, params) from error
                asked = feedback(prompt, template, reply.text, error, constraint)
            tell(completion.meta)
            left -= 1
            (completion,) = yield Complete(asked, dataclasses.replace(params, n=1))
        valid.append(dataclasses.replace(reply, text=text))
    return valid


def answer_of(completion: Completion, model_type: str) -> Completion:
    """Return the completion with its reasoning moved from the text to its meta_info."""
    if not model_type or "reasoning_content" in completion.meta:
        return completion
    thought, answer = reasoning.split(completion.text, model_type)
    return Completion(answer, {**completion.meta, "reasoning_content": thought})


def feedback(
    prompt: Prompt,
    template: ChatTemplate,
    text: str,
    error: InvalidOutput,
    constraint: OutputConstraint,
) -> Prompt:
    """Return the prompt of a retry, after ``text``, the reply to ``prompt``, was found invalid.

    The reply becomes the assistant's turn; ``error`` and the instruction become the user's turn.
    Then the assistant's turn is opened again, with the text that the program had appended to it.
    Without roles a plain note follows the reply.
    """
    note = f"That is not valid: {error}. {constraint.instruction()}"
    if not prompt.messages:
        return dataclasses.replace(prompt, text=f"{prompt.text}{text}\n\n({note})\n\n")
    turns, begun = list(prompt.messages), ""
    if turns[-1]["role"] == "assistant":
        begun = turns.pop()["content"]
    _, closing = template.around("assistant", turns)
    reply = begun + text if isinstance(begun, str) else [*begun, text]
    turns.append({"role": "assistant", "content": reply})
    before, after = template.around("user", turns)
    turns.append({"role": "user", "content": note})
    opening, _ = template.around("assistant", turns)
    if not isinstance(begun, str):
        begun = ""  # the media are in the prompt already
    if begun:
        turns.append({"role": "assistant", "content": begun})
    added = text + closing + before + note + after + opening + begun
    return dataclasses.replace(prompt, text=prompt.text + added, messages=tuple(turns))


def _given_up(error: InvalidOutput, reply: Completion, params: GenParams) -> InvalidOutput:
    last = f"the last of {(params.max_retries or 0) + 1} answers, {reply.text!r:.80},"
    if end := cut_at(reply.meta, params.max_new_tokens):
        return InvalidOutput(f"{last} {end[0]} and is not valid: {error}; {end[1]}", reply.text)
    advice = "raise max_retries or say in the prompt what to write"
    return InvalidOutput(f"{last} is not valid: {error}; {advice}", reply.text)
