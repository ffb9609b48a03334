"""The real engine in virtual time: what finishes, what is computed again, and what is copied."""

from __future__ import annotations

import pytest

from benchmark.interception.__main__ import broken, main
from benchmark.interception.sessions import LONGEST, WORKLOADS, sessions
from benchmark.interception.virtual_engine import ARMS, Machine, Outcome, Run

SMALL = Machine(capacity=16_000, host=100_000)


def outcome(arm: str, seconds: float = 50.0) -> Outcome:
    return Run(ARMS[arm], SMALL, sessions(3.0, seconds, 0, list(WORKLOADS))).run(seconds)


@pytest.mark.slow
def test_sessions_are_those_of_their_table() -> None:
    found = sessions(5.0, 2000.0, 1, ["ve"])
    assert sessions(5.0, 2000.0, 1, ["ve"]) == found
    assert len(found) == pytest.approx(10_000, rel=0.05)
    for session in found[:500]:
        total = sum(turn.generated + turn.returned for turn in session.turns)
        assert session.prompt + total <= LONGEST + 100
        assert session.turns[-1].seconds == 0
    seconds = [turn.seconds for session in found for turn in session.turns[:-1]]
    assert sum(seconds) / len(seconds) == pytest.approx(0.09, rel=0.02)


@pytest.mark.slow
def test_a_run_is_a_function_of_its_sessions() -> None:
    one, two = outcome("priced"), outcome("priced")
    assert (one.finished, one.p50, one.computed) == (two.finished, two.p50, two.computed)


@pytest.mark.slow
def test_host_memory_finishes_more_and_computes_less() -> None:
    discard, radix, tiers = outcome("discard"), outcome("radix"), outcome("tiers")
    assert tiers.finished >= radix.finished >= discard.finished
    assert tiers.p50 < radix.p50 < discard.p50
    assert tiers.recomputed < radix.recomputed < discard.recomputed
    assert tiers.loaded > 0
    assert tiers.stored > 0
    assert not radix.loaded
    assert tiers.stall <= 0.02


def test_priced_claims_finish_no_less_and_compute_less() -> None:
    tiers, priced, kept = outcome("tiers"), outcome("priced"), outcome("preserve")
    assert priced.finished >= max(tiers.finished, kept.finished)
    assert priced.recomputed < tiers.recomputed
    assert priced.waste < kept.waste
    assert priced.stall <= 0.02


def test_wrong_hints_do_little_harm() -> None:
    right = outcome("priced oracle").finished
    for arm in ("priced", "priced hints / 10", "priced hints x 10"):
        assert outcome(arm).finished >= 0.9 * right


def test_virtual_time_is_that_of_the_passes() -> None:
    machine = Machine(capacity=100_000)
    run = Run(ARMS["radix"], machine, sessions(0.2, 30.0, 0, ["math"]))
    outcome = run.run(1000.0)
    assert all(progress.ended for progress in outcome.progress)
    assert outcome.recomputed == 0
    assert outcome.waste == 0
    needed = sum(
        progress.session.prompt
        + sum(turn.generated + turn.returned for turn in progress.session.turns)
        for progress in outcome.progress
    )
    assert outcome.computed == needed - len(outcome.progress), "a last token is not computed"
    assert run.worker.forward_ms >= machine.token_ms * outcome.computed


def test_broken_claims_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    zeros = dict.fromkeys(
        ("p50", "p90", "ttft", "computed", "recomputed", "waste", "stored", "loaded",
         "retractions"), 0,
    )  # fmt: skip
    slow = Outcome(finished=1.0, stall=0.5, **zeros)
    assert len(broken(6.0, 240.0, {"priced": slow, "discard": slow, "radix": slow})) == 3
    assert main(["--rates", "1", "--arms", "radix", "--seconds", "3"]) == 0
    assert "radix" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--arms", "nothing"])
    assert "'nothing' is not one of discard" in capsys.readouterr().err
