"""RuntimeEndpoint: a runtime reached over HTTP. Runtime: one that is started here."""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sglang.backend.native import NativeBackend
from sglang.chat import ChatTemplate, template_for, template_named
from sglang.errors import BackendError, Unsupported
from sglang.utils import terminate_process

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0
LOG_TAIL_LINES = 20


class RuntimeEndpoint(NativeBackend):
    """The runtime at ``base_url``. Thread-safe: one pool of connections for all programs.

    Args:
        api_key: sent as ``Authorization: Bearer``.
        verify: False, or the path of a CA file, for https.
        chat_template_name: instead of the template chosen by the model.

    Raises:
        BackendError: nothing answers at the URL, or it refuses the key.
    """

    name = "RuntimeEndpoint"

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str | None = None,
        chat_template_name: str | None = None,
    ) -> None:
        import httpx

        if "://" not in base_url:
            raise ValueError(f"{base_url!r} is no URL; give http://{base_url}")
        self.base_url = base_url.rstrip("/")
        self._closed = False
        self._http = httpx.Client(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            verify=True if verify is None else verify,
            timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
            trust_env=False,
        )
        self.model_info: dict[str, Any] = self._get("/get_model_info")
        if chat_template_name is not None:
            self.chat_template = template_named(chat_template_name)
        else:
            self.chat_template = self._find_template()

    def _find_template(self) -> ChatTemplate:
        """By the model's own template; a runtime that does not show it has its model's name."""
        try:
            jinja = self._get("/tokenizer_info").get("chat_template")
        except (BackendError, AttributeError):
            jinja = None
        info = self.model_info
        name = info.get("model_path") or info.get("served_model_name") or ""
        return template_for(str(name), jinja if isinstance(jinja, str) else None)

    def call(self, body: dict[str, Any]) -> Any:
        return self._send("POST", "/generate", body)

    def call_stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        import httpx

        try:
            with self._http.stream("POST", "/generate", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise _refused(response)
                yield from _events(response)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def flush_cache(self) -> Any:
        return self._send("POST", "/flush_cache")

    def get_server_info(self) -> dict[str, Any]:
        return dict(self._get("/get_server_info"))

    def encode(self, text: str | Sequence[str]) -> Any:
        """Embedding of ``text``. Raises BackendError where the runtime serves none."""
        return self._send("POST", "/encode", {"text": text})

    def shutdown(self) -> None:
        """Close the connections; the runtime goes on."""
        self._closed = True
        self._http.close()

    def _get(self, path: str) -> Any:
        return self._send("GET", path)

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        import httpx

        try:
            response = self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        except RuntimeError as error:
            if self._closed:
                raise BackendError("this RuntimeEndpoint has been shut down") from error
            raise
        if response.status_code != 200:
            raise _refused(response)
        try:
            return response.json()
        except ValueError:
            return response.text

    def _unreachable(self, error: Exception) -> BackendError:
        import httpx

        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.ConnectError):
            return BackendError(
                f"no runtime answers at {self.base_url} ({reason}); "
                "start one with: python -m sglang.launch_server"
            )
        return BackendError(f"the connection to {self.base_url} was lost: {reason}")


def _refused(response: httpx.Response) -> BackendError:
    try:
        error = response.json()["error"]
        message = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        message = response.text[:500] or response.reason_phrase
    status = response.status_code
    return BackendError(f"the runtime answered {status}: {message}", status)


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """Decoded ``data:`` lines of a stream. Raises BackendError for an error in it or a cut."""
    for line in response.iter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            error = event["error"]
            message = error.get("message", error) if isinstance(error, dict) else error
            raise BackendError(f"the runtime ended the stream: {message}")
        yield event
    raise BackendError("the stream was cut before its end")


