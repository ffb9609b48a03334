"""InferletClient: programs and runs in the sandbox of a running server. Standard library only.

client = InferletClient("http://127.0.0.1:30000")
run = client.launch(client.put(Path("hello.py")), "lamps")
print(client.result(run))
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sglang.backend.engine.inferlets import InferletError
from sglang.errors import BackendError, ConnectionFailed, TimedOut, refusal

SECONDS = 10.0  # for one answer
UPLOAD_SECONDS = 300.0  # a large component is compiled before the answer


class InferletClient:
    """Programs and runs of one key on the server at ``base_url``, which runs with
    ``--enable-inferlets``. A run belongs to no client: any client of the key may send to it, read
    its events from any number on, and end it. Thread-safe.

    All methods raise BackendError, as ``RuntimeEndpoint`` does.

    Args:
        base_url: http:// before it and /v1 after it may be left out.
        api_key: sent as ``Authorization: Bearer``.
        verify: False, or the path of a CA file, for https.

    Raises:
        ValueError: the URL or the key cannot be used.
    """

    def __init__(
        self, base_url: str, api_key: str | None = None, *, verify: bool | str = True
    ) -> None:
        url = base_url if "://" in base_url else f"http://{base_url}"
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"URL is {base_url!r}; it must begin with http:// or https://")
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("the API key holds a character that a header cannot; check it")
        self._url = url.rstrip("/").removesuffix("/v1").rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
        if verify is False:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        https = urllib.request.HTTPSHandler(context=context)
        self._opener = urllib.request.build_opener(_NoRedirect(), https)

    def put(self, program: str | bytes | Path, name: str = "", javascript: bool = False) -> str:
        """Upload a program; its id, the SHA-256 of its bytes. ``program``: a text in Python or, by
        ``javascript``, in that, the bytes of a module or component, or a file of one of these
        (``.py`` is Python, ``.js`` JavaScript)."""
        field = "javascript" if javascript else "source"
        if isinstance(program, Path):
            data, name = program.read_bytes(), name or program.name[:256]
            field = {".py": "source", ".js": "javascript"}.get(program.suffix, "wasm")
        elif isinstance(program, str):
            data = program.encode()
        else:
            data, field = program, "wasm"
        body: dict[str, Any] = {"name": name, "sha256": hashlib.sha256(data).hexdigest()}
        body[field] = base64.b64encode(data).decode() if field == "wasm" else data.decode()
        return str(self._call("POST", "/v1/inferlets", body, UPLOAD_SECONDS)["id"])

    def programs(self) -> list[dict[str, Any]]:
        """The programs of the key, oldest first: ``id``, ``name``, ``kind``, ``bytes``."""
        return list(self._call("GET", "/v1/inferlets")["data"])

    def forget(self, program: str) -> None:
        """Have the server forget a program. Runs of it go on."""
        self._call("DELETE", f"/v1/inferlets/{quote(program, safe='')}")

    def launch(self, program: str, /, *arguments: str, **fields: Any) -> str:
        """Start a run of a program; the id of the run. ``fields``: its rights and limits, such as
        ``store=True`` and ``turn_cpu=0.5``."""
        body = {**fields, "arguments": list(arguments), "stream": False}
        path = f"/v1/inferlets/{quote(program, safe='')}/runs"
        return str(self._call("POST", path, body)["id"])

    def runs(self) -> list[dict[str, Any]]:
        """The runs of the key, oldest first, each as ``run`` gives it."""
        return list(self._call("GET", "/v1/runs")["data"])

    def run(self, run: str) -> dict[str, Any]:
        """A run now: ``status``, "running", "completed" or "failed", ``result``, ``error`` and
        ``events``, their number."""
        return self._call("GET", _path(run))

    def events(self, run: str, after: int = -1) -> Iterator[dict[str, Any]]:
        """The events of a run after that of number ``after``, as they come, to its end. Where the
        connection is lost, ask again after the ``number`` of the last one."""
        behind = f"&starting_after={after}" if after >= 0 else ""
        path = f"{_path(run)}?stream=true{behind}"
        kind = ""
        try:
            with self._open("GET", path, None, None) as reply:
                for line in reply:
                    if line.startswith(b"data: "):
                        event: dict[str, Any] = json.loads(line[6:])
                        kind = event.get("type", "")
                        yield event
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        if kind != "usage":
            raise ConnectionFailed(f"the connection to {self._url} was lost before the run's end")

    def send(self, run: str, message: str | bytes) -> None:
        """Send a text, for ``receive``, or bytes, for ``receive_blob``, to a run."""
        if isinstance(message, str):
            body = {"text": message}
        else:
            body = {"data": base64.b64encode(message).decode()}
        self._call("POST", f"{_path(run)}/messages", body)

    def result(self, run: str) -> Any:
        """The result of a run, once it has ended, which it does within its ``wall``. Raises
        InferletError, with the program's traceback or the limit, where it has failed."""
        shown = self.run(run)
        if shown["status"] == "running":
            for _ in self.events(run, shown["events"] - 1):
                pass
            shown = self.run(run)
        if shown["status"] == "failed":
            raise InferletError(str(shown["error"]).rstrip())
        return shown["result"]

    def kill(self, run: str) -> None:
        """End a run, and have the server forget it and its events."""
        self._call("DELETE", _path(run))

    def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, seconds: float = SECONDS
    ) -> dict[str, Any]:
        try:
            with self._open(method, path, body, seconds) as reply:
                found = json.load(reply)
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise BackendError(
                f"{self._url} answers {path} with no JSON object; it is no server of this project"
            )
        return found

    def _open(
        self, method: str, path: str, body: dict[str, Any] | None, seconds: float | None
    ) -> Any:
        """The server's answer, to be read and closed."""
        data = None if body is None else json.dumps(body).encode()
        headers = dict(self._headers)
        if data is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            return self._opener.open(request, timeout=seconds)
        except urllib.error.HTTPError as error:
            with error:
                raise refusal(error.code)(_message(error), error.code) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            kind = TimedOut if isinstance(reason, TimeoutError) else ConnectionFailed
            raise kind(
                f"no server answers at {self._url}: {reason}; start one with: sglang serve "
                "--enable-inferlets"
            ) from error

    def _lost(self, error: Exception) -> ConnectionFailed:
        kind = TimedOut if isinstance(error, TimeoutError) else ConnectionFailed
        return kind(f"the connection to {self._url} was lost: {error}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the key is for the server that was named."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _path(run: str) -> str:
    return f"/v1/runs/{quote(run, safe='')}"


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return f"the server answered {error.code} {error.reason}"
