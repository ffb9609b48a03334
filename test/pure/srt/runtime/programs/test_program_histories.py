"""Histories of programs at random: no get waits, every value is the oracle's, nothing is left."""

from __future__ import annotations

import asyncio

import pytest
from helpers.program_histories import HISTORIES, History


@pytest.mark.parametrize("part", range(4))
def test_no_get_waits_and_nothing_is_left(part: int) -> None:
    for seed in range(part * HISTORIES // 4, (part + 1) * HISTORIES // 4):
        asyncio.run(History(seed).play())
