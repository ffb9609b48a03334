"""Rows scored behind a prompt, over the real scheduler, memory and spaces."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.text_worker import TextWorker, logprob_of, text_engine
from helpers.toy_tokenizer import byte_level
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import Batch, StepResult
from sglang.srt.core.ints import ints
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.completion.token_tree import ScoredRows
from sglang.srt.tokenizer import Tokenizer

PROMPT = ints(range(40, 60))
ROWS = [[i % 7, 60 + i % 11, i, 3][: 1 + i % 4] for i in range(90)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer")))


def request(behind: int = len(PROMPT), rows: list[list[int]] = ROWS, **more: Any) -> Any:
    scored = ScoredRows(rows, behind)
    return CompletionRequest(PROMPT, SamplingParams(max_new_tokens=0), scored=scored, **more)


def scored(
    tokenizer: Tokenizer, wanted: CompletionRequest, abort: bool = False, **facts: Any
) -> tuple[Output, dict[str, Any], TextWorker]:
    """The answer, the statistics when all is idle, and the worker."""
    engine, worker = text_engine(tokenizer, **facts)

    async def main() -> tuple[Output, dict[str, Any]]:
        completion = Completer(engine.client_on(asyncio.get_running_loop()), tokenizer)
        task = asyncio.ensure_future(completion.generate(wanted))
        if abort:
            while not (await completion.control("stats")).data.get("spaces"):
                await asyncio.sleep(0)
            assert completion.abort("mine") == 1
        [output] = await task
        for _ in range(500):
            stats = (await completion.control("stats")).data
            if stats["contexts"] == stats.get("spaces", 0) == 0:
                break
            await asyncio.sleep(0.01)
        assert stats["contexts"] == stats.get("spaces", 0) == stats["bad_verbs"] == 0
        assert stats["free_tokens"] + stats["evictable_tokens"] == stats["total_tokens"]
        return output, stats

    try:
        output, stats = asyncio.run(main())
        return output, stats, worker
    finally:
        engine.close()


def values(tokenizer: Tokenizer, behind: int, rows: list[list[int]]) -> list[list[float]]:
    found = []
    for row in rows:
        seen = [*PROMPT[:behind], *row]
        found.append(
            [
                logprob_of(seen[: behind + i], token, tokenizer.vocab_size) if behind + i else 0.0
                for i, token in enumerate(row)
            ]
        )
    return found


@pytest.mark.parametrize("behind", [len(PROMPT), 12, 1, 0])
def test_rows_are_scored_as_trees(tokenizer: Tokenizer, behind: int) -> None:
    output, stats, _ = scored(tokenizer, request(behind))
    assert output.row_logprobs == [pytest.approx(row) for row in values(tokenizer, behind, ROWS)]
    beginnings = {tuple(row[:end]) for row in ROWS for end in range(1, len(row))}
    assert output.row_tokens == len(beginnings) + (behind > 0)
    assert output.finish is not None
    assert output.finish.reason == "length"
    assert stats["received"] <= 3  # the prompt, and its pages for the space


@pytest.mark.parametrize(
    "facts",
    [{"windowed": True}, {"capacity": 48}, {"context": 23}],
    ids=["windows", "little memory", "no room"],
)
def test_rows_are_scored_in_contexts_where_trees_cannot(
    tokenizer: Tokenizer, facts: dict[str, Any]
) -> None:
    rows = [row[:3] for row in ROWS[:12]]
    output, _, _ = scored(tokenizer, request(rows=rows), **facts)
    assert output.row_logprobs == [
        pytest.approx(row) for row in values(tokenizer, len(PROMPT), rows)
    ]


def test_many_rows_take_several_forwards(tokenizer: Tokenizer) -> None:
    rows = [[i % 50, i // 50, i % 17, 2] for i in range(1500)]
    output, _, _ = scored(tokenizer, request(rows=rows), capacity=8192, context=4096)
    assert output.row_logprobs == [
        pytest.approx(row) for row in values(tokenizer, len(PROMPT), rows)
    ]


def test_an_abort_ends_the_scoring(tokenizer: Tokenizer) -> None:
    rows = [[i % 50, i // 50, i % 17, 2] for i in range(3000)]
    output, _, _ = scored(
        tokenizer, request(rows=rows, rid="mine"), abort=True, seconds=0.02, capacity=8192,
        context=4096,
    )  # fmt: skip
    assert output.finish is not None
    assert output.finish.reason == "abort"


def test_a_failed_pass_is_made_up_for(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of a tree whose pass has failed are scored in contexts."""
    run, failed = TextWorker.run, list[int]()

    def broken(self: TextWorker, batch: Batch) -> StepResult:
        if not failed and any(row.context < 0 for row in batch.rows):
            failed.append(batch.id)
            raise RuntimeError("broken")
        return run(self, batch)

    monkeypatch.setattr(TextWorker, "run", broken)
    output, _, _ = scored(tokenizer, request())
    assert failed
    assert output.row_logprobs == [
        pytest.approx(row) for row in values(tokenizer, len(PROMPT), ROWS)
    ]
