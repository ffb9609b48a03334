"""Logs: one line a message, to standard error, whatever is in it and whatever reads it.

A message cannot end its line or colour a terminal: control characters are escaped. Lines are
written by a thread of their own, so a pipe without a reader stops nothing: what does not fit in
the queue is dropped, and how much that was is said when there is room again.
"""

from __future__ import annotations

import datetime
import json
import logging
import queue
import re
import sys
import threading
from typing import Any, TextIO

WAITING = 10_000  # lines that may wait to be written
FLUSH_SECONDS = 1.0  # at the end
TEXT = "%(asctime)s %(levelname)s %(message)s"
_PLAIN = re.compile(r"[!#-<>-~]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def configure(level: str, form: str) -> None:
    """Send every log of this process to standard error. ``form`` is "text" or "json"."""
    handler = Writer(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else Lines(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def escaped(text: str) -> str:
    """``text`` on one line: control characters as Python writes them."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class Lines(logging.Formatter):
    """Text, and ``name=value`` for what was logged as ``extra={"fields": {...}}``. What follows a
    message, as a traceback, is indented: no line of it begins like one."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        words = [record.message, *(f"{name}={_word(value)}" for name, value in fields.items())]
        record.message = escaped(" ".join(words))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).split("\n")
        return "\n".join("  " + escaped(line) for line in lines)


def _word(value: Any) -> str:
    """A value without a space or a quote as it is, another as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return json.dumps(text) if isinstance(value, str) and not _PLAIN.fullmatch(text) else text


class JsonLines(logging.Formatter):
    """An object a line: time (UTC), level, logger, message, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        line = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)  # ASCII: escapes what could break a line or a terminal


class Writer(logging.Handler):
    """Hands lines to a thread, which writes them to ``stream``."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str | threading.Event] = queue.Queue(WAITING)
        self._dropped = 0
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all logged lines are out, for at most ``FLUSH_SECONDS``."""
        written = threading.Event()
        try:
            self._lines.put_nowait(written)
        except queue.Full:
            return
        written.wait(FLUSH_SECONDS)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            dropped, self._dropped = self._dropped, 0
            if dropped:
                self._out(self.format(_warning(f"{dropped} lines were dropped: nobody read them")))
            self._out(line)

    def _out(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # a full disk, a closed pipe: no better output is there
            pass


def _warning(message: str) -> logging.LogRecord:
    return logging.LogRecord("sglang.logs", logging.WARNING, "", 0, message, None, None)
