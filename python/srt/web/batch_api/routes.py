"""Routes of files and batches: /v1/files, /v1/batches and the paths below them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from sglang.ir.declaration import Bounds
from sglang.srt.requests.request_error import RequestError, shown
from sglang.srt.runtime.batches.batch_input import ENDPOINTS
from sglang.srt.runtime.batches.batch_records import BatchRecord, Order
from sglang.srt.runtime.batches.batch_service import BatchService
from sglang.srt.runtime.batches.file_store import DAY, LIFETIME, MAX_FILENAME, FileRecord
from sglang.srt.runtime.offload import in_thread
from sglang.srt.web.batch_api.multipart import UploadForm, read_form
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import json_response
from sglang.srt.web.exchange.json_body import read_body
from sglang.srt.web.exchange.query import read_query
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import FileResponse, Response

PURPOSES = ("batch", "user_data")
LEAST_LIFETIME = 3600  # seconds
_WINDOW = re.compile(r"([1-9][0-9]{0,2})([hd])")
MAX_WINDOW = 7 * DAY
MAX_PAIRS, MAX_KEY, MAX_VALUE = 16, 64, 512  # limits of metadata, in entries and characters
Record = TypeVar("Record", FileRecord, BatchRecord)


class FilesQuery(msgspec.Struct, kw_only=True):
    """The requested part of the list of files."""

    after: Annotated[str, None, "The id of the last file of the part before."] = ""
    limit: Annotated[int, Bounds(1, 10_000), "Most files of this part."] = 10_000
    order: Annotated[str, Bounds(one_of=("asc", "desc")), "By time of creation."] = "desc"
    purpose: Annotated[str, None, "Only files that were uploaded for it."] = ""


class BatchesQuery(msgspec.Struct, kw_only=True):
    """The requested part of the list of batches."""

    after: Annotated[str, None, "The id of the last batch of the part before."] = ""
    limit: Annotated[int, Bounds(1, 100), "Most batches of this part."] = 20


class ExpiresAfter(msgspec.Struct):
    """Lifetime of the files with answers, from their creation."""

    seconds: int
    anchor: str = "created_at"


class BatchBody(msgspec.Struct, kw_only=True):
    """A batch of requests, one in each line of a file. ``metadata``: up to 16 texts."""

    input_file_id: Annotated[str, Bounds(characters=64), "A file of purpose `batch`."]
    endpoint: Annotated[str, Bounds(one_of=ENDPOINTS), "The route that answers every line."]
    completion_window: Annotated[
        str, Bounds(characters=16), "When it expires: hours or days, at most `7d`."
    ] = "24h"
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


def service(state: ServerState) -> BatchService:
    """Return the server's batch service. Raises RequestError if the server was started without
    ``--batch-dir``."""
    if state.batches is None:
        raise RequestError(
            "This server keeps no files and runs no batches; start it with --batch-dir DIRECTORY.",
            code="unsupported",
        )
    return state.batches


# -- files ----------------------------------------------------------------------------------------


async def upload(state: ServerState, request: Request) -> Response:
    """Store a file. The body is a form with `file` and `purpose`."""
    files, owner = service(state).files, CALLER.get().tenant
    arriving = files.begin(owner)
    try:
        form = await read_form(request, arriving)
        name, purpose, seconds = _described(form)
        record = await in_thread(arriving.finish, name, purpose, seconds)
    finally:
        arriving.drop()
    return json_response(record.public())


def _described(form: UploadForm) -> tuple[str, str, int]:
    """Return the name, purpose and lifetime (seconds) of an upload. Raises RequestError."""
    if form.filename is None:
        raise RequestError("The form has no file; send a part named file.", "file")
    name = form.filename.replace("\\", "/").rpartition("/")[2]
    name = "".join(char for char in name if char.isprintable())[:MAX_FILENAME] or "file"
    purpose = form.fields.get("purpose", "")
    if purpose not in PURPOSES:
        raise RequestError(
            f"purpose is {shown(purpose)}; give one of {', '.join(PURPOSES)}.", "purpose"
        )
    anchor = form.fields.get("expires_after[anchor]", "created_at")
    given = form.fields.get("expires_after[seconds]", str(LIFETIME))
    seconds = int(given) if re.fullmatch("[0-9]{1,9}", given, re.ASCII) else -1
    return name, purpose, _lifetime(anchor, seconds, given, "expires_after")


def _lifetime(anchor: str, seconds: int, given: Any, name: str) -> int:
    if anchor != "created_at":
        raise RequestError(f"{name}.anchor is {shown(anchor)}; give 'created_at'.", name)
    if not LEAST_LIFETIME <= seconds <= LIFETIME:
        raise RequestError(
            f"{name}.seconds is {shown(given)}; give {LEAST_LIFETIME} to {LIFETIME}.", name
        )
    return seconds


async def files(state: ServerState, request: Request) -> Response:
    """List the caller's files."""
    query = read_query(request, FilesQuery)
    found = service(state).files.of(CALLER.get().tenant)
    found = [record for record in found if query.purpose in ("", record.purpose)]
    if query.order == "asc":
        found.reverse()
    return json_response(_page(found, query.after, query.limit))


