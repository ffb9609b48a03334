"""The real engine in virtual time: what finishes, what is computed again, and what is copied."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark.interception.__main__ import main
from benchmark.interception.claims import judged
from benchmark.interception.records import MIXED, Record, grouped, read
from benchmark.interception.session_run import Outcome, Run
from benchmark.interception.sessions import LONGEST, WORKLOADS, sessions
from benchmark.interception.techniques import TECHNIQUES
from benchmark.interception.virtual_engine import ARMS, EVERY_ARM, STEPS, Machine

SMALL = Machine(capacity=16_000, host=100_000)


def outcome(arm: str, seconds: float = 50.0, lost: float = 0.0) -> Outcome:
    played = sessions(3.0, seconds, 0, list(WORKLOADS), lost)
    return Run(EVERY_ARM[arm], SMALL, played).run(seconds)


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
    tiers, priced, kept = (outcome(arm, 40.0) for arm in ("tiers", "priced", "preserve"))
    assert priced.finished >= max(tiers.finished, kept.finished)
    assert priced.recomputed < tiers.recomputed
    assert priced.waste < kept.waste
    assert priced.stall <= 0.02


def test_wrong_hints_do_little_harm() -> None:
    right = outcome("priced oracle", 30.0).finished
    for arm in ("priced", "priced hints / 10", "priced hints x 10"):
        assert outcome(arm, 30.0).finished >= 0.9 * right


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


def test_calls_that_never_return_cost_little() -> None:
    closed, parked = (outcome(arm, 25.0, lost=0.5) for arm in ("priced closes", "priced"))
    begun = sum(bool(progress.first) for progress in parked.progress)
    assert parked.finished * 25 <= 0.7 * begun, "many sessions were lost"
    assert parked.finished >= 0.9 * closed.finished


def test_techniques_give_up_what_they_do_not_keep() -> None:
    discarded, swapped = outcome("+ chunks", 12.0), outcome("+ swap in budget", 12.0)
    kept, retained = outcome("+ preserve short", 12.0), outcome("ttl", 12.0)
    assert not discarded.loaded
    assert swapped.stored > 0
    assert swapped.recomputed < discarded.recomputed
    assert kept.recomputed < swapped.recomputed
    assert max(swapped.stall, kept.stall) <= 0.02
    assert retained.waste > outcome("priced", 12.0).waste, "what is retained is withheld"


def test_the_breakdown_begins_and_ends_with_arms() -> None:
    first, *_, last = STEPS
    assert (first, last) == ("discard", "priced")
    assert {arm.parking for arm in STEPS.values()} >= set(TECHNIQUES)
    assert len({repr(arm) for arm in STEPS.values()}) == len(STEPS), "two steps are one arm"


def made(arm: str, finished: float, **more: float) -> Record:
    numbers = dict.fromkeys(("p50", "p90", "ttft", "waste", "stall", "again", "moved"), 0.0)
    return Record(MIXED, 6.0, arm, 0.0, 0, 240.0, finished, **numbers | more)


def test_missed_claims_are_named() -> None:
    claims = judged(grouped([made("priced", 1.0, stall=0.5), made("radix", 1.0)]))
    assert [claim.kept for claim in claims] == [False, False]
    assert "priced against radix: 1.00x (claimed 1.5x)" in claims[0].text
    assert "copies stall 50.00%" in claims[1].text
    oracle = [made("priced oracle", 10.0), made("priced hints x 10", 9.4)]
    claims = judged(grouped([made("priced", 9.4), *oracle]))
    assert [claim.kept for claim in claims] == [True, False, True]
    means = judged(grouped([made("priced", 1.0), made("priced", 2.0), made("radix", 1.0)]))
    assert means[0].kept, "a mean of 1.5 is enough"


def test_records_are_measured_kept_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    kept, plot = tmp_path / "runs.jsonl", tmp_path / "arms.svg"
    short = ["--rates", "1", "--seconds", "3", "--seeds", "2", "--arms", "radix,priced"]
    assert main([*short, "--json", str(kept), "--workloads", "mixed,qa"]) == 0
    printed = capsys.readouterr().out
    assert len(read(kept)) == 8
    assert main(["--report", str(kept), "--plot", str(plot)]) == 0
    assert capsys.readouterr().out == printed
    assert "</svg>" in plot.read_text()
    assert main(["--report", str(kept), "--breakdown", "--plot", str(plot)]) == 0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--arms", "nothing"), "'nothing' is not one of discard"),
        (("--rates", "0"), "0.0 sessions a second; give more than 0"),
        (("--seeds", "0"), "0 seeds; give at least 1"),
        (("--lost", "1"), "a share of 1.0; give at least 0 and less than 1"),
    ],
)
def test_bad_options_are_refused(
    given: tuple[str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(given)
    assert told in capsys.readouterr().err
