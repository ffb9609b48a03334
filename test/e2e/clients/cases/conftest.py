"""Where the server is. ``../test_clients.py`` launches it and runs these files, each with the
Python of an environment of its own."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def url() -> str:
    """Of the server, without a path."""
    return os.environ["SGLANG_URL"]


@pytest.fixture(scope="session")
def key() -> str:
    """Without it every request is answered 401."""
    return os.environ["SGLANG_KEY"]


@pytest.fixture(scope="session")
def open_url(url: str) -> str:
    """Of a server that knows no key."""
    return os.environ["SGLANG_OPEN_URL"]
