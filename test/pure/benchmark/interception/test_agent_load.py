"""Programs of agents: the shape of the generated ones, and those of recorded traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark.interception.agent_load import ALL, generated, mean_live, programs_of, read_trace


def row(at: float, hashes: list[int], length: int, **fields: object) -> dict[str, object]:
    return {
        "timestamp": at, "hash_ids": hashes, "input_length": length, "output_length": 8, **fields
    }  # fmt: skip


def test_generated_programs_have_the_traces_shape() -> None:
    programs = generated(1500, 1, scale=1)
    assert generated(1500, 1, scale=1) == programs
    turns = [len(program.turns) for program in programs]
    assert sum(turns) / len(turns) == pytest.approx(10.9, rel=0.08)
    gaps = [turn.gap for program in programs for turn in program.turns[1:]]
    assert sum(gap <= 1 for gap in gaps) / len(gaps) == pytest.approx(0.86, abs=0.015)
    assert sum(gap <= 10 for gap in gaps) / len(gaps) == pytest.approx(0.95, abs=0.015)
    lengths = [program.lengths() for program in programs]
    first = [each for own in lengths for each in own[:2]]
    late = [each for own in lengths for each in own[20:]]
    assert sum(first) / len(first) == pytest.approx(27_000, rel=0.05)
    assert sum(late) / len(late) > 85_000
    assert len({program.turns[0].blocks[0] for program in programs}) == 8, "system prompts"


def test_scaled_programs_are_smaller_and_as_slow() -> None:
    whole, tenth = generated(300, 0, scale=1), generated(300, 0, scale=10)
    assert mean_live(tenth) == pytest.approx(mean_live(whole) / 10, rel=0.1)
    assert {len(program.turns) for program in tenth} <= set(range(1, 61))


def test_sessions_of_a_trace_are_programs() -> None:
    rows = [
        row(0, [1, 2, 3], 1100, session_id="a"),
        row(500, [1, 9], 900, session_id="b"),
        row(3000, [1, 2, 4, 5], 1800, session_id="a", tool_wait_ms=250.0, delay=50.0),
        row(9000, [1, 9, 10], 1200, session_id="b"),
    ]
    one, two = programs_of(rows, scale=1)
    assert one.arrival == 0.0
    assert two.arrival == 0.5
    assert one.lengths() == [1108, 1808]
    assert one.turns[1].gap == pytest.approx(0.3), "not the difference of the timestamps"
    assert one.turns[1].keep == 1024, "the blocks in common"
    assert [count for _, count in one.turns[1].blocks] == [512, 264]
    assert two.turns[1].gap == 8.5
    assert two.turns[1].keep == 900, "a block that was not full has the same beginning"
    assert [count for _, count in two.turns[1].blocks] == [124, 176]
    assert one.turns[0].blocks[0] == two.turns[0].blocks[0], "the first block is shared"


def test_rows_without_sessions_follow_their_prefix() -> None:
    rows = [
        row(0, [1, 2, 3], 1500), row(100, [7, 8], 700), row(2000, [1, 2, 4, 5], 2000),
        row(4000, [7, 8, 9], 1300),
    ]  # fmt: skip
    one, two = programs_of(rows, scale=1)
    assert [len(one.turns), len(two.turns)] == [2, 2]
    assert one.turns[1].gap == 2.0
    assert two.turns[1].keep == 700


def test_a_trace_is_scaled(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [row(0, [4, 5], 1000, session_id=1), row(5, [4, 6], 1024, session_id=1)]
    path.write_text("\n".join(json.dumps(each) for each in rows) + "\n\n")
    (program,) = read_trace(path, scale=4)
    assert program.lengths() == [252, 258]
    assert program.turns[1].keep == 128
    assert program.turns[1].keep != ALL


def test_a_row_without_a_length_is_refused() -> None:
    with pytest.raises(KeyError, match="input_length"):
        programs_of([{"timestamp": 0, "hash_ids": [1], "output_length": 3}])
