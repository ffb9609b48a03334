"""Speculation changes how many passes a text takes, never the text."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from helpers.tiny_model import write_config

torch = pytest.importorskip("torch")

EMBEDDED = Path(sgl.__file__).parents[1] / "srt/assets/sglang-tiny"
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "max_total_tokens": 16384,
    "log_level": "warning",
    "threads": 1,
    "dtype": "float32",
}
PASSAGE = "The little dog ran to the river. It saw a red boat, and a cat in the red boat. "
SOURCES = ("ngram", "draft")


@pytest.fixture(scope="module")
def engine() -> Iterator[sgl.Engine]:
    """The embedded model, which is its own draft model too."""
    made = sgl.Engine(**SETTINGS, speculative_draft_model_path=str(EMBEDDED))
    yield made
    made.shutdown()


def asked(count: int, seed: int = 0) -> list[tuple[str, dict[str, Any]]]:
    r = random.Random(seed)
    constraints = [
        {}, {}, {}, {"regex": r"[a-z ]{5,80}\."}, {"json_schema": '{"type": "array", "items": '
        '{"enum": ["red boat", "cat"]}, "minItems": 3, "maxItems": 9}'},
    ]  # fmt: skip
    return [
        (
            PASSAGE * r.randint(1, 3) + r.choice(["The", "It saw a red", "dog", "[", ""]),
            {
                "max_new_tokens": r.choice([2, 3, 24, 64]),
                "temperature": r.choice([0.0, 0.0, 0.7]),
                "sampling_seed": i,
                **r.choice([{}, {}, {"stop": ["boat."]}, {"min_new_tokens": 2}, {"top_p": 0.9},
                            {"ignore_eos": True}, {"frequency_penalty": 0.3}, {"min_p": 0.1}]),
                **constraints[i % len(constraints)],
            },
        )
        for i in range(count)
    ]  # fmt: skip


def generate(
    engine: sgl.Engine, cases: list[tuple[str, dict[str, Any]]], source: str, **more: Any
) -> list[dict[str, Any]]:
    """A few at a time: the drafts of a pass are bounded."""
    out = []
    for first in range(0, len(cases), 20):
        prompts, params = zip(*cases[first : first + 20])
        own = [{**one, "speculation": source} for one in params]
        out += engine.generate(list(prompts), own, **more)
    return out


def total(outputs: list[dict[str, Any]], name: str) -> int:
    return sum(out["meta_info"][name] for out in outputs)


@pytest.mark.parametrize("source", SOURCES)
def test_the_same_tokens_in_fewer_passes(engine: sgl.Engine, source: str) -> None:
    cases = asked(60)
    off, fast = (generate(engine, cases, name) for name in ("off", source))
    rounded = 0
    for (_, params), one, other in zip(cases, fast, off):
        if params["temperature"] and one["output_ids"] != other["output_ids"]:
            rounded += 1  # a random number fell on a boundary, which rounding moves
            continue
        assert one["output_ids"] == other["output_ids"], params
        assert one["text"] == other["text"]
        assert one["meta_info"]["finish_reason"] == other["meta_info"]["finish_reason"]
    assert rounded <= 1
    free = [i for i, (_, p) in enumerate(cases) if p["max_new_tokens"] > 2 and "regex" not in p]
    passes = [total([outs[i] for i in free], "forward_passes") for outs in (fast, off)]
    assert passes[0] < {"ngram": 0.9, "draft": 0.35}[source] * passes[1]
    plain = [out for (_, p), out in zip(cases, fast) if not {"regex", "json_schema"} & set(p)]
    drafted, accepted = total(plain, "drafted_tokens"), total(plain, "accepted_tokens")
    assert drafted > 200
    assert accepted / drafted > {"ngram": 0.2, "draft": 0.97}[source]


@pytest.mark.parametrize("source", SOURCES)
def test_log_probabilities_and_several_completions(engine: sgl.Engine, source: str) -> None:
    cases = [(PASSAGE * 3, {"max_new_tokens": 40, "temperature": 0.3, "n": 3,
                                "sampling_seed": 4})]  # fmt: skip
    more = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}
    off, fast = (generate(engine, cases, name, **more) for name in ("off", source))
    assert len(off) == len(fast) == 3
    for one, other in zip(off, fast):
        assert one["output_ids"] == other["output_ids"]
        for name in ("output_token_logprobs", "input_token_logprobs"):
            pairs = zip(one["meta_info"][name], other["meta_info"][name])
            assert all(a[1] == b[1] for a, b in pairs)
            values = zip(one["meta_info"][name], other["meta_info"][name])
            assert all(a[0] is b[0] is None or abs(a[0] - b[0]) < 1e-3 for a, b in values)
    assert total(fast, "accepted_tokens") > 0


def test_streams_tell_the_same(engine: sgl.Engine) -> None:
    params = {"max_new_tokens": 40, "temperature": 0.0}
    texts = {}
    for source in ("off", *SOURCES):
        events = list(engine.generate(PASSAGE, {**params, "speculation": source}, stream=True))
        shown = [event["text"] for event in events]
        assert all(later.startswith(sooner) for sooner, later in pairwise(shown))
        texts[source] = shown[-1]
    assert len(set(texts.values())) == 1


def test_a_program_asks_for_it(engine: sgl.Engine) -> None:
    @sgl.function
    def program(s, speculation):
        s += PASSAGE
        s += sgl.gen("a", 80, temperature=0, ignore_eos=True, speculation=speculation)

    states = {source: program.run(source, backend=engine) for source in ("off", *SOURCES)}
    assert len({state["a"] for state in states.values()}) == 1
    metas = {source: state.get_meta_info("a") for source, state in states.items()}
    assert metas["off"]["drafted_tokens"] == 0
    assert metas["draft"]["forward_passes"] < metas["off"]["forward_passes"] / 3
    assert metas["ngram"]["accepted_tokens"] > 0


def test_a_model_that_knows_nothing_does_no_harm(tmp_path: Path) -> None:
    """Both models are random and unlike, and the draft model's memory holds a request or two."""
    small = write_config(tmp_path / "draft", vocab_size=320, max_position_embeddings=256)
    large = write_config(tmp_path / "model", vocab_size=320, num_hidden_layers=3)
    made = sgl.Engine(model_path=large, tokenizer_path=str(EMBEDDED), load_format="dummy",
                      speculative_draft_model_path=small, skip_server_warmup=True,
                      **{**SETTINGS, "max_total_tokens": 640})  # fmt: skip
    try:
        r = random.Random(1)
        prompts = [[r.randrange(3, 300) for _ in range(r.randint(1, 60))] for _ in range(12)]
        params = [{"max_new_tokens": 30, "temperature": i % 2, "sampling_seed": i,
                   "ignore_eos": True} for i in range(12)]  # fmt: skip
        answers = {
            source: made.generate(
                input_ids=prompts,
                sampling_params=[{**one, "speculation": source} for one in params],
            )
            for source in ("off", *SOURCES)
        }
        ids = {source: [out["output_ids"] for out in outs] for source, outs in answers.items()}
        assert ids["off"] == ids["ngram"] == ids["draft"]
        drafted = total(answers["draft"], "drafted_tokens")
        assert 0 < drafted < 12 * 16, "most drafts are in vain, so soon there are none"
    finally:
        made.shutdown()


