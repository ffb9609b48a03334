"""Techniques of the Pie paper (Table 2) as inferlets, each against an independent reference.

The references are sequences computed whole by transformers, fp32, or its own generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from helpers.inferlet_reference import Reference
from helpers.inferlet_runs import EnginePrograms, example
from sglang.inferlet import Context
from sglang.srt.tokenizer.tokenizer import EMBEDDED

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is missing"
)
PROMPT = "The weather report says that tomorrow will be a fine day for walking along the river,"


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.fixture(scope="module", params=[1, 4], ids=["page-1", "page-4"])
def programs(request: pytest.FixtureRequest) -> Iterator[EnginePrograms]:
    found = EnginePrograms(dtype="float32", page_size=request.param, max_total_tokens=16384)
    yield found
    found.engine.shutdown()


def test_text_completion_is_greedy(programs: EnginePrograms, reference: Reference) -> None:
    text = programs.one(example("text_completion"), PROMPT, "12")
    assert text == reference.text(PROMPT, 12)
    assert programs.tokens == len(reference.encode(PROMPT)) + 11


def test_prefix_caching_computes_the_prefix_once(
    programs: EnginePrograms, reference: Reference
) -> None:
    main = example("prefix_caching")
    prefix = reference.encode(PROMPT)
    whole = len(prefix) - len(prefix) % programs.info.page_size

    texts, computed = [], []
    for _ in range(2):
        texts.append(programs.one(main, "a name", PROMPT, " and the", "6"))
        computed.append(programs.tokens)
    question = list(reference.tokenizer.encode(" and the", False))
    want = reference.tokenizer.decode(reference.greedy(prefix + question, 6))
    assert texts == [want, want]
    assert computed == [len(prefix) + len(question) + 5, computed[0] - whole]


@pytest.mark.parametrize("width", [2, 3])
def test_beam_search_is_transformers(
    programs: EnginePrograms, reference: Reference, width: int
) -> None:
    found = programs.one(example("beam_search"), PROMPT, str(width), "8")
    ids = torch.tensor([reference.encode(PROMPT)])
    want = reference.model.generate(
        ids, num_beams=width, num_return_sequences=width, max_new_tokens=8, do_sample=False,
        return_dict_in_generate=True, output_scores=True, pad_token_id=0,
    )  # fmt: skip
    texts = [reference.tokenizer.decode(row[ids.shape[1] :].tolist()) for row in want.sequences]
    assert [text for _, text in found] == texts
    assert [score for score, _ in found] == pytest.approx(want.sequences_scores.tolist(), abs=1e-4)


REPEATS = '{"a": 1, "b": 2, "c": 3,'


@pytest.mark.parametrize("name", ["ngram_speculation", "jacobi_decoding"])
def test_parallel_decoding_is_greedy_in_fewer_passes(
    programs: EnginePrograms, reference: Reference, name: str
) -> None:
    arguments = [REPEATS, "24"] + ["6"] * (name == "jacobi_decoding")
    found = programs.one(example(name), *arguments)
    tokens = reference.greedy(reference.encode(REPEATS), 24)
    assert found["text"] == reference.tokenizer.decode(tokens)
    assert found["tokens"] == len(tokens)
    assert found["passes"] == programs.passes < len(tokens)


@pytest.mark.parametrize("words", [" sun and wind", " a", "", " fine day for"])
def test_an_edited_text_is_the_other_text(
    programs: EnginePrograms, reference: Reference, words: str
) -> None:
    """The tokens before the change are not computed again, and a fork keeps its own text."""
    old = reference.encode(PROMPT)
    new, start, end = list(reference.tokenizer.encode(words, False)), len(old) - 9, len(old) - 5
    want = [*old[:start], *new, *old[end:]]
    same = next((i for i, (a, b) in enumerate(zip(old, want)) if a != b), min(len(old), len(want)))

    async def main(ctx: Any) -> Any:
        text = await Context(ctx).fill(PROMPT)
        await text.next_dist(1)
        [fork] = await text.fork()
        text.edit(start, end, new)
        kept = text.computed
        found = await asyncio.gather(text.generate_until(6), fork.generate_until(6))
        return [*found, text.tokens[: len(want)], kept]

    edited, other, tokens, kept = programs.one(main)
    assert tokens == want
    assert kept == (len(old) if want == old else min(same, len(want)))
    assert edited == reference.tokenizer.decode(reference.greedy(want, 6))
    assert other == reference.text(PROMPT, 6)


def test_an_edit_beyond_the_text_is_refused(programs: EnginePrograms) -> None:
    async def main(ctx: Any) -> Any:
        text = await Context(ctx).fill(PROMPT)
        text.edit(2, len(text.tokens) + 1, [1])

    assert programs.run(main) == [None]
    assert "tokens 2 to" in programs.errors[0]


def test_sparse_attention_is_the_dense_mask(programs: EnginePrograms, reference: Reference) -> None:
    if programs.info.page_size > 1:
        pytest.skip("single tokens leave the view, so pages have one token")
    length = len(reference.encode(PROMPT))
    assert length > 14
    cases: list[tuple[str, list[str], Callable[[int, int], bool]]] = [
        ("attention_sink", ["2", "6"], lambda i, j: j < 2 or i - j < 6),
        ("windowed_attention", ["6"], lambda i, j: i - j < 6),
        ("hierarchical_attention", ["5"], lambda i, j: i // 5 == j // 5 or j % 5 == 4),
    ]
    for name, sizes, sees in cases:
        found = programs.one(example(name), PROMPT, "10", *sizes)
        assert found["text"] == reference.text(PROMPT, 10, sees=sees), name
        written = len(reference.greedy(reference.encode(PROMPT), 10, sees=sees))
        last = length + min(written, 9) - 1  # the tenth token is not computed
        held = sum(j == last or sees(last, j) for j in range(last + 1))
        assert found["held"] == held, name
        assert found["freed"] == last + 1 - held, name


def test_modular_caching_is_block_diagonal(programs: EnginePrograms, reference: Reference) -> None:
    modules = ["The farmer has a dog.", " The river is wide.", " The dog is old and grey."]
    size = programs.info.page_size
    parts = [
        list(reference.tokenizer.encode(text, index == 0)) for index, text in enumerate(modules)
    ]
    parts = [part[: len(part) - len(part) % size] for part in parts]
    question = list(reference.tokenizer.encode(" What is", False))
    tokens = parts[0] + parts[2] + question
    skipped = len(parts[1])
    cut = len(parts[0])
    positions = [*range(cut), *range(cut + skipped, len(tokens) + skipped + 8)]

    def sees(i: int, j: int) -> bool:
        return i >= cut + len(parts[2]) or i < cut or j >= cut

    found: list[int] = []
    for _ in range(8):
        logits = reference.logits(tokens + found, sees, positions[: len(tokens) + len(found)])
        found.append(int(logits[-1].argmax()))
    text = programs.one(example("modular_caching"), "8", " What is", "0,2", *modules)
    assert text == reference.tokenizer.decode(found)
