"""Jump-forward changes how many passes a text takes, never the text.

JUMP_FORWARD_CASES=500 asks for more prompts a constraint kind.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from jsonschema import Draft202012Validator

torch = pytest.importorskip("torch")

CASES = int(os.environ.get("JUMP_FORWARD_CASES", "24"))
MODES: dict[str, dict[str, Any]] = {"exact": {}, "off": {"disable_jump_forward": True}}
MODELS = {"embedded": {}, "random": {"load_format": "dummy", "random_seed": 3}}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["wizard", "witch", "muggle"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
TOOL = {
    "type": "structural_tag",
    "structures": [{"begin": "<call>", "schema": SCHEMA, "end": "</call>"}],
    "triggers": ["<call>"],
}
CONSTRAINTS: list[dict[str, Any]] = [
    {"regex": r'\{\n  "name": "[\w\d\s]{1,8}",\n  "age": [0-9]{1,2}\n\}'},
    {"regex": r"(Paris|London|Par is|Parish)( is (nice|big))?\."},
    {"regex": r"[A-Z][a-z]+ [A-Z][a-z]+, aged \d{1,3} \(é|ß|日本\)"},
    {"regex": r"(https?://)?[a-z]{3,8}\.(com|org|net)(/[a-z0-9]*)?"},
    {"choices": ["yes", "no", "yes, of course", "maybe not", "日本語"]},
    {"json_schema": SCHEMA},
    {"ebnf": 'root ::= "The answer is " num (" or " num)? "."\nnum ::= [0-9]+'},
    {"structural_tag": TOOL},
]


@pytest.fixture(scope="module", params=list(MODELS))
def engines(request: pytest.FixtureRequest) -> Iterator[dict[str, sgl.Engine]]:
    settings: dict[str, Any] = {
        "device": "cpu",
        "max_total_tokens": 16384,
        "log_level": "warning",
        "threads": 1,
        "dtype": "float32",
        **MODELS[request.param],
    }
    made = {name: sgl.Engine(**settings, **mode) for name, mode in MODES.items()}
    yield made
    for engine in made.values():
        engine.shutdown()


def asked(count: int, seed: int = 0) -> list[tuple[str, dict[str, Any]]]:
    """Prompts and their sampling parameters: every constraint, and free rows among them."""
    r = random.Random(seed)
    out = []
    for i in range(count):
        prompt = " ".join(r.choice(["the", "name", "of", "a", "city", "is", "{", "and"])
                          for _ in range(r.randint(1, 12)))  # fmt: skip
        params = {
            "max_new_tokens": r.choice([5, 40, 64]),
            "temperature": r.choice([0.0, 0.0, 0.9]),
            "sampling_seed": i,
            **r.choice([{}, {}, {"stop": ["a"]}, {"min_new_tokens": 4}, {"ignore_eos": True},
                        {"frequency_penalty": 0.5}]),
            **({} if i % 9 == 8 else CONSTRAINTS[i % 9 % len(CONSTRAINTS)]),
        }  # fmt: skip
        out.append((prompt, params))
    return out


def generate(engine: sgl.Engine, cases: list[tuple[str, dict[str, Any]]], **more: Any) -> Any:
    prompts, params = zip(*cases)
    return engine.generate(list(prompts), list(params), **more)


def test_the_same_tokens_in_fewer_passes(engines: dict[str, sgl.Engine]) -> None:
    cases = asked(CASES * len(CONSTRAINTS))
    exact, off = (generate(engines[mode], cases) for mode in ("exact", "off"))
    rounded = 0
    for case, one, other in zip(cases, exact, off):
        if case[1]["temperature"] and one["output_ids"] != other["output_ids"]:
            rounded += 1  # a random number fell on a boundary, which rounding moves
            continue
        assert one["output_ids"] == other["output_ids"], case
        assert one["text"] == other["text"], case
        assert one["meta_info"]["finish_reason"] == other["meta_info"]["finish_reason"], case
    assert rounded <= 1 + len(cases) // 200
    assert sum(o["meta_info"]["forced_tokens"] for o in off) == 0
    constrained = [i for i, (_, params) in enumerate(cases) if set(params) & {"regex", "ebnf"}]
    passes = [sum(out[i]["meta_info"]["forward_passes"] for i in constrained)
              for out in (exact, off)]  # fmt: skip
    assert passes[0] < 0.8 * passes[1]
    for one in exact:
        meta = one["meta_info"]
        spared = meta["forced_tokens"] + meta["accepted_tokens"]
        assert meta["forward_passes"] >= meta["completion_tokens"] - spared
        assert meta["accepted_tokens"] <= meta["drafted_tokens"]


def test_neighbours_do_not_matter(engines: dict[str, sgl.Engine]) -> None:
    cases = asked(27, seed=1)
    together = generate(engines["exact"], cases)
    alone = [generate(engines["exact"], [case])[0] for case in cases]
    same = [a["output_ids"] == b["output_ids"] for a, b in zip(together, alone)]
    assert all(same[i] for i, (_, params) in enumerate(cases) if not params["temperature"])
    assert same.count(False) <= 1  # see above


def test_log_probabilities_are_read_through_drafts(engines: dict[str, sgl.Engine]) -> None:
    cases = [(prompt, {**params, "temperature": 0.0}) for prompt, params in asked(18, seed=2)]
    more = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
    exact, off = (generate(engines[mode], cases, **more) for mode in ("exact", "off"))
    plain = generate(engines["exact"], cases)
    accepted = 0
    for one, other, free in zip(exact, off, plain):
        assert one["output_ids"] == other["output_ids"] == free["output_ids"]
        for name in ("output_token_logprobs", "input_token_logprobs"):
            a, b = one["meta_info"][name], other["meta_info"][name]
            assert [t[1] for t in a] == [t[1] for t in b]
            pairs = [(x[0], y[0]) for x, y in zip(a, b) if x[0] is not None]
            assert all(abs(x - y) < 1e-3 for x, y in pairs)
        accepted += one["meta_info"]["accepted_tokens"]
    assert accepted > 0


def test_every_text_satisfies_its_constraint(engines: dict[str, sgl.Engine]) -> None:
    check = Draft202012Validator(SCHEMA)
    cases = [(prompt, {**params, "max_new_tokens": 200, "stop": None, "temperature": 1.5})
             for prompt, params in asked(CASES * 2, seed=3)]  # fmt: skip
    for (_, params), out in zip(cases, generate(engines["exact"], cases)):
        reason = out["meta_info"]["finish_reason"]["type"]
        if reason == "length" or "structural_tag" in params:
            continue
        assert reason == "stop"
        if "regex" in params:
            assert re.fullmatch(params["regex"], out["text"])
        elif "choices" in params:
            assert out["text"] in params["choices"]
        elif "json_schema" in params:
            check.validate(json.loads(out["text"]))
        elif "ebnf" in params:
            assert re.fullmatch(r"The answer is [0-9]+( or [0-9]+)?\.", out["text"])


def test_the_distribution_is_the_masked_one(engines: dict[str, sgl.Engine]) -> None:
    """Chi-square against probabilities computed by transformers with masks made by hand."""
    pytest.importorskip("transformers")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = Path(sgl.__file__).parents[1] / "srt/assets/sglang-tiny"
    engine = engines["exact"]
    if engine.get_server_info().get("load_format") == "dummy":
        pytest.skip("the weights are not transformers'")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    encode = AutoTokenizer.from_pretrained(path).encode
    words = ["red", "blue", "redder", "dark blue", "dark red"]
    prompt = "The colour is"
    before = encode(prompt)
    paths = {word: encode(word) for word in words}
    want = {}
    for word, ids in paths.items():
        chance = 1.0
        for i in range(len(ids) + 1):
            prefix = ids[:i]
            following = {p[i] if i < len(p) else -1 for p in paths.values() if p[:i] == prefix}
            if following == {-1}:
                break
            with torch.no_grad():
                logits = model(torch.tensor([before + prefix])).logits[0, -1].double()
            ends = engine_ends(engine)
            allowed = sorted(
                {t for t in following if t >= 0} | (ends if -1 in following else set())
            )
            probabilities = logits[allowed].softmax(-1)
            chosen = ends if i == len(ids) else {ids[i]}
            chance *= sum(float(p) for t, p in zip(allowed, probabilities) if t in chosen)
        want[word] = chance
    assert abs(sum(want.values()) - 1) < 1e-9
    count = int(os.environ.get("JUMP_FORWARD_SAMPLES", "1500"))
    seen: Counter[str] = Counter()
    for first in range(0, count, 500):
        params = [{"choices": words, "temperature": 1.0, "sampling_seed": first + i,
                   "max_new_tokens": 20} for i in range(min(500, count - first))]  # fmt: skip
        seen.update(o["text"] for o in engine.generate([prompt] * len(params), params))
    assert set(seen) <= set(words)
    square = sum((seen[w] - count * p) ** 2 / (count * p) for w, p in want.items())
    assert square < 18.47  # 99.9 % of 4 degrees of freedom


def engine_ends(engine: sgl.Engine) -> set[int]:
    return set(engine.tokenizer.eos_ids)
