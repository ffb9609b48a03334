"""The evaluation harness: log-likelihoods and texts over ``local-completions``,
``local-chat-completions`` and ``sglang-generate``, on a task made here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

SUMS = [(17, 25, 42), (20, 15, 35), (3, 4, 7), (30, 12, 42)]
CHOICES = """
task: sums_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: What is {{{{a}}}} + {{{{b}}}}?\\nAnswer:"
doc_to_choice: choices
doc_to_target: 0
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
TEXTS = """
task: sums_text
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{c}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 8, do_sample: false}}
filter_list:
  - name: number
    filter: [{{function: regex, regex_pattern: "(\\\\d+)"}}, {{function: take_first}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> TaskManager:
    folder: Path = tmp_path_factory.mktemp("tasks")
    rows = [
        {"a": a, "b": b, "c": c, "choices": [str(c), str(c + 1), str(c * 3)],
         "question": f"What is {a} + {b}?"}
        for a, b, c in SUMS
    ]  # fmt: skip
    data = folder / "sums.json"
    data.write_text("\n".join(map(json.dumps, rows)))
    (folder / "choice.yaml").write_text(CHOICES.format(data=data))
    (folder / "text.yaml").write_text(TEXTS.format(data=data))
    return TaskManager(include_path=str(folder), include_defaults=False)


def score(tasks: TaskManager, model: str, task: str, metric: str, **options: Any) -> float:
    found = lm_eval.simple_evaluate(
        model=model, tasks=[task], task_manager=tasks, bootstrap_iters=0,
        model_args={"model": "m", "num_concurrent": 2, "max_retries": 1, **options},
        apply_chat_template=task == "sums_text",
    )  # fmt: skip
    return found["results"][task][metric]


@pytest.fixture(autouse=True)
def authorised(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)


@pytest.fixture
def likelihood(tasks: TaskManager, url: str, key: str) -> float:
    """Score by the server's own tokenizer, which the harness finds by itself."""
    where = f"{url}/v1/completions"
    options = {"base_url": where, "auth_token": key, "tokenizer_backend": "auto"}
    return score(tasks, "local-completions", "sums_choice", "acc,none", **options)


def test_completions(likelihood: float) -> None:
    assert likelihood == 1.0


def test_chat(tasks: TaskManager, url: str) -> None:
    where, metric = f"{url}/v1/chat/completions", "exact_match,number"
    options = {"base_url": where, "tokenizer_backend": None, "tokenized_requests": False}
    assert score(tasks, "local-chat-completions", "sums_text", metric, **options) == 1.0


def test_generate(tasks: TaskManager, open_url: str, likelihood: float) -> None:
    """This kind sends no key, and reads a tokenizer from a folder."""
    where = {"base_url": f"{open_url}/generate", "tokenizer": os.environ["SGLANG_TOKENIZER"]}
    assert score(tasks, "sglang-generate", "sums_choice", "acc,none", **where) == likelihood
    assert score(tasks, "sglang-generate", "sums_text", "exact_match,number", **where) == 1.0
