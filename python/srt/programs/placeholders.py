"""Placeholders: a call as the paper's API has it, a prompt with inputs and outputs (Parrot, 7)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sglang.srt.programs.submission import (
    MAIN,
    AnyStep,
    GenStep,
    Name,
    ProgramStream,
    Ref,
    Submission,
    TextStep,
    TransformStep,
    ValueStep,
)
from sglang.srt.programs.submission_check import SubmissionError

HOLE = re.compile(r"\{\{\s*([^\s{}]{1,256})\s*\}\}")


class PromptPlaceholder(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An input or an output of a prompt.

    `in_out`: false for an input, true for an output. `semantic_var_id`: the variable that an input
    reads, or that an output makes; null: a new one. `value`: of an input that has it already.
    `transforms`: between the variable and the prompt; a list, its JSON text, or one name.
    """

    name: Name
    in_out: bool
    semantic_var_id: Name | None = None
    transforms: list[dict[str, Any]] | str | None = None
    value: str | int | float | bool | list[Any] | None = None
    sampling_params: dict[str, Any] | None = None


MAX_PLACEHOLDERS = 1024


def submission_of(
    prompt: str, placeholders: Sequence[PromptPlaceholder], inputs: Mapping[str, str], most: int
) -> Submission:
    """The submission of a prompt with ``{{name}}`` for each placeholder.

    Args:
        inputs: ids of the variables of inputs that have no value.
        most: steps of the submission.

    Raises SubmissionError, naming the placeholder.
    """
    if len(placeholders) > MAX_PLACEHOLDERS:
        raise SubmissionError(
            f"{len(placeholders)} placeholders are given; at most {MAX_PLACEHOLDERS}"
        )
    known = {each.name: each for each in placeholders}
    if len(known) < len(placeholders):
        raise SubmissionError("placeholders has a name twice; give each name once")
    transforms = {each.name: _transforms(each) for each in placeholders}
    steps: list[AnyStep] = []
    arguments: dict[str, Any] = {}
    begin, made = 0, set[str]()
    for hole in HOLE.finditer(prompt):
        placeholder = known.get(hole[1])
        if placeholder is None:
            raise SubmissionError(f"prompt has {hole[0]!r:.80}, which is no placeholder; add it")
        if hole.start() > begin:
            steps.append(TextStep(number=len(steps), text=prompt[begin : hole.start()]))
        begin = hole.end()
        if placeholder.in_out and placeholder.name in made:
            raise SubmissionError(f"prompt has the output {placeholder.name!r:.80} twice")
        made.add(placeholder.name)
        steps += _steps(placeholder, transforms[placeholder.name], len(steps))
        if len(steps) > most:
            raise SubmissionError(
                f"prompt makes more than {most} steps (--max-program-steps); cut it into several "
                "submissions"
            )
        if not placeholder.in_out:
            value = inputs.get(placeholder.name)
            arguments[placeholder.name] = placeholder.value if value is None else Ref(var=value)
    if begin < len(prompt):
        steps.append(TextStep(number=len(steps), text=prompt[begin:]))
    if unused := known.keys() - made:
        raise SubmissionError(f"placeholder {min(unused)!r:.80} is not in the prompt; remove it")
    return Submission(streams=[ProgramStream(MAIN, steps)], arguments=arguments)


def _steps(
    placeholder: PromptPlaceholder, transforms: list[dict[str, Any]], number: int
) -> list[AnyStep]:
    name = placeholder.name
    if not placeholder.in_out:
        if placeholder.sampling_params is not None:
            raise SubmissionError(
                f"placeholder {name!r:.80} is an input; it has no sampling_params"
            )
        return [ValueStep(number=number, of=Ref(argument=name), transform=transforms)]
    if placeholder.value is not None:
        raise SubmissionError(f"placeholder {name!r:.80} is an output; it has no value")
    body = {"sampling_params": placeholder.sampling_params or {}}
    gen = GenStep(number=number, name=name, body=body)
    if not transforms:
        return [gen]
    made = TransformStep(
        number=number + 1, name=name, of=Ref(step=number, name=name), transform=transforms
    )
    return [gen, made]


def _transforms(placeholder: PromptPlaceholder) -> list[dict[str, Any]]:
    """The transforms of a placeholder, in whichever form they came."""
    given: Any = placeholder.transforms
    if isinstance(given, str):
        text = given.strip()
        try:
            given = json.loads(text) if text[:1] in ("[", "{") else [{"op": text}] if text else []
        except (ValueError, RecursionError) as error:
            raise SubmissionError(
                f"placeholder {placeholder.name!r:.80}: transforms is no JSON: {error}"
            ) from None
        given = [given] if isinstance(given, dict) else given
        if not all(isinstance(each, dict) for each in given):
            raise SubmissionError(
                f"placeholder {placeholder.name!r:.80}: transforms is a list of objects with op"
            )
    return given or []
