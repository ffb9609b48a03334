"""The three ways to choose, against scores worked out by hand, and the request that gets them."""

from __future__ import annotations

from typing import Any

import pytest
from sglang.backend.base import Prompt
from sglang.backend.native.native_backend import NativeBackend
from sglang.ir.choices import (
    METHODS,
    OptionScores,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)


def scores(rows: list[list[tuple[float | None, int]]], alone: Any = ()) -> OptionScores:
    tokens = [[[logprob, token, str(token)] for logprob, token in row] for row in rows]
    unconditional = [[[value, 0, ""] for value in row] for row in alone]
    return OptionScores([f"option {i}" for i in range(len(rows))], tokens, [], unconditional)


def test_token_length_normalized_takes_the_best_mean() -> None:
    given = scores([[(-1.0, 1), (-1.0, 2)], [(-0.5, 3), (-1.4, 4)], [(-1.8, 5)]])
    decision = token_length_normalized(given)
    assert decision.text == "option 1"
    assert decision.meta["normalized_prompt_logprobs"] == pytest.approx([-1.0, -0.95, -1.8])
    assert decision.meta["input_token_logprobs"][2] == [[-1.8, 5, "5"]]


def test_greedy_extends_a_shorter_option_by_its_mean() -> None:
    given = scores([[(-1.0, 1), (-0.1, 2)], [(-0.9, 3), (-9.0, 4)]])
    assert greedy_token_selection(given).text == "option 1"
    # One option begins the other: after the shared token its mean stands against the next one.
    given = scores([[(-1.0, 1)], [(-1.0, 1), (-0.4, 2)], [(-2.0, 3)]])
    decision = greedy_token_selection(given)
    assert decision.text == "option 1"
    assert decision.meta["greedy_logprob_matrix"] == [[-1.0, -1.0], [-1.0, -0.4], [-2.0, -2.0]]
    given = scores([[(-1.0, 1)], [(-1.0, 1), (-1.4, 2)]])
    assert greedy_token_selection(given).text == "option 0"


def test_greedy_is_not_decided_by_rounding_of_a_shared_token() -> None:
    given = scores([[(-1.0000001, 1), (-0.1, 2)], [(-1.0, 1), (-5.0, 3)], [(-3.0, 9), (0.0, 9)]])
    assert greedy_token_selection(given).text == "option 0"


def test_unconditional_takes_what_the_prompt_adds_most_to() -> None:
    rows: list[list[tuple[float | None, int]]] = [[(-1.0, 1), (-1.0, 2)], [(-3.0, 3), (-2.0, 4)]]
    given = scores(rows, alone=[[None, -0.5], [None, -9.0]])
    decision = unconditional_likelihood_normalized(given)
    assert decision.text == "option 1"
    assert decision.meta["normalized_unconditional_prompt_logprobs"] == pytest.approx([-0.75, 2.0])
    assert token_length_normalized(given).text == "option 0"


class Lettered(NativeBackend):
    """A native runtime over letters, whose tokenizer also has the tokens of ``merges``.

    log P of the token at position i is -(id + i), so that every score is known.
    """

    scores_options = False

    def __init__(self, *merges: str) -> None:
        self.vocabulary = [chr(c) for c in range(128)] + list(merges)
        self.bodies: list[dict[str, Any]] = []

    def encode(self, text: str) -> list[int]:
        ids = []
        while text:
            token = max((t for t in self.vocabulary if text.startswith(t)), key=len)
            ids.append(self.vocabulary.index(token))
            text = text[len(token) :]
        return ids

    def logprob(self, token: int, position: int) -> float | None:
        return -(token + position) if position else None

    def call(self, body: dict[str, Any]) -> Any:
        self.bodies.append(body)
        several = isinstance(body.get("text", []), list)
        texts = body.get("text", [])
        prompts = body.get("input_ids") or [self.encode(t) for t in (texts if several else [texts])]
        start = body.get("logprob_start_len", -1)
        answers = []
        for ids in prompts:
            meta: dict[str, Any] = {"prompt_tokens": len(ids), "cached_tokens": 1}
            if body.get("return_logprob"):
                meta["output_token_logprobs"] = []
                meta["input_token_logprobs"] = [
                    [self.logprob(t, i), t, self.vocabulary[t]]
                    for i, t in enumerate(ids)
                    if i >= start
                ]
            answers.append({"text": "", "meta_info": meta})
        return answers if several else answers[0]


