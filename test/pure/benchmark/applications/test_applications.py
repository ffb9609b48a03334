"""Programs, machines and clusters of the benchmark of applications."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmark.applications import workloads
from benchmark.applications.cluster import Cluster, Setting, prompt_of
from benchmark.applications.experiments import LATENCY, OURS, THROUGHPUT
from benchmark.applications.machines import A100, as_in_paper
from benchmark.applications.workloads import (
    DOCUMENT,
    Call,
    Piece,
    Program,
    gpts,
    map_reduce,
    multi_agent,
)


def test_the_multi_agent_program_is_the_papers_graph() -> None:
    program = multi_agent(4)
    assert len(program.calls) == 1 + 4 * (1 + 2 * 3)
    assert not program.calls[0].needs
    assert [call.stage for call in program.calls[::4]][:3] == [7, 6, 5]
    reviewer, reviser = program.calls[5], program.calls[9]
    assert reviewer.needs == {0, 1, 2, 3, 4}, "all files and the design"
    assert reviser.needs == {0, 1, 2, 3, 4, 5}, "and its own review"
    assert len({call.group for call in program.calls[1:5]}) == 1
    for number, call in enumerate(program.calls):
        assert all(other < number for other in call.needs)


def test_a_reduce_reads_all_maps() -> None:
    program = map_reduce("b", 0.0)
    *maps, last = program.calls
    assert last.needs == set(range(len(maps)))
    assert sum(call.prompt[1].tokens for call in maps) == DOCUMENT


def test_equal_texts_have_equal_tokens_and_hashes() -> None:
    one, two = gpts(5.0, 20.0)[:2], gpts(5.0, 20.0, seed=0)[:2]
    assert [prompt_of(p, p.calls[0]) for p in one] == [prompt_of(p, p.calls[0]) for p in two]
    a, b = (Program(n, 0.0, [Call([Piece(9, "same"), Piece(9, n)], 3)]) for n in "ab")
    (left, hashes), (right, others) = prompt_of(a, a.calls[0]), prompt_of(b, b.calls[0])
    assert left[:9] == right[:9]
    assert left[9:] != right[9:]
    assert hashes[0] == others[0]
    assert hashes[1] != others[1]


def shared(once: bool) -> Cluster:
    """Eight calls with a prompt of 2,000 tokens in common."""
    programs = [
        Program(str(n), 0.0, [Call([Piece(2000, "long"), Piece(9, f"own {n}")], 60)])
        for n in range(8)
    ]
    cluster = Cluster(replace(Setting(), once=once), as_in_paper(A100), 1, programs)
    cluster.run()
    return cluster


def test_a_shared_prefix_is_read_once_or_by_each_row() -> None:
    once, each = shared(True), shared(False)
    assert each.engines["e0"].worker.read > 4 * once.engines["e0"].worker.read  # type: ignore[attr-defined]
    assert all(a.ended < b.ended for a, b in zip(once.runs, each.runs))


def test_served_by_application_a_program_ends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, tokens in {"TASK": 3000, "DESIGN": 40, "CODE": 40, "REVIEW": 20}.items():
        monkeypatch.setattr(workloads, name, tokens)
    seconds = {}
    for name, setting in {"ours": OURS, "latency": LATENCY, "throughput": THROUGHPUT}.items():
        cluster = Cluster(setting, as_in_paper(A100), 1, [multi_agent(3)])
        (run,) = cluster.run()
        seconds[name] = run.seconds
        assert len(run.ends) == len(run.program.calls)
        assert not any(engine.core.store.protected for engine in cluster.engines.values())
        assert all(engine.load == 0 for engine in cluster.router.engines)
    assert seconds["ours"] < seconds["throughput"] < seconds["latency"]
