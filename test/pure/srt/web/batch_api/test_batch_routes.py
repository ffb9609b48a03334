"""Routes of files and batches on a server that has no directory for them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from helpers.http_server import is_error
from helpers.scripted_server import Paced, serve_scripted
from helpers.toy_tokenizer import byte_level
from sglang.srt.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_scripted(Paced(Tokenizer(byte_level(tmp_path_factory.mktemp("model"))))) as url:
        yield url


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "files"), ("POST", "files"), ("GET", "files/a"), ("DELETE", "files/a"),
     ("GET", "files/a/content"), ("GET", "batches"), ("POST", "batches"), ("GET", "batches/a"),
     ("POST", "batches/a/cancel")],
)  # fmt: skip
def test_every_route_names_the_flag(url: str, method: str, path: str) -> None:
    reply = httpx.request(method, f"{url}/v1/{path}", timeout=60)
    assert "start it with --batch-dir DIRECTORY" in is_error(reply, 400)["message"]
