"""``python -m sglang.bench_serving`` and its kin: what they count, on the embedded model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from helpers.fake_endpoint import FakeEndpoint
from helpers.paths import PYTHON
from sglang import bench_offline_throughput, bench_one_batch, bench_serving, check_env
from sglang.srt.commands.bench.dataset import Dataset

RANDOM = ["--num-prompts", "6", "--random-input-len", "12", "--random-output-len", "5",
          "--random-range-ratio", "1.0"]  # fmt: skip
SERVER = ["--max-total-tokens", "8192", "--device", "cpu", "--threads", "1",
          "--log-level", "warning"]  # fmt: skip
COMMANDS = ("bench_serving", "bench_offline_throughput", "bench_one_batch", "check_env")


def one(path: Path) -> dict[str, Any]:
    (line,) = path.read_text(encoding="utf-8").splitlines()
    return json.loads(line)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_without_the_projects_folder(command: str, tmp_path: Path) -> None:
    """An installed package has no ``benchmark`` beside it."""
    done = subprocess.run(
        [sys.executable, "-m", f"sglang.{command}", "--help"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PYTHON)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"python -m sglang.{command}" in done.stdout


# -- serving --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runtime() -> Iterator[sgl.Runtime]:
    pytest.importorskip("torch")
    settings: dict[str, Any] = {
        "max_total_tokens": 8192,
        "device": "cpu",
        "threads": 1,
        "log_level": "warning",
    }
    with sgl.Runtime(**settings) as runtime:
        yield runtime


@pytest.mark.parametrize("backend", ["sglang", "sglang-oai", "sglang-oai-chat"])
def test_load_on_a_server(
    backend: str, runtime: sgl.Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs.jsonl"
    words = ["--backend", backend, "--base-url", runtime.url, *RANDOM, "--max-concurrency", "2",
             "--request-rate", "500", "--flush-cache", "--output-file", str(out),
             "--output-details"]  # fmt: skip
    status = bench_serving.main(words)
    shown = capsys.readouterr()
    assert status == 0, shown.err
    found = one(out)
    assert (found["completed"], found["failed"], found["total_output_tokens"]) == (6, 0, 30)
    assert found["output_lens"] == [5] * 6
    assert found["errors"] == [""] * 6
    if backend != "sglang-oai-chat":  # words have no fixed number of tokens
        assert found["total_input_tokens"] == 72
        assert found["input_lens"] == [12] * 6
    assert found["max_concurrency"] == 2
    assert found["request_throughput"] * found["duration"] == pytest.approx(6)
    assert 0 < found["mean_ttft_ms"] <= found["mean_e2e_latency_ms"]
    assert found["median_itl_ms"] <= found["p99_itl_ms"] <= found["max_itl_ms"]
    for line in ("Serving Benchmark Result", "Successful requests:                     6",
                 "Total generated tokens:                  30", "Mean TTFT (ms):",
                 "Median TPOT (ms):", "P99 ITL (ms):", "Request throughput (req/s):"):  # fmt: skip
        assert line in shown.out


def test_shared_prefixes_are_met_in_the_cache(runtime: sgl.Runtime, tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    words = ["--base-url", runtime.url, "--dataset-name", "generated-shared-prefix",
             "--gsp-num-groups", "2", "--gsp-prompts-per-group", "3", "--gsp-system-prompt-len",
             "40", "--gsp-question-len", "8", "--gsp-output-len", "2", "--flush-cache",
             "--max-concurrency", "1", "--output-file", str(out)]  # fmt: skip
    assert bench_serving.main(words) == 0
    found = one(out)
    assert (found["completed"], found["total_input_tokens"]) == (6, 6 * 48)
    assert found["total_cached_tokens"] >= 4 * 40


def test_what_is_sent(tmp_path: Path) -> None:
    with FakeEndpoint() as server:
        words = ["--base-url", server.url, *RANDOM, "--return-logprob", "--extra-request-body",
                 '{"priority": 3}', "--warmup-requests", "2", "--disable-ignore-eos"]  # fmt: skip
        assert bench_serving.main(words) == 0
        bodies = server.bodies
    assert len(bodies) == 8
    prompts = {tuple(body["input_ids"]) for body in bodies}
    assert len(prompts) == 8, "a warm-up has prompts of its own"
    for body in bodies:
        assert (body["priority"], body["return_logprob"], len(body["input_ids"])) == (3, True, 12)
        assert body["sampling_params"]["ignore_eos"] is False


def test_errors_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs.jsonl"
    with FakeEndpoint(busy=3) as server:
        words = ["--base-url", server.url, *RANDOM, "--warmup-requests", "0", "--output-file",
                 str(out)]  # fmt: skip
        assert bench_serving.main(words) == 1
    assert (one(out)["completed"], one(out)["failed"]) == (4, 2)
    shown = capsys.readouterr()
    assert "Failed requests:                         2" in shown.out
    assert shown.err.count("error: ") == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--port", "1"], "no answer from http://127.0.0.1:1"),
        (["--num-prompts", "0"], "--num-prompts is 0; it must be at least 1"),
        (["--random-range-ratio", "2"], "--random-range-ratio is 2.0; it must be from 0 to 1"),
        (["--request-rate", "0"], "--request-rate is 0.0; it must be positive"),
    ],
)
def test_what_cannot_be_measured(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_serving.main(words) == 2
    assert told in capsys.readouterr().err


def test_the_same_seed_makes_the_same_work() -> None:
    dataset = Dataset(num_prompts=400, random_input_len=20, random_output_len=9)
    work = dataset.work()
    assert work == dataset.work()
    assert {1, 20} <= {len(c.turns[0].tokens) for c in work} <= set(range(1, 21))
    assert {c.turns[0].output for c in work} <= set(range(1, 10))


# -- in this process ------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["engine", "runtime"])
def test_offline_throughput(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "runs.jsonl"
    words = ["--backend", backend, *RANDOM, "--result-filename", str(out), *SERVER]
    status = bench_offline_throughput.main(words)
    shown = capsys.readouterr()
    assert status == 0, shown.err
    found = one(out)
    counted = [found[f"total_{what}_tokens"] for what in ("input", "output")]
    assert (found["backend"], found["successful_requests"], counted) == (backend, 6, [72, 30])
    assert found["total_throughput"] == pytest.approx(102 / found["total_latency"])
    assert "Offline Throughput Benchmark Result" in shown.out
    assert "Total input tokens:                      72" in shown.out


def test_one_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "runs.jsonl"
    words = ["--batch-size", "1", "3", "--input-len", "16", "--output-len", "4", "--run-name", "x",
             "--result-filename", str(out), *SERVER]  # fmt: skip
    assert bench_one_batch.main(words) == 0
    shown = capsys.readouterr().out
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    sizes = [(line["batch_size"], line["input_len"], line["output_len"]) for line in lines]
    assert sizes == [(1, 16, 4), (3, 16, 4)]
    for line in lines:
        assert line["run_name"] == "x"
        assert 0 < line["prefill_latency"] < line["total_latency"]
        assert line["prefill_throughput"] * line["prefill_latency"] == pytest.approx(
            16 * line["batch_size"]
        )
        assert line["overall_throughput"] * line["total_latency"] == pytest.approx(
            20 * line["batch_size"]
        )
    assert len(re.findall(r"^Prefill\. latency: [\d.]+ s, throughput: ", shown, re.M)) == 2
    assert "Decode.  median latency: " in shown


def test_a_batch_that_does_not_fit_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert bench_one_batch.main(["--output-len", "1"]) == 2
    assert "--output-len is 1; it must be at least 2" in capsys.readouterr().err
    words = ["--input-len", "500", *SERVER, "--max-total-tokens", "64"]
    assert bench_one_batch.main(words) == 1
    assert "error: " in capsys.readouterr().out
    assert bench_offline_throughput.main([*RANDOM, "--page-size", "0"]) == 2
    assert "--page-size is 0" in capsys.readouterr().err


def test_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    assert check_env.main([]) == 0
    out = capsys.readouterr().out
    for line in (f"Python: {sys.version.split()[0]}", f"sglang: {sgl.__version__}", "torch: ",
                 "ulimit soft: ", "device: "):  # fmt: skip
        assert re.search(rf"^{re.escape(line)}", out, re.M)
