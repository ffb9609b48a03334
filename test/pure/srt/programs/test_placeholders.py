"""The paper's body: a prompt with placeholders becomes a submission."""

from __future__ import annotations

from typing import Any

import pytest
from sglang.srt.programs.call_graph import call_graph
from sglang.srt.programs.placeholders import PromptPlaceholder, submission_of
from sglang.srt.programs.submission import GenStep, TextStep, ValueStep
from sglang.srt.programs.submission_check import SubmissionError, checked

TASK = PromptPlaceholder(name="task", in_out=False, value="a snake game")
CODE = PromptPlaceholder(name="code", in_out=True, sampling_params={"max_new_tokens": 8})
TEST = PromptPlaceholder(name="test", in_out=True)


def test_a_second_output_reads_the_text_behind_the_first() -> None:
    prompt = "Do {{task}}: {{code}} Test: {{ test }}."
    submission = submission_of(prompt, [TASK, CODE, TEST], {}, 100)
    steps = submission.streams[0].steps
    assert [type(step) for step in steps] == [
        TextStep, ValueStep, TextStep, GenStep, TextStep, GenStep, TextStep,
    ]  # fmt: skip
    found = checked(submission, 100)
    calls = call_graph(found)
    assert list(calls.before(5)) == [3]
    assert calls.producers(found.variables()["test"]) == [5]


def test_transforms_come_as_a_list_its_text_or_a_name() -> None:
    for given in ([{"op": "strip"}], '[{"op": "strip"}]', '{"op": "strip"}', "strip", " strip "):
        placeholder = PromptPlaceholder(name="x", in_out=True, transforms=given)
        found = checked(submission_of("{{x}}", [placeholder], {}, 10), 10)
        assert found.variables()["x"] == (1, "x")
        assert found.transforms[1][0].to_json() == {"op": "strip"}


def bad(prompt: str, *placeholders: PromptPlaceholder) -> tuple[str, list[PromptPlaceholder]]:
    return prompt, list(placeholders)


CASES: dict[str, tuple[Any, str]] = {
    "undeclared": (bad("{{x}}"), "no placeholder"),
    "unused": (bad("a", TASK), "is not in the prompt"),
    "twice declared": (bad("{{task}}", TASK, TASK), "a name twice"),
    "output twice": (bad("{{code}} {{code}}", CODE), "the output 'code' twice"),
    "input with sampling": (bad("{{x}}", PromptPlaceholder(
        name="x", in_out=False, sampling_params={})), "it has no sampling_params"),
    "output with a value": (bad("{{x}}", PromptPlaceholder(name="x", in_out=True, value=1)),
                            "it has no value"),
    "transforms that are no JSON": (bad("{{x}}", PromptPlaceholder(
        name="x", in_out=True, transforms="[{")), "no JSON"),
    "transforms of numbers": (bad("{{x}}", PromptPlaceholder(
        name="x", in_out=True, transforms="[1]")), "list of objects"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_refusals_name_the_placeholder(case: str) -> None:
    (prompt, placeholders), message = CASES[case]
    with pytest.raises(SubmissionError, match=message):
        submission_of(prompt, placeholders, {}, 100)


def test_a_prompt_is_not_expanded_beyond_the_most_steps() -> None:
    held = PromptPlaceholder(name="x", in_out=False, value="v", transforms='[{"op": "strip"}]')
    found = submission_of("{{x}}" * 4, [held], {}, 4).streams[0].steps
    assert len({id(step.transform) for step in found if isinstance(step, ValueStep)}) == 1
    with pytest.raises(SubmissionError, match=r"more than 4 steps \(--max-program-steps\)"):
        submission_of("{{x}}" * 1_000_000, [held], {}, 4)
