"""Adapters on ranks: a load that fails is answered, and the rank goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.ranks.rank import Rank
from sglang.srt.ranks.rank_messages import LoadOnRank


@pytest.mark.parametrize(
    ("error", "told"),
    [(ValueError("its rank is 9"), "its rank is 9"), (KeyError("r"), "KeyError('r')")],
)
def test_a_failed_load_of_an_adapter_is_an_answer(error: Exception, told: str) -> None:
    def load(number: int, path: str, pinned: bool) -> Any:
        raise error

    rank: Any = object.__new__(Rank)
    rank.start, rank.worker = SimpleNamespace(epoch=7, rank=1), SimpleNamespace(load_adapter=load)
    answer = rank._load_adapter(LoadOnRank(7, 3, "path", False))
    assert (answer.number, answer.error) == (3, told)
