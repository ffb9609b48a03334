"""The load generator's arithmetic, workload, parsers and checks."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang import bench_one_batch
from sglang.srt.commands.bench.arrivals import offsets
from sglang.srt.commands.bench.result import BenchCall, Result, TurnPart
from sglang.srt.commands.bench.server_target import read_native, read_openai
from sglang.srt.commands.bench.sse import ChunkedDecoder, EventParser
from sglang.srt.commands.bench.stats import Spread, as_json, percentile, summarise
from sglang.srt.commands.bench.target import Target, numbers
from sglang.srt.commands.bench.workload import (
    Conversation,
    Turn,
    distinct_tokens,
    word,
    words,
)

from benchmark.serving.options import parser, workload
from benchmark.serving.report import compare, problems, table

# -- percentiles and summaries -----------------------------------------------------------------


def test_percentiles_interpolate_between_ranks() -> None:
    values = [10.0, 20.0, 30.0, 40.0]
    assert [percentile(values, q) for q in (0, 25, 50, 90, 100)] == [10, 17.5, 25, 37, 40]
    assert percentile([5.0], 99) == 5
    assert Spread.of([]) is None


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50))
def test_percentiles_agree_with_the_standard_library(values: list[float]) -> None:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for q in (50, 90, 99):
        assert math.isclose(percentile(sorted(values), q), cuts[q - 1], abs_tol=1e-6)


def answered(conversation: int, sent: float, times: list[float], **fields: object) -> Result:
    """A result whose tokens came at ``times``, one a chunk."""
    result = Result(conversation, 0, len(times), due=sent, sent=sent, end=times[-1] + 0.5)
    for now in times:
        result.arrived(now)
    result.output_tokens, result.prompt_tokens = len(times), 100
    for name, value in fields.items():
        setattr(result, name, value)
    return result


def test_a_summary_of_known_times() -> None:
    failed = Result(2, 0, 3, sent=0.5, end=9.0, error="429: busy")
    results = [
        answered(0, 1.0, [2.0, 3.0, 5.0], cached=60),
        answered(1, 1.0, [1.5, 2.5], cached=20),
        failed,
    ]
    summary = summarise(results, cpu_seconds=2.5)
    assert (summary.completed, summary.failed) == (2, 1)
    assert summary.seconds == 5.0  # from 0.5, the first sent, to 5.5, the last good answer
    assert summary.request_rate == 0.4
    assert (summary.input_rate, summary.output_rate) == (40.0, 1.0)
    assert summary.hit_rate == 0.4
    assert summary.generator_cpu == 0.5
    assert summary.ttft is not None
    assert summary.tpot is not None
    assert summary.itl is not None
    assert summary.latency is not None
    assert (summary.ttft.mean, summary.ttft.max) == (750.0, 1000.0)
    assert summary.tpot.mean == pytest.approx(1250.0)  # 3 s / 2 and 1 s / 1
    assert summary.itl.mean == pytest.approx(4000 / 3)  # gaps of 1, 2 and 1 s
    assert (summary.latency.p50, summary.latency.max) == (3250.0, 4500.0)
    assert as_json(summary)["ttft_ms"]["p50"] == 750.0
    json.dumps(as_json(summary), allow_nan=False)
    assert "40.0 %" in table([("x", summary)])


def test_an_endpoint_that_tells_no_hits_has_no_hit_rate() -> None:
    assert summarise([answered(0, 1.0, [2.0])]).hit_rate is None


def test_nothing_but_failures_is_summarised() -> None:
    summary = summarise([Result(0, 0, 1, error="refused")])
    assert (summary.completed, summary.failed, summary.request_rate) == (0, 1, 0.0)
    assert table([("x", summary)])


# -- arrivals ----------------------------------------------------------------------------------


def test_arrivals_are_a_poisson_process() -> None:
    times = offsets(random.Random(1), 50.0, 20_000)
    assert times == sorted(times)
    assert times[-1] / len(times) == pytest.approx(1 / 50, rel=0.03)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    # Exponential gaps: deviation equals mean, a share 1 / e is longer than the mean.
    assert statistics.pstdev(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert sum(gap > 1 / 50 for gap in gaps) / len(gaps) == pytest.approx(1 / math.e, rel=0.03)
    # Counts in a window: variance equals mean.
    counts = [0] * int(times[-1])
    for now in times:
        if now < len(counts):
            counts[int(now)] += 1
    assert statistics.pvariance(counts) == pytest.approx(statistics.mean(counts), rel=0.2)


def test_an_infinite_rate_is_all_at_once() -> None:
    assert offsets(random.Random(0), math.inf, 3) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_a_rate_that_is_not_positive_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="--request-rate"):
        offsets(random.Random(0), rate, 3)


# -- workload ----------------------------------------------------------------------------------


def made(*arguments: str, seed: int = 0) -> list[Conversation]:
    return workload(parser().parse_args(arguments), seed)


def digest(conversations: list[Conversation]) -> str:
    return sha256(repr(conversations).encode()).hexdigest()[:16]


# Pinned: a peer measured elsewhere, by another Python, must be offered the very same work.
DIGESTS = {
    "shared-prefix": "6b90e745920412ea",
    "multi-turn": "5c836c1e2c7ca446",
    "random": "e1112e83b1e2c65b",
    "azure": "586879b744996aed",
}


@pytest.mark.parametrize("kind", DIGESTS)
def test_the_same_seed_makes_the_same_work_everywhere(kind: str) -> None:
    assert digest(made("--workload", kind, "--num-requests", "9")) == DIGESTS[kind]
    assert digest(made("--workload", kind, "--num-requests", "9", seed=1)) != DIGESTS[kind]


def test_shared_prefixes_are_shared_and_nothing_else_is() -> None:
    work = made("--num-requests", "12", "--num-prefixes", "3", "--prefix-len", "50")
    prompts = [c.turns[0].tokens for c in work]
    heads = [prompt[:50] for prompt in prompts]
    assert {heads.count(head) for head in heads} == {4}
    assert len(set(heads)) == 3
    assert len({prompt[50:] for prompt in prompts}) == 12
    assert {len(prompt) for prompt in prompts} == {82}
    assert all(300 <= token < 1000 for prompt in prompts for token in prompt)


def test_distinct_tokens_are_the_edges_of_the_prefix_tree() -> None:
    prompts = [(1, 2, 3), (1, 2, 4, 5), (7,), (1, 2, 3), (1,)]
    work = [Conversation(i, (Turn(prompt, 1),)) for i, prompt in enumerate(prompts)]
    tree = {prompt[:n] for prompt in prompts for n in range(1, len(prompt) + 1)}
    assert distinct_tokens(work) == len(tree) == 6


def test_multi_turn_shares_a_system_prompt_and_counts_turns() -> None:
    work = made("--workload", "multi-turn", "--num-requests", "10", "--turns", "4",
                "--prefix-len", "20")  # fmt: skip
    assert [len(c.turns) for c in work] == [4, 4, 4]
    assert len({c.turns[0].tokens[:20] for c in work}) == 1
    assert [len(turn.tokens) for turn in work[0].turns] == [52, 32, 32, 32]


def test_random_lengths_fill_their_ranges() -> None:
    work = made("--workload", "random", "--num-requests", "400", "--input-range", "5", "9",
                "--output-range", "2", "3")  # fmt: skip
    assert {len(c.turns[0].tokens) for c in work} == {5, 6, 7, 8, 9}
    assert {c.turns[0].output for c in work} == {2, 3}


def test_azure_lengths_keep_to_the_longest() -> None:
    work = made("--workload", "azure", "--num-requests", "200", "--longest", "256")
    turns = [c.turns[0] for c in work]
    assert all(turn.tokens and 1 <= turn.output <= 64 for turn in turns)
    assert max(len(turn.tokens) + turn.output for turn in turns) == 256


def test_the_sample_of_lengths_resembles_its_source() -> None:
    from benchmark.serving.azure import AZURE, read_lengths

    rows = read_lengths(AZURE)
    assert len(rows) == 500
    # Medians of the whole trace: 1020 prompt and 129 output tokens.
    assert statistics.median(prompt for prompt, _ in rows) == pytest.approx(1020, rel=0.15)
    assert statistics.median(output for _, output in rows) == pytest.approx(129, rel=0.15)


def test_words_name_tokens_uniquely() -> None:
    assert len({word(token) for token in range(20_000)}) == 20_000
    assert words((3, 4)).split() == [word(3), word(4)]


# -- parsers -----------------------------------------------------------------------------------

STREAM = (
    b": a comment\r\n\r\n"
    b'event: x\ndata: {"text": "h\xc3\xa9"}\n\n'
    b'data:{"text": "\xf0\x9f\x8c\x8d"}\r\n\r\n'
    b"data: two\ndata: lines\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = ['{"text": "hé"}', '{"text": "🌍"}', "two\nlines", "[DONE]"]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def test_many_events_in_one_chunk() -> None:
    assert [event.decode() for event in EventParser().push(STREAM)] == EVENTS


def test_one_byte_a_chunk_cuts_inside_characters() -> None:
    sse = EventParser()
    events = [event for i in range(len(STREAM)) for event in sse.push(STREAM[i : i + 1])]
    assert [event.decode() for event in events] == EVENTS


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_events_do_not_depend_on_where_the_stream_is_cut(places: list[int]) -> None:
    sse = EventParser()
    events = [event for chunk in cut(STREAM, places) for event in sse.push(chunk)]
    assert [event.decode() for event in events] == EVENTS


def test_an_event_is_not_given_before_its_end() -> None:
    sse = EventParser()
    assert sse.push(b"data: x\n") == []
    assert sse.push(b"\n") == [b"x"]


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.lists(st.integers(0, 1000), max_size=12),
    st.booleans(),
)
def test_chunked_bodies_do_not_depend_on_where_they_are_cut(
    parts: list[bytes], places: list[int], trailer: bool
) -> None:
    wire = b"".join(f"{len(part):X};x=1\r\n".encode() + part + b"\r\n" for part in parts)
    wire += b"0\r\n" + (b"Trailer: 1\r\n" if trailer else b"") + b"\r\n"
    decoder = ChunkedDecoder()
    assert b"".join(decoder.push(data) for data in cut(wire, places)) == b"".join(parts)
    assert decoder.done
    whole = ChunkedDecoder()
    whole.push(wire[:-1])
    assert not whole.done


def test_native_events_are_cumulative() -> None:
    result = Result(0, 0, 2)
    first = {"prompt_tokens": 5, "completion_tokens": 1, "cached_tokens": 3, "finish_reason": None}
    last = {**first, "completion_tokens": 2, "finish_reason": {"type": "length", "length": 2}}
    assert read_native({"text": "a", "output_ids": [7], "meta_info": first}, result)
    assert not read_native({"text": "a", "output_ids": [7], "meta_info": first}, result)
    assert read_native({"text": "ab", "output_ids": [7, 8], "meta_info": last}, result)
    assert (result.text, result.ids, result.cached) == ("ab", (7, 8), 3)
    assert (result.prompt_tokens, result.output_tokens, result.finish) == (5, 2, "length")


def test_an_aborted_native_request_is_an_error() -> None:
    result = Result(0, 0, 2)
    meta = {"prompt_tokens": 5, "completion_tokens": 0,
            "finish_reason": {"type": "abort", "message": "gone"}}  # fmt: skip
    read_native({"text": "", "meta_info": meta}, result)
    assert "gone" in result.error


def test_openai_chunks_add_up() -> None:
    result = Result(0, 0, 2)
    assert not read_openai({"choices": [{"delta": {"role": "assistant"}}]}, result)
    assert read_openai({"choices": [{"delta": {"content": "a"}, "finish_reason": None}]}, result)
    assert read_openai({"choices": [{"text": "b", "finish_reason": "length"}]}, result)
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    assert not read_openai({"choices": [], "usage": usage}, result)
    assert (result.text, result.output_tokens, result.finish) == ("ab", 2, "length")
    assert result.cached == -1
    details = {"prompt_tokens_details": {"cached_tokens": 4}}
    read_openai({"choices": [], "usage": {**usage, **details}}, result)
    assert result.cached == 4


def test_an_error_in_a_stream_is_kept() -> None:
    result = Result(0, 0, 2)
    read_openai({"error": {"message": "the engine died"}}, result)
    assert result.error == "the engine died"


# -- checks ------------------------------------------------------------------------------------

ASKED = [Conversation(i, (Turn((1, 2), 2),)) for i in range(2)]


def test_right_answers_have_no_problems() -> None:
    assert problems(ASKED, [answered(i, 0.0, [1.0, 2.0]) for i in range(2)], True) == []


@pytest.mark.parametrize(
    ("results", "word"),
    [
        ([answered(0, 0.0, [1.0, 2.0])], "never sent"),
        ([answered(i, 0.0, [1.0, 2.0]) for i in (0, 1, 1)], "twice"),
        ([answered(0, 0.0, [1.0, 2.0]), answered(1, 0.0, [1.0], asked=2)], "1 tokens drawn"),
        ([answered(0, 0.0, [1.0, 2.0]), answered(1, 0.0, [1.0, 2.0], error="429")], "429"),
    ],
)
def test_each_kind_of_wrong_answer_is_named(results: list[Result], word: str) -> None:
    assert any(word in line for line in problems(ASKED, results, True))


def test_fewer_tokens_than_requested_are_right_if_eos_may_end() -> None:
    results = [answered(i, 0.0, [1.0], asked=2) for i in range(2)]
    assert problems(ASKED, results, False) == []


def test_comparison_is_by_ids_where_both_have_them_else_by_text() -> None:
    a = [answered(0, 0.0, [1.0], ids=(1,), text="x"), answered(1, 0.0, [1.0], ids=(2,), text="y")]
    b = [answered(0, 0.0, [1.0], ids=(1,), text="?"), answered(1, 0.0, [1.0], ids=(3,), text="y")]
    by_ids = compare(a, b)
    assert (by_ids.same, by_ids.total, by_ids.by) == (1, 2, "ids")
    assert "(1, 0): [2] against [3]" in str(by_ids)
    for result in b:
        result.ids = ()
    by_text = compare(a, b)
    assert (by_text.same, by_text.by) == (1, "text")
    assert compare(a, a[:1]).same == 1
    assert compare(a, [a[0], answered(1, 0.0, [1.0], error="x")]).same == 1


def test_a_prompt_of_text_cannot_be_sent_as_ids() -> None:
    call = BenchCall(0, 1, [TurnPart("user", (1,), "a"), TurnPart("assistant", (), "b")], 4)
    assert call.text == "a b"
    with pytest.raises(ValueError, match="text"):
        _ = call.tokens


def test_numbers_are_found_at_any_depth() -> None:
    info = {"a": 1, "on": True, "inner": [{"b": 2.5, "a": 9}], "name": "x"}
    assert numbers(info) == {"a": 1, "b": 2.5}


# -- batches --------------------------------------------------------------------------------------


class Events(Target):
    """Answers every request with ``count`` events at one time."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def answer(self, call: BenchCall, result: Result) -> None:
        for _ in range(self._count):
            result.arrived(result.sent)


