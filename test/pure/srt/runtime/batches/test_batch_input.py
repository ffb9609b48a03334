"""Input of a batch: what is wrong with a file is said of its lines, before one is run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sglang.srt.runtime.batches.batch_input import InputLimits, check

CHAT = "/v1/chat/completions"
LIMITS = InputLimits(100, 1 << 16)
LINE = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {}}


def _lines(count: int) -> bytes:
    rows = [{**LINE, "custom_id": f"c{i}", "body": {"messages": []}} for i in range(count)]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


WRONG: list[tuple[bytes, str]] = [
    (b"", "empty_file"),
    (b"\n \n", "empty_file"),
    (b"no json\n", "invalid_json_line"),
    (b"[1]\n", "invalid_json_line"),
    (b'{"custom_id": "a"}\n', "invalid_json_line"),
    (b"\xff\xfe\n", "invalid_json_line"),
    (b'{"custom_id":"a","method":"POST","url":"' + CHAT.encode() + b'","body":3}\n',
     "invalid_json_line"),
    (b'{"custom_id":"a","method":"POST","url":"' + CHAT.encode() + b'","body":'
     + b"[" * 30_000 + b"\n", "invalid_json_line"),
    (json.dumps({**LINE, "custom_id": ""}).encode(), "invalid_custom_id"),
    (json.dumps({**LINE, "custom_id": "x" * 600}).encode(), "invalid_custom_id"),
    (json.dumps({**LINE, "method": "GET"}).encode(), "invalid_method"),
    (json.dumps({**LINE, "url": "/v1/../flush_cache"}).encode(), "mismatched_url"),
    (json.dumps({**LINE, "body": {"stream": True}}).encode(), "invalid_body"),
    (_lines(1) + _lines(1), "duplicate_custom_id"),
    (_lines(101), "too_many_requests"),
    (b"x" * 70_000 + b"\n" + _lines(1), "line_too_long"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "code"), WRONG, ids=[code for _, code in WRONG])
def test_a_file_that_is_no_batch_fails_with_its_lines(
    tmp_path: Path, data: bytes, code: str
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(data)
    _, errors = check(path, CHAT, LIMITS)
    assert code in [error.code for error in errors]
    assert all(len(error.message) < 1000 for error in errors)


@pytest.mark.parametrize(
    ("content", "words"),
    [('"\\ud800"', "The line holds a lone surrogate escape."),
     ("[" * 3000 + "]" * 3000, "The line is nested deeper than 128 levels."),
     ('"a" "b"', "The line is not valid JSON: Expecting ',' delimiter")],
    ids=["surrogate", "depth", "syntax"],
)  # fmt: skip
def test_a_line_is_refused_in_the_words_of_the_routes(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "in.jsonl"
    body = f'{{"messages": [{{"role": "user", "content": {content}}}]}}'
    path.write_text(f'{{"custom_id": "a", "method": "POST", "url": "{CHAT}", "body": {body}}}\n')
    _, (error,) = check(path, CHAT, LIMITS)
    assert error.code == "invalid_json_line"
    assert error.message.startswith(words)


def test_a_million_lines_are_read_to_the_limit_only(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"x\n" * 1_000_000)
    count, errors = check(path, CHAT, LIMITS)
    assert count == len(errors) == 100  # as many as are kept
    path.write_bytes(_lines(1000))
    assert check(path, CHAT, LIMITS)[0] == 101
