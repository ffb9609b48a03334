"""Uploads: the same bytes in two languages, and of two tenants."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sglang.srt.inferlet.host import compiling as compiling_process
from sglang.srt.inferlet.sandbox import uploads as uploading
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


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Compiles whatever is sent to its own bytes, which it lists."""
    compiled = list[bytes]()

    async def compile_beside(source: Path, target: Path, seconds: int, most: int) -> bool:
        compiled.append(source.read_bytes())
        target.write_bytes(compiled[-1])
        return False

    monkeypatch.setattr(uploading, "compiled_beside", compile_beside)
    return compiled


async def several(uploads: Uploads, owners: str, *datas: bytes) -> list[object]:
    work = [uploads.put(owner, data, "", None) for owner in owners for data in datas]
    return list(await asyncio.gather(*work, return_exceptions=True))


def files(uploads: Uploads) -> list[bytes]:
    return sorted(path.read_bytes() for path in uploads._directory.iterdir())


@pytest.mark.usefixtures("compiling")
def test_programs_sent_at_once_are_counted(uploads: Uploads) -> None:
    found = asyncio.run(several(uploads, "a", b"1", b"2", b"3", b"4"))
    assert [isinstance(one, RequestError) for one in found] == [False, False, True, True]
    assert len(uploads.all("a")) == 2
    assert files(uploads) == [b"1", b"2"]


def test_bytes_sent_at_once_are_compiled_once(uploads: Uploads, compiling: list[bytes]) -> None:
    first, *others = asyncio.run(several(uploads, "aab", b"1"))
    assert isinstance(first, UploadedProgram)
    assert all(one is first for one in others)
    assert first.names.keys() == {"a", "b"}
    assert files(uploads) == compiling == [b"1"]


def test_a_tenants_uploads_do_not_go_before_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    order, uploads = list[bytes](), Uploads(99)

    async def compile_beside(source: Path, target: Path, seconds: int, most: int) -> bool:
        await asyncio.sleep(0)
        order.append(source.read_bytes())
        target.touch()
        return False

    async def main() -> None:
        many = [asyncio.ensure_future(uploads.put("a", b"%d" % n, "", None)) for n in range(9)]
        await asyncio.sleep(0)
        await uploads.put("b", b"b", "", None)
        await asyncio.gather(*many)

    monkeypatch.setattr(uploading, "compiled_beside", compile_beside)
    asyncio.run(main())
    uploads.close()
    assert order.index(b"b") <= 1
    assert len(order) == 10


def test_a_cancelled_compile_ends_with_its_process(
    uploads: Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's end cancels it, and waits for threads, but not for this."""
    found = tmp_path / "found"
    (tmp_path / "slow_child.py").write_text(
        "import os, pathlib, sys, time\n"
        "pathlib.Path(sys.argv[2]).with_suffix('.part').touch()\n"
        f"pathlib.Path({str(found)!r}).write_text(f'{{os.getpid()}} ')\ntime.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(compiling_process, "MODULE", "slow_child")

    async def main() -> None:
        task = asyncio.ensure_future(uploads.put("a", b"1", "", None))
        while not found.exists() or not found.read_text().endswith(" "):
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        with pytest.raises(ProcessLookupError):
            os.kill(int(found.read_text()), 0)

    asyncio.run(main())
    assert files(uploads) == []


@pytest.mark.usefixtures("compiling")
def test_a_removed_program_keeps_its_file_for_its_runs(uploads: Uploads) -> None:
    [program] = asyncio.run(several(uploads, "a", b"1"))
    assert isinstance(program, UploadedProgram)
    program.runs += 1
    uploads.remove("a", program.id)
    assert uploads.all("a") == []
    [again] = asyncio.run(several(uploads, "a", b"1"))
    assert again is not program
    assert Path(program.path).read_bytes() == b"1"
    program.run_ended()
    assert files(uploads) == [b"1"]
    uploads.remove("a", program.id)
    assert files(uploads) == []
