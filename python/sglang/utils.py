"""Helpers that programs and launchers written for upstream import."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Iterable, Iterator
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener, urlopen

from sglang.backend.engine.server_process import free_port, own_environment, terminate_process

__all__ = [
    "async_stream_and_merge",
    "download_and_cache_file",
    "dump_state_text",
    "encode_image_base64",
    "execute_shell_command",
    "free_port",
    "get_exception_traceback",
    "http_request",
    "launch_server_cmd",
    "own_environment",
    "print_highlight",
    "read_jsonl",
    "stream_and_merge",
    "terminate_process",
    "trim_overlap",
    "wait_for_server",
]
POLL_SECONDS = 0.05
_CUMULATIVE = {"stream": True, "incremental_streaming_output": False}


# -- servers --------------------------------------------------------------------------------------


def execute_shell_command(command: str) -> subprocess.Popen[str]:
    """Start ``command``, without a shell. ``NAME=VALUE`` words before the program are added to the
    environment, a backslash at a line's end continues it, and ``python`` is this interpreter.

    Raises ValueError where no program is named.
    """
    words = shlex.split(command.replace("\\\n", " "))
    environment = own_environment()
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.DOTALL):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    if not words:
        raise ValueError(f"{command!r:.80} names no program; give one after the variables")
    if words[0] in ("python", "python3"):
        words[0] = sys.executable
    return subprocess.Popen(
        words, text=True, stderr=subprocess.STDOUT, env=environment, start_new_session=True
    )


def launch_server_cmd(
    command: str, host: str = "0.0.0.0", port: int | None = None
) -> tuple[subprocess.Popen[str], int]:
    """Start ``command --port PORT`` and return the process and the port; by default a free one of
    ``host``. ``wait_for_server`` waits for it, ``terminate_process`` ends it."""
    port = port or free_port(host)
    return execute_shell_command(f"{command} --port {port}"), port


def wait_for_server(
    base_url: str,
    timeout: float | None = None,
    process: subprocess.Popen[Any] | None = None,
    path: str = "/v1/models",
    api_key: str | None = None,
) -> None:
    """Return when ``path`` of the server answers 200.

    Raises RuntimeError where ``process`` has ended, TimeoutError after ``timeout`` seconds.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    request = Request(base_url + path, headers={"Authorization": f"Bearer {api_key}"})
    opener = build_opener(ProxyHandler({}))
    while True:
        with (
            contextlib.suppress(OSError, HTTPException),  # an HTTPError is an OSError
            opener.open(request, timeout=5.0),
        ):
            return
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}; see its output")
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError(f"{base_url}{path} did not answer in {timeout:g} s")
        time.sleep(POLL_SECONDS)


class _HttpReply:
    """An answer that has been read."""

    def __init__(self, status_code: int, content: bytes) -> None:
        self.status_code, self.content = status_code, content

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """The decoded JSON. Raises ValueError."""
        return json.loads(self.content)


def http_request(
    url: str, json: Any = None, api_key: str | None = None, method: str | None = None
) -> _HttpReply:
    """POST ``json``, or GET where there is none; the reply has ``status_code``, ``text`` and
    ``json()``. An error status is a reply. Raises OSError where nothing answers."""
    headers = {"Content-Type": "application/json"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    data = None if json is None else _encoded(json)
    try:
        with urlopen(Request(url, data, headers, method=method)) as reply:
            return _HttpReply(reply.status, reply.read())
    except HTTPError as error:
        with error:
            return _HttpReply(error.code, error.read())


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


# -- files and text -------------------------------------------------------------------------------


def read_jsonl(filename: str) -> Iterator[Any]:
    """The value of each line of a JSON-lines file. Empty lines and comments (``#``) are skipped."""
    with open(filename, encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                yield json.loads(line)


def dump_state_text(filename: str, states: Iterable[Any], mode: str = "w") -> None:
    """Write the texts of states, or of what else is there, one after another."""
    from sglang.state import ProgramState

    with open(filename, mode, encoding="utf-8") as file:
        for number, state in enumerate(states):
            text = state.text() if isinstance(state, ProgramState) else str(state)
            file.write(f"{f' {number} ':=^83}\n{text}\n{'=' * 80}\n\n")


def download_and_cache_file(url: str, filename: str | None = None) -> str:
    """The path of a local copy of ``url``, fetched where there is none; by default in the directory
    for temporary files. Raises OSError."""
    filename = filename or os.path.join(tempfile.gettempdir(), url.rsplit("/", 1)[-1])
    if os.path.exists(filename):
        return filename
    part = f"{filename}.{os.getpid()}.part"  # a fetch that is cut must not leave a short file
    try:
        with urlopen(url) as reply, open(part, "wb") as file:
            while block := reply.read(1 << 16):
                file.write(block)
        os.replace(part, filename)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    return filename


def encode_image_base64(image: Any) -> str:
    """Base64 of an image: a path, its bytes or a PIL image. Raises the errors of
    ``sglang.image``."""
    from sglang.ir.prompt_media import medium

    return medium("image", image).base64


def print_highlight(content: Any) -> None:
    """Print ``content``."""
    print(content)


def get_exception_traceback() -> str:
    """The traceback of the exception that is being handled."""
    return traceback.format_exc()


def trim_overlap(existing_text: str, new_chunk: str) -> str:
    """``new_chunk`` without the longest beginning that ``existing_text`` ends with."""
    for length in range(min(len(existing_text), len(new_chunk)), 0, -1):
        if existing_text.endswith(new_chunk[:length]):
            return new_chunk[length:]
    return new_chunk


def stream_and_merge(llm: Any, prompt: str, sampling_params: dict[str, Any]) -> str:
    """The text that ``llm``, an ``Engine``, streams."""
    text = ""
    for event in llm.generate(prompt, sampling_params, **_CUMULATIVE):
        text = event["text"]
    return text


async def async_stream_and_merge(
    llm: Any, prompt: str, sampling_params: dict[str, Any]
) -> AsyncIterator[str]:
    """Pieces of the text that ``llm``, an ``Engine``, streams, as they come."""
    shown = 0
    async for event in await llm.async_generate(prompt, sampling_params, **_CUMULATIVE):
        yield event["text"][shown:]
        shown = len(event["text"])
