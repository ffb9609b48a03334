"""Routes of files and batches on a server that has no directory for them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from helpers.http_server import is_error
from helpers.scripted_server import Paced, serve_scripted
from helpers.toy_tokenizer import byte_level
from sglang.srt.runtime.batches.batch_input import ENDPOINTS
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.batch_api.batch_setup import HANDLERS


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


def test_every_endpoint_of_a_batch_has_its_handler() -> None:
    assert {path: handler.__name__ for path, handler in HANDLERS.items()} == {
        "/v1/chat/completions": "chat_completions", "/v1/completions": "completions",
        "/v1/embeddings": "embeddings", "/v1/responses": "create",
    }  # fmt: skip
    assert set(HANDLERS) == set(ENDPOINTS)