def chosen(backend: Lettered, prompt: str, options: list[str], method: str) -> dict[str, Any]:
    return backend.choose(Prompt(prompt), options, METHODS[method]).meta


def test_without_merges_exactly_the_options_tokens_are_scored() -> None:
    backend = Lettered()
    meta = chosen(backend, "0123456789:", ["ab", "c"], "token_length_normalized")
    assert [[e[2] for e in row] for row in meta["input_token_logprobs"]] == [["a", "b"], ["c"]]
    assert meta["normalized_prompt_logprobs"] == [-(97 + 11 + 98 + 12) / 2, -(99 + 11)]
    commit, batch = backend.bodies
    assert commit == {"text": "0123456789:", "sampling_params": {"max_new_tokens": 0}}
    assert batch["text"] == ["0123456789:", "0123456789:ab", "0123456789:c"]
    assert batch["logprob_start_len"] == 3
    assert meta["usage"] == {"prompt_tokens": 11 + 11 + 13 + 12, "cached_tokens": 4,
                             "completion_tokens": 0}  # fmt: skip


def test_a_token_across_the_boundary_is_healed_before_scoring() -> None:
    backend = Lettered(":a")
    meta = chosen(backend, "0123456789:", ["ab", "c"], "token_length_normalized")
    texts = [[e[2] for e in row] for row in meta["input_token_logprobs"]]
    assert texts == [[":a", "b"], [":", "c"]]
    assert len(backend.bodies) == 2


def test_a_token_that_reaches_far_back_is_found() -> None:
    backend = Lettered("56789:a")
    meta = chosen(backend, "x" * 40 + "0123456789:", ["ab", "c"], "greedy_token_selection")
    assert meta["input_token_logprobs"][0][0][2] == "56789:a"
    assert [e[2] for e in meta["input_token_logprobs"][1]] == list("56789:c")
    far = Lettered("0123456789:a")
    meta = chosen(far, "x" * 40 + "0123456789:", ["ab", "c"], "greedy_token_selection")
    assert meta["input_token_logprobs"][0][0][2] == "0123456789:a"
    assert len(far.bodies) == 3


def test_an_option_that_begins_another() -> None:
    backend = Lettered()
    meta = chosen(backend, "pick ", ["a", "ab"], "greedy_token_selection")
    matrix = meta["greedy_logprob_matrix"]
    assert matrix == [[-(97 + 5), -(97 + 5)], [-(97 + 5), -(98 + 6)]]


def test_an_empty_prompt_scores_the_options_alone() -> None:
    backend = Lettered()
    decision = backend.choose(Prompt(""), ["ab", "ac"], token_length_normalized)
    assert decision.text == "ab"
    assert [len(row) for row in decision.meta["input_token_logprobs"]] == [2, 2]
    assert len(backend.bodies) == 1


def test_the_unconditional_score_is_of_the_same_tokens() -> None:
    backend = Lettered(":a")
    meta = chosen(backend, "0:", ["ab", "c"], "unconditional_likelihood_normalized")
    assert backend.bodies[-1]["input_ids"] == [[128, 98], [58, 99]]
    assert meta["unconditional_token_logprobs"][0] == [[None, 128, ":a"], [-99, 98, "b"]]
    gains = [((-(128 + 1)) + (-(98 + 2) + 99)) / 2, (-(58 + 1) + (-(99 + 2) + 100)) / 2]
    assert meta["normalized_unconditional_prompt_logprobs"] == gains
