"""KV on disk under a real engine: a second process finds what the first one computed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT

pytest.importorskip("torch")
import sglang as sgl
import torch
from sglang.errors import BackendError
from sglang.srt.attention.attention_protocol import KVShape
from sglang.srt.config import Config, MemoryConfig
from sglang.srt.core.batch import PageMoves
from sglang.srt.core.disk_jobs import DiskRead, DiskResult, DiskWrite
from sglang.srt.core.ints import ints
from sglang.srt.disk.disk_tier import keys_of
from sglang.srt.worker.disk_pool import DiskPool, disk_pool
from sglang.srt.worker.host_pool import HostPool
from sglang.srt.worker.kv import KVPool
from sglang.srt.worker.kv_fingerprint import fingerprint
from sglang.srt.worker.model_loading import plan_of

TEXT = "The history of the sea and of its ports is a long one. " * 20
SEARCHED = """
import json, sys, time
import sglang as sgl
directory, prompt, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
with sgl.Engine(
    log_level="warning", max_total_tokens=2000, threads=1, enable_hierarchical_cache=True,
    hicache_storage_dir=directory, hicache_storage_size=0.1, **settings,
) as engine:
    out = engine.generate(
        prompt, {"max_new_tokens": 8, "temperature": 0}, return_logprob=True
    )
    meta, deadline = out["meta_info"], time.monotonic() + 60
    while time.monotonic() < deadline:
        if engine.get_server_info()["stats"]["disk_tokens"] >= meta["prompt_tokens"] - 16:
            break
        time.sleep(0.05)
    print(json.dumps([out["text"], meta["output_token_logprobs"], meta["prompt_tokens"],
                      meta["cached_tokens"], meta["disk_tokens"]]))
"""


def pools(pages: int = 8) -> tuple[KVPool, HostPool]:
    """A device's pool with random bytes and a host pool."""
    pool = KVPool(3, KVShape(2, 8, 8), 8, 1, torch.float32, torch.device("cpu"))
    for tensor in [*pool.keys, *pool.values]:
        tensor.copy_(torch.rand(tensor.shape))
    return pool, HostPool(pool, pages)


def disk_of(directory: Path, host: HostPool, gigabytes: float = 1e-3) -> DiskPool:
    memory = MemoryConfig(
        page_size=8, enable_hierarchical_cache=True, hicache_storage_dir=str(directory),
        hicache_storage_size=gigabytes,
    )  # fmt: skip
    found = disk_pool(memory, host, lambda: b"m" * 32)
    assert found is not None
    return found


def result(disk: DiskPool) -> DiskResult:
    """Wait for a job."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if found := disk.results():
            return found[0]
        time.sleep(0.001)
    raise AssertionError("a job does not end")


def written(directory: Path) -> tuple[HostPool, DiskPool, DiskWrite]:
    """Four host pages in two slots of two pages."""
    _, host = pools()
    host.move(PageMoves(stores=ints(range(8)), stored=ints(range(8))))
    disk = disk_of(directory, host)
    keys = keys_of(ints(range(32)), 0, 16, bytes(16))
    job = DiskWrite(1, ints([4, 7]), ints([3, 1, 6, 2]), keys)
    disk.write(job)
    ended = result(disk)
    assert (ended.number, ended.copied, ended.error) == (1, 2, "")
    assert ended.size == 4 * host.page_bytes
    return host, disk, job


def test_pages_come_back_from_disk_as_they_were(tmp_path: Path) -> None:
    host, disk, job = written(tmp_path)
    before = host.read_pages(job.pages).copy()
    host.write_pages(ints([0, 7, 4, 5]), np.zeros_like(before))
    disk.read(DiskRead(2, job.slots, ints([0, 7, 4, 5]), [key.digest for key in job.keys]))
    assert result(disk).copied == 2
    assert np.array_equal(host.read_pages(ints([0, 7, 4, 5])), before)
    assert np.array_equal(host.read_pages(job.pages), before)
    disk.close()


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("fault", ["raises", "short", "damaged"])
def test_the_nth_read_that_fails_ends_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fault: str
) -> None:
    host, disk, job = written(tmp_path)
    before, calls, real = host.read_pages(job.pages).copy(), iter(range(1, 9)), os.preadv

    def preadv(file: int, buffers: Sequence[memoryview], offset: int) -> int:
        if next(calls) != number:
            return real(file, buffers, offset)
        if fault == "raises":
            raise OSError(5, "Input/output error")
        if fault == "short":
            return 0
        count = real(file, buffers, offset)
        buffers[0][10] ^= 1
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    target = ints([0, 7, 4, 5])
    host.write_pages(target, np.zeros_like(before))
    disk.read(DiskRead(2, job.slots, target, [key.digest for key in job.keys]))
    ended = result(disk)
    assert ended.copied == number - 1
    assert ended.error
    good = 2 * ended.copied
    assert np.array_equal(host.read_pages(target)[:good], before[:good])
    assert not host.read_pages(target)[good:].any(), "a damaged slot reached host memory"
    disk.close()


def test_a_size_that_holds_no_slot_is_refused(tmp_path: Path) -> None:
    _, host = pools()
    with pytest.raises(ValueError, match=r"--hicache-storage-size 1e-09 leaves no room for a slot"):
        disk_of(tmp_path, host, 1e-9)


def test_the_fingerprint_is_that_of_model_and_settings() -> None:
    def of(kernels: str = "torch", width: int = 100, **settings: object) -> bytes:
        config = Config.of(device="cpu", **settings)
        return fingerprint(plan_of(config), config, kernels, width)

    assert of() == of()
    others = [
        of(kernels="native"), of(width=200), of(page_size=16), of(dtype="bfloat16"),
        of(kv_cache_dtype="fp8"), of(load_format="dummy"),
        of(load_format="dummy", random_seed=2),
    ]  # fmt: skip
    assert len({of(), *others}) == len(others) + 1


def asked(directory: Path, prompt: str, **settings: object) -> tuple[str, object, int, int, int]:
    """One prompt to an engine in a process of its own: text, log-probabilities, tokens of the
    prompt, those cached, those read from disk."""
    paths = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    out = subprocess.run(
        [sys.executable, "-c", SEARCHED, str(directory), prompt, json.dumps(settings)],
        env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, timeout=600, check=True,
    ).stdout  # fmt: skip
    found = json.loads(out.splitlines()[-1])
    return found[0], found[1], found[2], found[3], found[4]


@pytest.mark.slow
def test_a_second_process_reads_what_the_first_computed(tmp_path: Path) -> None:
    text, logprobs, tokens, cached, disk = asked(tmp_path, TEXT)
    assert (cached, disk) == (0, 0)
    again = asked(tmp_path, TEXT)
    assert again[:2] == (text, logprobs)
    assert tokens > again[3] >= again[4] > 100, "the rest was computed before it was loaded"
    changed = asked(tmp_path, TEXT, kv_cache_dtype="fp8")
    assert changed[3:] == (0, 0), "KV of another layout"


@pytest.mark.slow
def test_a_second_engine_on_a_directory_is_refused(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "log_level": "error", "max_total_tokens": 500, "threads": 1, "hicache_storage_size": 0.01,
        "enable_hierarchical_cache": True, "hicache_storage_dir": str(tmp_path),
    }  # fmt: skip
    with sgl.Engine(**settings), pytest.raises(BackendError, match="in use by another server"):
        sgl.Engine(**settings)
    sgl.Engine(**settings).shutdown()
