"""Uploads: the same bytes in two languages, and of two tenants."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator

import pytest
from sglang.srt.inferlet.sandbox.uploads import Language, UploadedProgram, Uploads
from sglang.srt.requests.request_error import RequestError

TEXT = b"main = 1"


@pytest.fixture
def uploads() -> Iterator[Uploads]:
    made = Uploads(2)
    yield made
    made.close()


def put(uploads: Uploads, owner: str, language: Language, data: bytes = TEXT) -> UploadedProgram:
    return asyncio.run(uploads.put(owner, data, "name", language))


def test_tenants_have_the_same_bytes_in_two_languages(uploads: Uploads) -> None:
    python, javascript = put(uploads, "ann", "python"), put(uploads, "bob", "javascript")
    assert python.id == javascript.id == hashlib.sha256(TEXT).hexdigest()
    assert (python.kind, javascript.kind) == ("python", "javascript")
    assert javascript.source == TEXT.decode()
    assert uploads.get("ann", python.id) is python
    assert uploads.get("bob", python.id) is javascript
    assert put(uploads, "eve", "python") is python
    uploads.remove("ann", python.id)
    assert uploads.get("eve", python.id) is python
    uploads.remove("eve", python.id)
    assert uploads.all("bob") == [javascript]
    with pytest.raises(RequestError, match="There is no inferlet"):
        uploads.get("eve", python.id)


def test_a_tenant_has_the_same_bytes_once(uploads: Uploads) -> None:
    kept = put(uploads, "ann", "javascript")
    assert put(uploads, "ann", "javascript") is kept
    with pytest.raises(RequestError, match="of the kind javascript already; delete that"):
        put(uploads, "ann", "python")
    put(uploads, "bob", "python")
    with pytest.raises(RequestError, match="of the kind javascript already"):
        put(uploads, "ann", "python")
    uploads.remove("ann", kept.id)
    assert put(uploads, "ann", "python").kind == "python"


def test_a_tenant_has_so_many(uploads: Uploads) -> None:
    for number in range(2):
        put(uploads, "ann", "python", b"%d" % number)
    with pytest.raises(RequestError, match="There are 2 inferlets already"):
        put(uploads, "ann", "javascript")
