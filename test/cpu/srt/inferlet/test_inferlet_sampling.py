"""Inferlets that choose their tokens from distributions: watermark, validation, grammar, tree."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.inferlet_reference import Reference
from helpers.inferlet_runs import EnginePrograms, example
from helpers.paths import ROOT
from sglang.srt.tokenizer.tokenizer import EMBEDDED

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is missing"
)
PROMPT = "The weather today"


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.fixture(scope="module")
def programs() -> Iterator[EnginePrograms]:
    found = EnginePrograms(dtype="float32", max_total_tokens=16384)
    yield found
    found.engine.shutdown()


def globals_of(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / "inferlets" / f"{name}.py"))


def test_watermark_is_found_where_it_is(programs: EnginePrograms, reference: Reference) -> None:
    marked = programs.one(example("watermarking"), PROMPT, "200", "6", "2")
    plain = programs.one(example("watermarking"), PROMPT, "200", "0", "2")
    assert marked["z"] > 4
    assert abs(plain["z"]) < 3
    # A bias of 0 is plain sampling: the same random numbers, the whole distribution.
    import random

    tokens, chance = reference.encode(PROMPT), random.Random(2)
    for token in plain["tokens"][:12]:
        logprobs = torch.log_softmax(reference.logits(tokens)[-1], -1)
        weights = logprobs.exp().tolist()
        assert chance.choices(range(len(weights)), weights)[0] == token
        tokens.append(token)


def test_validation_scores_its_language_alone(
    programs: EnginePrograms, reference: Reference
) -> None:
    pattern = " a {cat|dog|cow}{| sits| walks}."
    found = programs.one(example("output_validation"), PROMPT, pattern, "-1000")
    texts = [
        f" a {pet}{verb}." for pet in ("cat", "dog", "cow") for verb in ("", " sits", " walks")
    ]
    assert sorted(found) == sorted(texts)
    begun = reference.encode(PROMPT)
    for text in texts:
        tokens = list(reference.tokenizer.encode(text, False))
        logprobs = torch.log_softmax(reference.logits(begun + tokens), -1)
        want = sum(float(logprobs[len(begun) - 1 + i, token]) for i, token in enumerate(tokens))
        assert found[text] == pytest.approx(want, abs=1e-3)
    worst = min(found.values())
    fewer = programs.one(example("output_validation"), PROMPT, pattern, str(worst + 0.01))
    assert set(fewer) == {text for text in texts if found[text] >= worst + 0.01}


JSON_TEXTS = ['{"a": 1}', "{}", '{"a": [1, "b", null], "c": {"d": -0.5}}']
BAD_TEXTS = ['{"a": }', "[1]", '{"a" 1}', '{"a": 01}', '{"a": 1', '{"a": 1}x']


def test_grammar_matches_its_language() -> None:
    parts = globals_of("ebnf_decoding")
    grammar = parts["Grammar"](parts["JSON_GRAMMAR"])
    assert [grammar.matches(text) for text in JSON_TEXTS] == [True] * 3
    assert [grammar.matches(text) for text in BAD_TEXTS] == [False] * 6
    for text, message in [
        ('root ::= other', "no rule 'other'"), ('root ::= root "a" | "b"', "left recursion"),
        ('root ::= ("a"', "no \\)"), ('"a"', "a rule begins"), ("", "no rule"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            parts["Grammar"](text).matches("a")


def test_grammar_decoding_is_masked_greedy(programs: EnginePrograms, reference: Reference) -> None:
    parts = globals_of("ebnf_decoding")
    grammar = parts["Grammar"](parts["JSON_GRAMMAR"])
    for prompt in ("A pet in JSON: ", "name, age: "):
        text = programs.one(example("ebnf_decoding"), prompt, "40", parts["JSON_GRAMMAR"])
        # Masked greedy by brute force: every token of the vocabulary is tried at each step.
        table = reference.tokenizer.token_bytes
        tokens, data = reference.encode(prompt), b""
        for _ in range(40):
            order = reference.logits(tokens)[-1].argsort(descending=True).tolist()
            for token in order:
                if token in (0, 2):
                    if grammar.matches(data.decode()):
                        break
                    continue
                if table[token] and grammar.feed(grammar.start, data + table[token]):
                    break
            if token in (0, 2):
                break
            tokens.append(token)
            data += table[token]
        assert text == data.decode()
        if grammar.matches(text):
            json.loads(text)


def test_prefix_tree_computes_beginnings_once(
    programs: EnginePrograms, reference: Reference
) -> None:
    prompts = ["The farmer has a dog.", "The farmer has a cow and", "The farmer", "A day is long"]
    found = programs.one(example("prefix_tree"), "6", *prompts)
    assert found == [reference.text(prompt, 6) for prompt in prompts]
    distinct = {
        tuple(ids[: i + 1]) for ids in map(reference.encode, prompts) for i in range(len(ids))
    }
    generated = sum(len(reference.greedy(reference.encode(prompt), 6)) for prompt in prompts)
    # A prompt that ends inside of another one computes its last token for itself.
    assert len(distinct) <= programs.tokens <= len(distinct) + generated
