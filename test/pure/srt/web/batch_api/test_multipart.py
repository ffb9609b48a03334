"""Forms of uploads: the file goes to disk as it arrives, whatever the pieces."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.batches import file_store
from sglang.srt.runtime.batches.file_store import FileStore
from sglang.srt.web.batch_api import routes
from sglang.srt.web.batch_api.multipart import MAX_FIELD, MAX_FIELDS, UploadForm, read_form
from sglang.srt.web.exchange.error_replies import ServerError
from starlette.requests import Request

TYPE = "multipart/form-data; boundary=XX"


def part(name: str, value: bytes, more: str = "") -> bytes:
    head = f'--XX\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--XX--\r\n"


FILE = part("file", b"line\r\n--X\r\n", '; filename="../../a b.jsonl"')
WHOLE = form(part("purpose", b"batch"), FILE)


def sent(pieces: list[bytes], kind: str = TYPE) -> Request:
    async def receive() -> dict[str, Any]:
        data = pieces.pop(0) if pieces else b""
        return {"type": "http.request", "body": data, "more_body": bool(pieces)}

    scope = {"type": "http", "headers": [(b"content-type", kind.encode())]}
    return Request(scope, receive)


def read(
    tmp_path: Path, body: bytes, kind: str = TYPE, seed: int | None = None
) -> tuple[UploadForm, bytes]:
    """The form and the file. ``seed``: the body comes in pieces of any size."""
    store = FileStore(tmp_path, 1 << 16, 1 << 20)
    upload, pieces, rng = store.begin(""), list[bytes](), random.Random(seed)
    while body:
        size = len(body) if seed is None else rng.randint(1, 9)
        pieces.append(body[:size])
        body = body[size:]
    try:
        found = asyncio.run(read_form(sent(pieces, kind), upload))
        data = store.path(upload.finish("a", "batch", 3600).id).read_bytes()
        return found, data
    finally:
        upload.drop()
        assert store.size == sum(record.bytes for record in store.of(""))


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_the_pieces_do_not_matter(tmp_path: Path, seed: int | None) -> None:
    found, data = read(tmp_path, WHOLE, seed=seed)
    assert found.fields == {"purpose": "batch"}
    assert found.filename == "../../a b.jsonl"
    assert data == b"line\r\n--X\r\n"


BAD: list[tuple[bytes, str]] = [
    (b"", "ends in the middle"),
    (b"no form", "no multipart form"),
    (WHOLE[:-8], "ends in the middle"),
    (form(FILE, FILE), "has two files"),
    (form(part("purpose", b"x" * (MAX_FIELD + 1))), "has more than 4096 bytes"),
    (form(*(part("same", b"") for _ in range(MAX_FIELDS + 1))), "more than 32 fields"),
    (WHOLE + b"x" * 400_000, "65536 bytes .--batch-max-file-bytes. and 262144"),
    (form(part("file", b"x" * 70_000, '; filename="a"')), "--batch-max-file-bytes"),
    (form(part("a", b"", f'; filename="{"x" * 9000}"')), "Maximum header size exceeded"),
    (form(b"--XX\r\n" + b"A: b\r\n" * 5000 + b"\r\n\r\n"), "no multipart form"),
]


@pytest.mark.parametrize(("body", "words"), BAD)
def test_a_bad_form_leaves_nothing(tmp_path: Path, body: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read(tmp_path, body)
    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "text/plain", ""])
def test_another_kind_of_body_is_a_415(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ServerError, match="send multipart/form-data") as refused:
        read(tmp_path, WHOLE, kind)
    assert refused.value.code == "unsupported_media_type"


@pytest.mark.parametrize("cancels", [1, 2, 3])
@pytest.mark.parametrize(("owner", "name"), [(FileStore, "reserve"), (file_store, "save")])
def test_an_upload_that_is_cancelled_is_whole_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, cancels: int
) -> None:
    """The loop ends, and all its tasks, while a thread writes the file or its record. The server
    has cancelled the request before."""
    store = FileStore(tmp_path, 1 << 16, 1 << 20)
    state: Any = SimpleNamespace(batches=SimpleNamespace(files=store))
    reached, go, real = threading.Event(), threading.Event(), getattr(owner, name)

    def slow(*given: Any) -> Any:
        reached.set()
        assert go.wait(60)
        return real(*given)

    async def main() -> None:
        task = asyncio.ensure_future(routes.upload(state, sent([WHOLE])))
        assert await asyncio.to_thread(reached.wait, 60)
        for _ in range(cancels):
            for one in asyncio.all_tasks() - {asyncio.current_task()}:
                one.cancel()
            for _ in range(9):
                await asyncio.sleep(0)
        go.set()
        await asyncio.wait({task})
        assert task.cancelled()

    monkeypatch.setattr(owner, name, slow)
    asyncio.run(main())
    records = store.of("")
    assert len(records) == (name == "save")
    assert {store.path(one.id).read_bytes() for one in records} <= {b"line\r\n--X\r\n"}
    assert len(list((tmp_path / "files").iterdir())) == 2 * len(records)
    assert store.size == sum(one.bytes for one in records)