@pytest.mark.parametrize(
    ("count", "latency", "rate", "error"),
    [
        (0, None, None, "a request ended without a token"),
        (1, "-", "-", ""),
        (2, "0.00000", "-", ""),
    ],
)
def test_one_batch_shows_what_it_cannot_measure(
    count: int, latency: str, rate: str, error: str, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Answers of one event have no gap, and gaps may be 0: neither is a traceback."""
    monkeypatch.setattr(bench_one_batch, "Offline", lambda settings: Events(count))
    out = tmp_path / "runs.jsonl"
    words = ["--batch-size", "2", "--input-len", "8", "--result-filename", str(out)]
    assert bench_one_batch.main(words) == (1 if error else 0)
    shown, line = capsys.readouterr().out, json.loads(out.read_text())
    if error:
        assert f"error: {error}" in shown
        return
    assert f"median latency: {latency} s, median throughput: {rate} token/s" in shown
    assert line["median_decode_latency"] == (None if count == 1 else 0.0)
    assert line["median_decode_throughput"] is None


def test_one_batch_without_a_folder_for_its_figures_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_one_batch, "Offline", lambda settings: Events(1))
    out = tmp_path / "none" / "runs.jsonl"
    assert bench_one_batch.main(["--input-len", "8", "--result-filename", str(out)]) == 2
    assert "error: [Errno 2] No such file" in capsys.readouterr().err