@pytest.mark.parametrize("source", SOURCES)
def test_the_distribution_is_the_models(engine: sgl.Engine, source: str) -> None:
    """Chi-square of sampled texts against probabilities computed by transformers."""
    pytest.importorskip("transformers")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32)
    before = list(engine.tokenizer.encode(PASSAGE + "It saw a"))
    length, width, count = 4, 2, 720
    want: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        paths = list(want)
        with torch.no_grad():
            logits = model(torch.tensor([before + list(path) for path in paths])).logits[:, -1]
        top = logits.double().topk(width, dim=-1)
        chances = top.values.softmax(-1)
        want = {
            (*path, int(top.indices[i, j])): want[path] * float(chances[i, j])
            for (i, path), j in product(enumerate(paths), range(width))
        }
    params = [{"max_new_tokens": length, "temperature": 1.0, "top_k": width, "sampling_seed": i,
               "ignore_eos": True, "speculation": source} for i in range(count)]  # fmt: skip
    seen: Counter[tuple[int, ...]] = Counter()
    drafted = accepted = 0
    for first in range(0, count, 24):  # as many as may all have drafts
        outs = engine.generate(
            input_ids=[before] * len(params[first : first + 24]),
            sampling_params=params[first : first + 24],
        )
        seen.update(tuple(out["output_ids"]) for out in outs)
        drafted += total(outs, "drafted_tokens")
        accepted += total(outs, "accepted_tokens")
    assert drafted > count / 2
    assert source == "draft" or accepted < drafted
    assert set(seen) <= set(want)
    rare = [path for path in want if want[path] * count < 5]
    cells = [(seen[path], want[path] * count) for path in want if path not in rare]
    cells.append((sum(seen[path] for path in rare), sum(want[path] for path in rare) * count))
    square = sum((n - p) ** 2 / p for n, p in cells if p)
    # 99.9 % by the approximation of Wilson and Hilferty
    degrees = len(cells) - 1
    limit = degrees * (1 - 2 / (9 * degrees) + 3.09 * (2 / (9 * degrees)) ** 0.5) ** 3
    assert square < limit, (square, limit)


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    other = write_config(tmp_path / "other", vocab_size=96)
    with pytest.raises(
        sgl.BackendError, match=r"vocabulary of 96 tokens and the model one of \d+; give"
    ):
        sgl.Engine(**SETTINGS, load_format="dummy", speculative_draft_model_path=other)
    with pytest.raises(sgl.BackendError, match=r"--speculative-draft-model-path .*nowhere"):
        sgl.Engine(**SETTINGS, speculative_draft_model_path=str(tmp_path / "nowhere"))
