"""Host memory holds KV pages byte by byte, of every layout of a KV pool."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

pytest.importorskip("torch")
import sglang as sgl
import torch
from sglang.srt.attention.attention_protocol import KVShape
from sglang.srt.config import MemoryConfig
from sglang.srt.core.batch import PageMoves
from sglang.srt.core.ints import ints
from sglang.srt.worker import host_pool
from sglang.srt.worker.host_pool import Arriving, HostPool, host_pages
from sglang.srt.worker.kv import KVPool

PLAIN, SHARED = KVShape(2, 8, 8), KVShape(1, 12, 8, shared=True)
TEXT = "The history of the sea and of its ports is a long one. " * 20


def bits(pool: KVPool, page: int) -> list[bytes]:
    """All bytes of one page."""
    own = slice(page * pool.page_size, (page + 1) * pool.page_size)
    tensors = [*pool.keys, *pool.values, *(scale for layer in pool.scales for scale in layer)]
    return [tensor[own].contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors]


def fill(pool: KVPool) -> None:
    """Random bytes everywhere."""
    for tensor in [*pool.keys, *pool.values, *(s for layer in pool.scales for s in layer)]:
        whole = torch.randint(0, 255, tensor.shape, dtype=torch.uint8)
        tensor.copy_(whole.to(tensor.dtype))


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        (PLAIN, torch.float32), (PLAIN, torch.bfloat16), (PLAIN, torch.float8_e4m3fn),
        (PLAIN, torch.int8), (SHARED, torch.bfloat16), (SHARED, torch.int8),
    ],
)  # fmt: skip
def test_pages_come_back_as_they_were(shape: KVShape, dtype: torch.dtype, size: int) -> None:
    pool = KVPool(3, shape, 8, size, dtype, torch.device("cpu"))
    fill(pool)
    kept = [bits(pool, page) for page in range(8)]
    host = HostPool(pool, 5)
    host.move(PageMoves(stores=ints([1, 6]), stored=ints([4, 0])))
    fill(pool)
    changed = [bits(pool, page) for page in range(8)]
    host.move(PageMoves(loads=ints([0, 4]), loaded=ints([2, 3])))
    now = [bits(pool, page) for page in range(8)]
    assert (now[2], now[3]) == (kept[6], kept[1])
    assert [now[page] for page in (0, 1, 4, 5, 6, 7)] == [changed[p] for p in (0, 1, 4, 5, 6, 7)]


def test_a_page_is_stored_before_another_is_loaded_over_it() -> None:
    pool = KVPool(1, PLAIN, 2, 1, torch.float32, torch.device("cpu"))
    fill(pool)
    first, second = bits(pool, 0), bits(pool, 1)
    host = HostPool(pool, 2)
    host.move(
        PageMoves(stores=ints([0, 1]), stored=ints([0, 1]), loads=ints([1]), loaded=ints([0]))
    )
    assert (bits(pool, 0), bits(pool, 1)) == (second, second)
    host.move(PageMoves(loads=ints([0]), loaded=ints([1])))
    assert bits(pool, 1) == first


CPU = torch.device("cpu")


def pages_of(device: torch.device = CPU, pages: int = 100, **settings: Any) -> int:
    memory = MemoryConfig(page_size=2, enable_hierarchical_cache=True, **settings)
    return host_pages(memory, pages, 1000, device)


def test_the_size_is_a_ratio_or_gigabytes() -> None:
    of = pages_of
    assert host_pages(MemoryConfig(), 100, 1000, CPU) == 0
    assert of() == 200
    assert of(hicache_ratio=0.5) == 50
    assert of(hicache_size=0.001) == 500
    with pytest.raises(MemoryError, match=r"--hicache-size 1e-06 leaves no room"):
        of(hicache_size=1e-6)
    much = psutil.virtual_memory().total / 1e9 + 1
    with pytest.raises(
        MemoryError, match=r"of host memory and .* are free beside the KV cache; lower"
    ):
        of(hicache_size=much)


def test_free_memory_is_the_containers_less_the_kv_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_pool, "available_memory", lambda device: 1_000_000)
    assert pages_of(torch.device("cuda"), 300, hicache_size=0.001) == 500
    assert pages_of(CPU, 300, hicache_size=0.0004) == 200
    with pytest.raises(MemoryError, match="are free beside the KV cache; lower it"):
        pages_of(CPU, 300, hicache_size=0.0005)


@pytest.mark.parametrize("kv", ["auto", "int8"])
def test_answers_are_those_without_host_memory(kv: str, tmp_path: Path) -> None:
    """Three prompts in turn on a device for one and a half of them."""

    def answers(**more: Any) -> list[tuple[str, int, list[object]]]:
        found = []
        with sgl.Engine(
            log_level="warning", max_total_tokens=600, kv_cache_dtype=kv, threads=1, **more
        ) as engine:
            for turn in range(6):
                out = engine.generate(
                    f"{turn % 3} {TEXT[:1000]}", {"max_new_tokens": 8, "temperature": 0},
                    return_logprob=True,
                )  # fmt: skip
                meta = out["meta_info"]
                found.append((out["text"], meta["loaded_tokens"], meta["output_token_logprobs"]))
        return found

    plain, tiered = answers(), answers(enable_hierarchical_cache=True)
    assert [(text, logprobs) for text, _, logprobs in tiered] == [
        (text, logprobs) for text, _, logprobs in plain
    ]
    assert sum(loaded for _, loaded, _ in tiered) > 300
    assert not any(loaded for _, loaded, _ in plain)


def test_what_arrives_late_does_not_overwrite_what_was_read() -> None:
    """Copies from a GPU are put into the pool later. A page that they are for may have another
    owner by then, whose KV was read from disk."""
    pool = KVPool(1, PLAIN, 2, 1, torch.float32, torch.device("cpu"))
    host = HostPool(pool, 4)
    late, read = (torch.full((1, host.page_bytes), n, dtype=torch.uint8) for n in (1, 2))
    event = SimpleNamespace(synchronize=lambda: None)
    parts = list(late.split([part.shape[1] for part in host._host], 1))
    host._arriving = Arriving(event, parts, torch.tensor([3]))  # type: ignore[arg-type]
    host.write_pages(ints([3]), read.numpy())
    assert np.array_equal(host.read_pages(ints([3])), read.numpy())