class Runtime:
    """Starts ``python -m sglang.launch_server`` and stops it again; ``.endpoint`` is the backend.

    Keyword arguments are the server's settings (``model_path=``, ``max_total_tokens=``, ...).

    Args:
        port: a free one is taken where None.
        launch_timeout: seconds until the server must be healthy.

    Raises:
        BackendError: the server ended or was not ready in time; the end of its log is in it.
    """

    def __init__(
        self, *, port: int | None = None, launch_timeout: float = 600.0, **settings: Any
    ) -> None:
        self.port = port or _free_port()
        host = settings.get("host", "127.0.0.1")
        reach = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        self.url = f"http://{reach}:{self.port}"
        command = [sys.executable, "-m", "sglang.launch_server", "--port", str(self.port)]
        with tempfile.NamedTemporaryFile(prefix="sglang-", suffix=".log", delete=False) as log:
            self.log_path = log.name
            self.process = subprocess.Popen(
                command + _flags(settings),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
        atexit.register(self.shutdown)
        try:
            self._wait(launch_timeout, settings.get("api_key"))
            self.endpoint = RuntimeEndpoint(self.url, api_key=settings.get("api_key"))
        except BaseException:
            self.shutdown()
            raise

    def _wait(self, timeout: float, api_key: str | None) -> None:
        import httpx

        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        deadline = time.monotonic() + timeout
        with httpx.Client(trust_env=False, timeout=5.0, headers=headers) as http:
            while time.monotonic() < deadline:
                if self.process.poll() is not None:
                    code = self.process.returncode
                    raise BackendError(f"the server ended with status {code}:\n{self.log_tail()}")
                try:
                    if http.get(self.url + "/health").status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                time.sleep(0.05)
        raise BackendError(f"the server was not ready in {timeout:.0f} s:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines that the server has written."""
        try:
            with open(self.log_path, errors="replace") as log:
                return "".join(log.readlines()[-LOG_TAIL_LINES:])
        except OSError:
            return ""

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        **fields: Any,
    ) -> Any:
        """Answer of ``/generate``, decoded; ``fields`` are further ones of the request."""
        return self.endpoint.call(_body(prompt, sampling_params, fields))

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        **fields: Any,
    ) -> AsyncIterator[Any]:
        """Pieces of the text as they come."""
        import httpx

        shown = 0
        body = _body(prompt, sampling_params, {**fields, "stream": True})
        headers = dict(self.endpoint._http.headers)
        async with (
            httpx.AsyncClient(trust_env=False, timeout=None, headers=headers) as http,
            http.stream("POST", self.url + "/generate", json=body) as response,
        ):
            if response.status_code != 200:
                await response.aread()
                raise _refused(response)
            async for line in response.aiter_lines():
                if line.startswith("data:") and line[5:].strip() != "[DONE]":
                    text = json.loads(line[5:])["text"]
                    if len(text) > shown:
                        yield text[shown:]
                        shown = len(text)

    def encode(self, text: str | Sequence[str]) -> Any:
        """Embedding of ``text``. Raises BackendError where the runtime serves none."""
        return self.endpoint.encode(text)

    def cache_prefix(self, prefix: str) -> None:
        """Have the server compute and cache ``prefix``."""
        self.endpoint.cache_prefix(prefix)

    def flush_cache(self) -> Any:
        """Empty the server's prefix cache."""
        return self.endpoint.flush_cache()

    def get_server_info(self) -> dict[str, Any]:
        """Settings and counters of the server."""
        return self.endpoint.get_server_info()

    def get_tokenizer(self) -> Any:
        """The model's tokenizer, loaded in this process. Needs the extra ``srt``."""
        try:
            from srt.tokenizer import Tokenizer
        except ImportError as error:
            raise Unsupported("get_tokenizer needs: pip install 'sglang[srt]'") from error
        info = self.endpoint.model_info
        return Tokenizer.load(info.get("tokenizer_path") or info["model_path"])

    def shutdown(self) -> None:
        """Stop the server and remove its log; calling it again does nothing."""
        atexit.unregister(self.shutdown)
        if hasattr(self, "endpoint"):
            self.endpoint.shutdown()
        terminate_process(self.process)
        if os.path.exists(self.log_path):
            os.unlink(self.log_path)

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _body(prompt: Any, sampling_params: Any, fields: dict[str, Any]) -> dict[str, Any]:
    body = {"text": prompt, "sampling_params": sampling_params, **fields}
    return {name: value for name, value in body.items() if value is not None}


def _flags(settings: dict[str, Any]) -> list[str]:
    flags: list[str] = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(flag if value else "--no-" + flag[2:])
        elif value is not None:
            flags += [flag, str(value)]
    return flags


def _environment() -> dict[str, str]:
    """This process's, with this package first: it may not be installed."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
