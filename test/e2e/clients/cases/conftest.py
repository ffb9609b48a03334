"""Fixtures with the server's address. ``../test_clients.py`` launches it and runs these files, each
with the Python of an environment of its own."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def url() -> str:
    """URL of the server, without a path."""
    return os.environ["SGLANG_URL"]


@pytest.fixture(scope="session")
def key() -> str:
    """The API key. The server answers every request without it with 401."""
    return os.environ["SGLANG_KEY"]


@pytest.fixture(scope="session")
def open_url(url: str) -> str:
    """URL of a server without an API key."""
    return os.environ["SGLANG_OPEN_URL"]