async def file(state: ServerState, request: Request) -> Response:
    """Return facts about one file."""
    return json_response(_file(state, request).public())


async def content(state: ServerState, request: Request) -> Response:
    """Return the bytes of a file as they were uploaded."""
    record = _file(state, request)
    headers = {"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}
    return FileResponse(
        service(state).files.path(record.id), media_type="application/octet-stream", headers=headers
    )


async def delete_file(state: ServerState, request: Request) -> Response:
    """Delete a file that no batch reads."""
    record = _file(state, request)
    service(state).files.delete(record)
    return json_response({"id": record.id, "object": "file", "deleted": True})


def _file(state: ServerState, request: Request) -> FileRecord:
    return service(state).files.find(request.path_params["id"], CALLER.get().tenant)


# -- batches --------------------------------------------------------------------------------------


async def create_batch(state: ServerState, request: Request) -> Response:
    """Begin to answer the requests of a file. Waiting requests of other routes come first."""
    batches = service(state)
    body = await read_body(request, BatchBody, state.body_limit)
    kept = body.output_expires_after
    record = await batches.create(
        Order(
            owner=CALLER.get().tenant,
            input_file_id=body.input_file_id,
            endpoint=body.endpoint,
            completion_window=body.completion_window,
            seconds=_window(body.completion_window),
            output_seconds=LIFETIME if kept is None else _lifetime(
                kept.anchor, kept.seconds, kept.seconds, "output_expires_after"
            ),
            metadata=_metadata(body.metadata),
        )
    )  # fmt: skip
    return json_response(record.public())


def _window(text: str) -> int:
    found = _WINDOW.fullmatch(text)
    seconds = int(found[1]) * (DAY if found[2] == "d" else 3600) if found else 0
    if not 0 < seconds <= MAX_WINDOW:
        raise RequestError(
            f"completion_window is {shown(text)}; give hours or days, such as '24h', at most '7d'.",
            "completion_window",
        )
    return seconds


def _metadata(given: dict[str, str] | None) -> dict[str, str] | None:
    pairs = (given or {}).items()
    if len(pairs) > MAX_PAIRS or any(len(k) > MAX_KEY or len(v) > MAX_VALUE for k, v in pairs):
        raise RequestError(
            f"metadata has {len(pairs)} entries; at most {MAX_PAIRS}, with keys of {MAX_KEY} and "
            f"values of {MAX_VALUE} characters.",
            "metadata",
        )
    return given


async def batches(state: ServerState, request: Request) -> Response:
    """List the caller's batches, the newest first."""
    query = read_query(request, BatchesQuery)
    found = service(state).records.of(CALLER.get().tenant)
    return json_response(_page(found, query.after, query.limit))


async def batch(state: ServerState, request: Request) -> Response:
    """Return the state and the counts of one batch."""
    return json_response(_batch(state, request).public())


async def cancel_batch(state: ServerState, request: Request) -> Response:
    """Cancel a batch. Its finished answers are kept."""
    record = _batch(state, request)
    await service(state).cancel(record)
    return json_response(record.public())


def _batch(state: ServerState, request: Request) -> BatchRecord:
    return service(state).records.find(request.path_params["id"], CALLER.get().tenant)


def _page(found: Sequence[Record], after: str, limit: int) -> dict[str, Any]:
    """Return the list after the record ``after``. Raises RequestError if the record is unknown."""
    begin = 0
    if after:
        begin = next((i for i, record in enumerate(found, 1) if record.id == after), 0)
        if not begin:
            raise RequestError(f"after is {shown(after)}, which is not in the list.", "after")
    page = found[begin : begin + limit]
    return {
        "object": "list",
        "data": [record.public() for record in page],
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
        "has_more": begin + limit < len(found),
    }
