"""Training samples: jobs with checkable answers, written as chat or as raw text."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)

RAW_LABELS = (
    ("Question: ", "\nAnswer:"),
    ("Question: ", "\nAnswer:"),
    ("Q: ", "\nA:"),
    ("", "\nAnswer:"),
    ("User: ", "\nAssistant:"),
    ("Task: ", "\nAnswer:"),
)


@dataclass(frozen=True)
class Turn:
    """One question and its answer.

    `given` is text the program, not the model, puts at the start of the answer (a forced prefix, or
    a tool call with its result); it is context and is not learnt.
    """

    ask: str
    answer: str
    given: str = ""


@dataclass(frozen=True)
class Job:
    """A task instance before it is written in one of the two forms.

    `raw` is a prompt of its own for the raw form, for jobs that have a natural completion format
    such as `Review: ...\\nSentiment:`; it ends right before the answer.
    """

    task: str
    turns: tuple[Turn, ...]
    system: str | None = None
    raw: str | None = None
    context: str | None = None
    shots: tuple[tuple[str, str], ...] = ()
    known_shots: int = 0


@dataclass(frozen=True)
class Part:
    """A piece of a sample's text; answers are what the model is marked on."""

    text: str
    answer: bool


@dataclass(frozen=True)
class Sample:
    """A written job: its parts in order."""

    task: str
    form: str
    parts: tuple[Part, ...] = field(default=())

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(part.text for part in self.parts)

    def split_last(self) -> tuple[str, str]:
        """Prompt and expected text of the last answer, for evaluation."""
        last = max(i for i, part in enumerate(self.parts) if part.answer)
        return "".join(p.text for p in self.parts[:last]), self.parts[last].text


def ask(task: str, question: str, answer: str, raw: str | None = None, given: str = "") -> Job:
    """A job of a single turn."""
    return Job(task, (Turn(question, answer, given),), raw=raw)


def write_chat(job: Job, rng: random.Random) -> Sample:
    """The chat template, answers ending in <|im_end|>."""
    parts: list[Part] = []
    head = "" if job.system is None else f"{IM_START}system\n{job.system}{IM_END}\n"
    for index, turn in enumerate(job.turns):
        question = turn.ask
        if job.context is not None and index == 0:
            pair = [job.context, question] if rng.random() < 0.85 else [question, job.context]
            question = rng.choice(("\n", "\n\n")).join(pair)
        head += f"{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n"
        parts.append(Part(head + turn.given, False))
        parts.append(Part(turn.answer.lstrip() if not turn.given else turn.answer, True))
        parts.append(Part(IM_END, True))
        head = "\n"
    return Sample(job.task, "chat", _merge(parts))


def write_raw(job: Job, rng: random.Random) -> Sample:
    """A completion prompt, answers ending in a newline, the text in <|endoftext|>."""
    start, end = rng.choice(RAW_LABELS)
    parts: list[Part] = []
    head = "" if job.system is None else job.system + "\n"
    head += "" if job.context is None else job.context + rng.choice(("\n", "\n\n"))
    for index, turn in enumerate(job.turns):
        prompt = f"{start}{turn.ask}{end}"
        if job.raw is not None and len(job.turns) == 1:
            prompt = job.raw
            for number, (text, answer) in enumerate(job.shots):
                parts += [Part(text, False), Part(f" {answer}", number >= job.known_shots)]
        space = "" if prompt.endswith(("\n", " ", '"')) or not prompt else " "
        last = index == len(job.turns) - 1
        if turn.given:
            parts += [Part(f"{head}{prompt}{space}{turn.given}", False)]
            parts += [Part(turn.answer + "\n", True)]
        elif space and rng.random() < 0.1:
            parts += [Part(f"{head}{prompt}{space}", False), Part(turn.answer + "\n", True)]
        else:
            parts += [Part(head + prompt, False), Part(f"{space}{turn.answer}\n", True)]
        if last:
            parts.append(Part(END_OF_TEXT, True))
        head = rng.choice(("", "\n"))
    return Sample(job.task, "raw", _merge(parts))


def _merge(parts: list[Part]) -> tuple[Part, ...]:
    """Join neighbours of one kind, so that an answer and its end are one part."""
    merged: list[Part] = []
    for part in parts:
        if merged and merged[-1].answer == part.answer:
            merged[-1] = Part(merged[-1].text + part.text, part.answer)
        else:
            merged.append(part)
    return tuple(merged)
