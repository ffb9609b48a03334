"""Shapes of files and batches; ``openai_shapes`` has those of OpenAI's other routes."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from sglang.srt.core.request_stats import Count
from sglang.srt.runtime.batches.batch_input import InputError

Time = int | None


class FileReply(Struct):
    id: str
    object: Literal["file"]
    bytes: Count
    created_at: int
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output", "user_data"]
    status: Literal["processed"]
    status_details: None


class FileGone(Struct):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class FileList(Struct):
    object: Literal["list"]
    data: list[FileReply]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchErrors(Struct):
    object: Literal["list"]
    data: list[InputError]


class BatchCounts(Struct):
    total: Count
    completed: Count
    failed: Count


class BatchReply(Struct):
    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling",
        "cancelled",
    ]  # fmt: skip
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: Time
    finalizing_at: Time
    completed_at: Time
    failed_at: Time
    expired_at: Time
    cancelling_at: Time
    cancelled_at: Time
    request_counts: BatchCounts
    metadata: dict[str, str] | None


class BatchList(Struct):
    object: Literal["list"]
    data: list[BatchReply]
    first_id: str | None
    last_id: str | None
    has_more: bool
