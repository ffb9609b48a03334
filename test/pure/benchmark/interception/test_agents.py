"""Agents on the real engine in virtual time, with and without a gate, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sglang.srt.interception.gate import ProgramGate

from benchmark.interception.agent_load import AgentTurn, Program, generated, mean_live
from benchmark.interception.agent_run import PAGE, AgentRun, GatedRun
from benchmark.interception.agents import main, play
from benchmark.interception.virtual_engine import ARMS, Machine

SMALL = Machine(capacity=24_000, host=32_000)


def test_a_turn_waits_for_the_answer_and_its_gap() -> None:
    turns = (AgentTurn(0.0, ((1, 100),), 10), AgentTurn(5.0, ((2, 50),), 10))
    outcome = AgentRun(ARMS["radix"], SMALL, [Program(1, turns, 3.0)]).run(100.0)
    assert outcome.finished == 1
    assert len(outcome.answers) == 2
    assert outcome.answers[1].cached == 109 // PAGE * PAGE
    assert outcome.seconds == pytest.approx(3.0 + 5.0 + 20 * 0.0105, abs=0.2)
    assert outcome.prefill == 100 + 160 - 96


def test_a_prompt_may_drop_the_end_of_its_context() -> None:
    turns = (AgentTurn(0.0, ((1, 100), (2, 60)), 10), AgentTurn(1.0, ((3, 50),), 10, keep=100))
    outcome = AgentRun(ARMS["radix"], SMALL, [Program(1, turns)]).run(100.0)
    assert [answer.prompt for answer in outcome.answers] == [160, 150]
    assert outcome.answers[1].cached == 100 // PAGE * PAGE


def test_waits_count_where_no_token_came() -> None:
    programs = generated(200, 0)
    outcome = AgentRun(ARMS["radix"], SMALL, programs, 24).run(15.0)
    assert outcome.ttft(1.0) >= outcome.ttft(0.9) >= outcome.ttft(0.5) > 0
    assert sum(answer.generated == 0 for answer in outcome.answers) > 0
    assert 0 < outcome.goodput(0.5) < outcome.goodput(1e9)


@pytest.mark.parametrize("arm", ["fcfs", "radix"])
def test_a_gate_computes_less_and_answers_in_time(arm: str) -> None:
    programs = generated(400, 0)
    clients = round(4 * SMALL.capacity / mean_live(programs))
    plain = play(arm, SMALL, programs, clients, 40.0)
    gated = play(f"{arm}+gate", SMALL, programs, clients, 40.0)
    assert gated.prefill < plain.prefill
    assert gated.hit_rate > plain.hit_rate
    if arm == "fcfs":
        assert gated.goodput(1.0) > 1.2 * plain.goodput(1.0)


def test_a_gate_with_room_for_all_changes_nothing() -> None:
    programs = generated(100, 0)
    plain = AgentRun(ARMS["radix"], SMALL, programs, 4).run(20.0)
    gate = ProgramGate(100.0 * SMALL.capacity, 30.0, 2.0, PAGE)
    gated = GatedRun(ARMS["radix"], SMALL, programs, 4, gate).run(20.0)
    assert gated.answers == plain.answers


def test_the_command_prints_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--loads", "1", "--arms", "radix,radix+gate", "--seconds", "5"]) == 0
    out = capsys.readouterr().out
    assert "Belady" in out
    assert "radix+gate / without a gate at 1:" in out
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 1000 * i, "hash_ids": [1, 2 + i], "input_length": 900, "output_length": 40}
        for i in range(4)
    ]  # fmt: skip
    trace.write_text("\n".join(map(json.dumps, rows)))
    assert main(["--loads", "0.1", "--arms", "fcfs", "--seconds", "5", "--trace", str(trace)]) == 0
    assert "fcfs" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--arms", "gate"])
    assert "'gate' is not one of fcfs" in capsys.readouterr().err
