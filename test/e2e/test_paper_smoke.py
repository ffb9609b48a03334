"""The parts of ``make paper-smoke``, one by one: every claim, ablation and table on very little.

One test a part, all of them in one file, so that they share the server that plain client code asks;
then what was recorded is looked through and made into a page.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.paths import ROOT

from benchmark.harness.ablations import ABLATIONS
from benchmark.paper import claims, report
from benchmark.paper.__main__ import main
from benchmark.paper.figures import Figures
from benchmark.paper.parts import parts
from benchmark.paper.plan import Plan
from benchmark.paper.records import condensed
from benchmark.paper.smoke import FORKED, WORKS, Small

KINDS = list(WORKS)
CLAIMED = [kind for kind in KINDS if WORKS[kind][0]]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    made = Small(tmp_path_factory.mktemp("paper"), print)
    yield made
    made.end()


def names(small: Small) -> list[str]:
    return [part.name for part in small.parts()]


@pytest.mark.parametrize(
    "name", [f"{kind} {claim}".strip() for kind in KINDS for claim in WORKS[kind][0] or [""]]
)
def test_a_part_runs_and_no_answer_differs(small: Small, name: str) -> None:
    [part] = [part for part in small.parts() if part.name == name]
    before = len(small.log.records)
    assert Plan([part], 600, small.tell, print).run() == []
    told = small.log.records[before:]
    assert report.problems(told) == []
    assert {record["kind"] for record in told} - {"part", "claim"}, "nothing was measured"


def found(small: Small) -> Figures:
    """Figures of the parts that were run. Skips the test if it runs without them."""
    if len({r["part"] for r in small.log.records}) < len(small.parts()):
        pytest.skip("the parts were not all run before")
    return Figures(condensed(small.log.records))


def test_every_claim_gave_the_same_answers_with_everything_off(small: Small) -> None:
    told = [r for r in found(small).of("answers") if r["side"] == "all off"]
    assert [r["claim"] for r in told] == list(claims.NAMES)
    assert all(r["equal"] == r["items"] == small.answered for r in told)
    assert sum(r["right"] or 0 for r in told) >= 4, "the trained model answers some of them"


def test_plain_client_code_gave_the_same_answers(small: Small) -> None:
    told = {r["claim"] for r in found(small).of("answers") if r["side"] == "plain client code"}
    assert told == {*claims.NAMES} - {*claims.PARALLEL, claims.SEEING}


def test_every_ablation_was_compared_and_timed(small: Small) -> None:
    figures = found(small)
    names = {name for name in ABLATIONS if name != "full"}
    assert names <= {record["side"] for record in figures.of("answers")}
    assert names | {"full"} == set(figures.sides("ablation"))


def test_hits_that_are_forced_are_had(small: Small) -> None:
    figures = found(small)
    rates = [
        figures.value("curve", FORKED, "throughput", side, "hit_rate")
        for side in figures.sides("curve", FORKED, "throughput")
    ]
    values = [rate.value for rate in rates if rate]
    assert len(values) == 3
    # Below 0: a request that is retracted computes its prompt once more.
    assert values[0] <= 0 < values[1] < values[2]


def test_hit_rates_are_near_the_optimum(small: Small) -> None:
    told = {record["claim"]: record for record in found(small).of("hits")}
    assert set(told) == set(claims.NAMES)
    assert all(0 <= r["achieved"] <= r["optimal"] < 1 for r in told.values())


def test_both_codes_ran_in_turns(small: Small) -> None:
    figures = found(small)
    sides = figures.sides("speed", "few_shot")
    assert sides == ["full", "plain client code"]


def test_a_page_is_made_of_it_and_the_real_one_is_left_alone(small: Small) -> None:
    found(small)
    page = ROOT / "docs" / report.PAGE
    before = page.read_bytes()
    assert small.finished() == []
    made = (small.logs / "docs" / report.PAGE).read_text(encoding="utf-8")
    for name in set(report.SECTIONS) - {"machine", "throughput", "latency", "targets"}:
        text = made.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]
        assert report.NOTHING.strip() not in text, name
    assert page.read_bytes() == before


def test_words_choose_claims_and_parts(small: Small) -> None:
    def chosen(*only: str) -> list[str]:
        return [part.name for part in parts(small, only, WORKS)]

    assert chosen("few_shot", "hits") == ["hits few_shot"]
    assert chosen("overhead") == ["overhead"]
    assert chosen("react") == ["answers react", "hits react"]
    assert chosen("hits", "overhead")[-1] == "overhead"
    with pytest.raises(ValueError, match=r"'hit'.*few_shot"):
        chosen("hit")


def test_a_run_stops_at_its_time(small: Small) -> None:
    """A begun part ends after its first round, and no other part begins."""
    quick = [part for part in small.parts() if part.name == "speed few_shot"]
    told = len(small.log.records)
    Plan(quick * 2, 1e-3, small.tell, print).run()
    ends = [(r["state"], r.get("why")) for r in small.log.records[told:] if r["kind"] == "part"]
    short = "throughput: 1 of 3 rounds; latency: 1 of 3 rounds"
    never = ("out of time", "no time was left for it")
    assert ends in ([("begun", None), ("out of time", short), never], [never, never])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--only", "nobody"], "--only has 'nobody'"),
        (["--contenders", "nobody"], "--contenders has 'nobody'; use some of ['sglang'"),
        (["--minutes", "0"], "--minutes is 0"),
    ],
)
def test_a_wrong_word_costs_no_record(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept.jsonl"
    file.write_text("{}\n")
    assert main([*options, "--output-file", str(file)]) == 2
    assert told in capsys.readouterr().err
    assert file.read_text() == "{}\n"
