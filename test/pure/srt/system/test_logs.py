"""Logs: one line a message, for any content and any reader."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.system import logs

HOSTILE = "a\n2026-01-01 00:00:00,000 INFO forged\r\x1b[31mred\x00\x85\u2028\ud800é"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.Logger("test")
    yield found
    for handler in found.handlers:
        handler.flush()


def written(logger: logging.Logger, formatter: logging.Formatter) -> io.StringIO:
    stream = io.StringIO()
    handler = logs.Writer(stream)
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    return stream


def flush(logger: logging.Logger) -> None:
    for handler in logger.handlers:
        handler.flush()


def test_a_text_message_is_one_line(logger: logging.Logger) -> None:
    stream = written(logger, logs.Lines(logs.TEXT))
    logger.warning("%s", HOSTILE, extra={"fields": {"id": HOSTILE, "n": 3, "plain": "a/b:c"}})
    flush(logger)
    (line,) = stream.getvalue().splitlines()
    assert line.isprintable()
    assert line.endswith(" n=3 plain=a/b:c")
    assert "forged" in line


@pytest.mark.slow
@given(st.text(), st.dictionaries(st.text(min_size=1), st.text() | st.integers() | st.none()))
def test_whatever_is_logged_is_one_line(message: str, fields: dict[str, Any]) -> None:
    record = logging.LogRecord("test", logging.INFO, "", 0, "%s", (message,), None)
    record.fields = fields
    for formatter in (logs.Lines(logs.TEXT), logs.JsonLines()):
        line = formatter.format(record)
        assert len(line.splitlines()) == 1
        line.encode()
    assert json.loads(logs.JsonLines().format(record))["message"] in (
        message,
        fields.get("message"),
    )


def test_json_lines_hold_message_and_fields(logger: logging.Logger) -> None:
    stream = written(logger, logs.JsonLines())
    logger.info("%s", HOSTILE, extra={"fields": {"status": 200, "text": HOSTILE}})
    flush(logger)
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert found["message"] == found["text"] == HOSTILE
    assert (found["status"], found["level"]) == (200, "INFO")
    assert found["time"].endswith("+00:00")


def test_a_traceback_looks_like_no_line_of_the_log(logger: logging.Logger) -> None:
    stream = written(logger, logs.Lines(logs.TEXT))
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("it failed")
    flush(logger)
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("ERROR it failed")
    assert len(rest) > 3
    assert all(line.startswith("  ") for line in rest)
    assert all(line.isprintable() for line in rest)


def test_a_pipe_that_nobody_reads_stops_nothing(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "WAITING", 100)
    read, write = os.pipe()
    with os.fdopen(write, "w") as pipe, os.fdopen(read) as reader:
        handler = logs.Writer(pipe)
        handler.setFormatter(logs.Lines("%(message)s"))
        logger.addHandler(handler)
        for number in range(20_000):
            logger.info("line %d %s", number, "x" * 100)
        lines: list[str] = []
        thread = threading.Thread(target=lambda: lines.extend(reader), daemon=True)
        thread.start()
        while handler._lines.qsize():
            handler.flush()
        logger.info("the last")
        flush(logger)
        pipe.close()
        thread.join(60)
    assert lines[-1] == "the last\n"
    dropped = [int(line.split()[0]) for line in lines if "were dropped" in line]
    assert sum(dropped) + len(lines) - len(dropped) - 1 == 20_000
    logger.handlers.clear()


def test_a_stream_that_fails_stops_nothing(logger: logging.Logger) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("no space left")

    handler = logs.Writer(Full())
    handler.setFormatter(logs.JsonLines())
    logger.addHandler(handler)
    for _ in range(10):
        logger.info("lost")
    handler.flush()
    assert threading.active_count() > 1


def test_configure_takes_the_place_of_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        logs.configure("info", "json")
        logging.getLogger("some.module").info("seen")
        logging.getLogger("some.module").debug("not seen")
        for handler in root.handlers:
            handler.flush()
    finally:
        root.handlers[:], root.level = before, level
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["seen"]
