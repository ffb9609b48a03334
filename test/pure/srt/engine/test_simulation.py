"""Random histories of the engine over a fake worker, 500 of them. ``make test-long`` runs 4,000
with the same least counts, ``make histories`` any number without them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import histories
import pytest
from helpers.paths import PYTHON, ROOT, TESTS
from helpers.seeds import LONG
from helpers.simulation import FINDERS, HISTORIES, History, simulate

CHUNK = 500

# Least counts in a chunk: about half of what is usual. Without them a change of the engine or of
# the simulation could make it prove nothing.
USUAL = {
    "aborts of retracted requests": 12,
    "aborts of running requests": 100,
    "aborts of waiting requests": 100,
    "aborts that tell what was drawn": 40,
    "accepted drafts": 300,
    "adapters loaded": 100,
    "adapters loaded while others compute": 90,
    "adapters unloaded in use": 20,
    "answers of a hundred tokens": 1,
    "answers with a bias": 300,
    "answers with a cut distribution": 300,
    "answers with a grammar": 300,
    "answers with a salt": 400,
    "answers with a watch": 300,
    "answers with an adapter": 100,
    "answers with images": 200,
    "answers with log-probabilities": 500,
    "answers with parts": 100,
    "answers with penalties": 500,
    "cached tokens": 4000,
    "cached with a bias": 100,
    "cached with a cut distribution": 100,
    "cached with a grammar": 100,
    "cached with a salt": 100,
    "cached with a watch": 100,
    "cached with an adapter": 50,
    "cached with images": 90,
    "cached with log-probabilities": 100,
    "cached with parts": 80,
    "cached with penalties": 200,
    "claims that expired": 40,
    "claims that gave way": 20,
    "compactions of the heap": 4,
    "contexts parked": 400,
    "dead ends": 60,
    "drafted with a bias": 30,
    "drafted with a cut distribution": 40,
    "drafted with a grammar": 70,
    "drafted with a salt": 30,
    "drafted with a watch": 30,
    "drafted with an adapter": 8,
    "drafted with images": 10,
    "drafted with log-probabilities": 80,
    "drafted with parts": 10,
    "drafted with penalties": 60,
    "embeddings by every": 40,
    "embeddings by last": 40,
    "embeddings by mean": 30,
    "ends by a pattern": 30,
    "ends by a string": 100,
    "evictions": 10000,
    "failed passes": 50,
    "failed requests": 100,
    "families of forks": 40,
    "flushes": 20,
    "forced tokens": 400,
    "forks of busy contexts": 300,
    "forks of idle contexts": 100,
    "histories of large pages": 100,
    "histories that retract": 50,
    "images that cannot be encoded": 10,
    "loaded with a grammar": 5,
    "loaded with a salt": 3,
    "loaded with images": 2,
    "loaded with parts": 1,
    "long histories": 1,
    "overtakes": 200,
    "passes of draft models": 600,
    "refused requests": 400,
    "rejected drafts": 300,
    "requests with a priority": 1000,
    "requests": 2000,
    "requests held for a target": 2000,
    "requests with a hint": 900,
    "requests beyond the context": 30,
    "requests that arrived before": 300,
    "requests on unknown adapters": 80,
    "requests refused as busy": 200,
    "requests refused as invalid": 100,
    "retracted with a bias": 10,
    "retracted with a cut distribution": 20,
    "retracted with a grammar": 10,
    "retracted with a hint": 500,
    "retracted with a salt": 10,
    "retracted with a watch": 10,
    "retracted with an adapter": 4,
    "retracted with images": 7,
    "retracted with log-probabilities": 30,
    "retracted with parts": 3,
    "retracted with penalties": 30,
    "retractions": 100,
    "rows sharing within a pass": 200,
    "rows that follow": 300,
    "rows that follow with penalties": 100,
    "scored prompts": 300,
    "splits": 300,
    "tokens loaded from host memory": 200,
    "tokens stored in host memory": 2000,
    "texts drafted by auto": 4,
    "texts drafted by draft": 40,
    "texts drafted by ngram": 1,
    "texts cut between engines": 20,
    "texts that went on": 25,
}


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 4000 if LONG else HISTORIES, CHUNK))
def test_histories(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        seen += simulate(seed).seen
    rare = {name: seen[name] for name, least in USUAL.items() if seen[name] < least}
    assert not rare, f"histories {first} to {first + CHUNK - 1} hardly contain: {rare}"


@pytest.mark.parametrize("seed", FINDERS)
def test_histories_that_alone_find_a_fault(seed: int) -> None:
    simulate(seed)


def test_a_failed_pass_leaves_no_drafts_in_other_contexts() -> None:
    """A request with drafts in a later pass waits again: the drafts are not confirmed tokens."""
    simulate(20020658)


@pytest.mark.slow
def test_a_history_is_a_function_of_its_seed() -> None:
    for seed in range(7, 27):
        one, two = simulate(seed), simulate(seed)
        assert one.worker.batches == two.worker.batches
        assert one.ended == two.ended
        assert one.seen == two.seen


@pytest.mark.slow
def test_make_histories_says_what_they_contain() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "histories", "--count", "26", "--seed", "5", "--jobs", "1"],
        cwd=ROOT, env={"PYTHONPATH": f"{PYTHON}:{TESTS}"}, timeout=250,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "histories 26" in done.stdout
    assert "0 of 26 histories from seed 5 on broke a promise" in done.stdout


def test_make_histories_names_the_seed_of_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: History) -> None:
        raise AssertionError("injected")

    monkeypatch.setattr(History, "_finish", broken)
    seen, (failure,) = histories.run(range(3, 4))
    assert not seen
    assert failure.startswith("history 3 broke a promise: AssertionError: injected")
    assert failure.endswith("(replay: make histories SEED=3 COUNT=1)")
    with pytest.raises(SystemExit):
        histories.main(["--count", "0"])
    assert "--count is 0; it must be at least 1" in capsys.readouterr().err
