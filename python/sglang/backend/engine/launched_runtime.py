"""Runtime: a server that is started here and stopped at the end."""

from __future__ import annotations

import atexit
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from sglang.backend.engine.server_args import ServerArgs, settings_of
from sglang.backend.engine.server_process import (
    free_port,
    own_environment,
    terminate_process,
)
from sglang.backend.native.endpoint import RuntimeEndpoint
from sglang.backend.native.native_backend import STREAMED
from sglang.backend.renamed_parameters import renamed
from sglang.errors import BackendError, lacking

LOG_TAIL_LINES = 20


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
        self,
        *,
        server_args: ServerArgs | None = None,
        port: int | None = None,
        launch_timeout: float = 600.0,
        **settings: Any,
    ) -> None:
        settings = settings_of(server_args, settings)
        port = port or settings.pop("port", None)
        self.port = port or free_port()
        self._process = os.getpid()
        host = settings.get("host", "127.0.0.1")
        reach = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        certificate = settings.get("ssl_certfile")
        self.url = f"{'https' if certificate else 'http'}://{reach}:{self.port}"
        self.generate_url = self.url + "/generate"
        command = [sys.executable, "-m", "sglang.launch_server", "--port", str(self.port)]
        settings.setdefault("exit_with_parent", os.getpid())  # also where that is killed
        with tempfile.NamedTemporaryFile(prefix="sglang-", suffix=".log", delete=False) as log:
            self.log_path = log.name
            self.process = subprocess.Popen(
                command + _flags(settings),
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=own_environment(),
                start_new_session=True,
            )
        self.pid = self.process.pid
        atexit.register(self.shutdown)
        try:
            key = settings.get("api_key") or os.environ.get("SGLANG_API_KEY")  # as the server does
            self._wait(launch_timeout, key, certificate)
            self.endpoint = RuntimeEndpoint(
                self.url, api_key=key, verify=certificate, resume_seconds=0
            )
        except BaseException:
            self.shutdown()
            raise

    def _wait(self, timeout: float, api_key: str | None, certificate: str | None) -> None:
        """``certificate``: the server's own, which it is known by; None without TLS."""
        from http.client import HTTPException
        from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        request = Request(self.url + "/health", headers=headers)
        tls = HTTPSHandler(context=ssl.create_default_context(cafile=certificate))
        opener = build_opener(ProxyHandler({}), tls)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                code = self.process.returncode
                raise BackendError(f"the server ended with status {code}:\n{self.log_tail()}")
            try:
                with opener.open(request, timeout=5.0) as reply:
                    if reply.status == 200:
                        return
            except (OSError, HTTPException) as error:  # an HTTPError is an OSError
                if "CERTIFICATE_VERIFY" in str(error):
                    raise BackendError(f"{self.url} cannot be trusted: {error}") from error
            time.sleep(0.05)
        raise BackendError(f"the server was not ready in {timeout:.0f} s:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines of the server's log, as text."""
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
    ) -> str:
        """Answer of ``/generate`` as JSON text; ``fields`` are further ones of the request.
        ``endpoint.call`` answers with dicts."""
        return json.dumps(self.endpoint.call(_body(prompt, sampling_params, fields)))

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        **fields: Any,
    ) -> AsyncIterator[Any]:
        """Pieces of the text as they come."""
        shown = 0
        body = _body(prompt, sampling_params, {**fields, **STREAMED})
        async for event in self.endpoint.acall_stream(body):
            text = event["text"]
            if len(text) > shown:
                yield text[shown:]
                shown = len(text)

    add_request = async_generate

    @renamed(prompt="text")
    def encode(self, prompt: str | Sequence[str], **fields: Any) -> str:
        """Answer of ``/encode`` as JSON text; ``endpoint.encode`` answers with dicts."""
        return json.dumps(self.endpoint.encode(prompt, **fields))

    def load_lora_adapter(self, lora_name: str, lora_path: str, pinned: bool = False) -> Any:
        """``RuntimeEndpoint.load_lora_adapter`` of this server."""
        return self.endpoint.load_lora_adapter(lora_name, lora_path, pinned)

    def unload_lora_adapter(self, lora_name: str) -> Any:
        """``RuntimeEndpoint.unload_lora_adapter`` of this server."""
        return self.endpoint.unload_lora_adapter(lora_name)

    def get_model_name(self) -> str:
        """The model's path or hub id."""
        return self.endpoint.get_model_name()

    @renamed(prefix="prefix_str")
    def cache_prefix(self, prefix: str) -> None:
        """Compute the KV of ``prefix`` on the server, for its prefix cache. Raises BackendError."""
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
            from sglang.srt.tokenizer import Tokenizer
        except ImportError as error:
            raise lacking("get_tokenizer", "srt", error) from error
        info = self.endpoint.model_info
        return Tokenizer.load(info.get("tokenizer_path") or info["model_path"])

    def shutdown(self) -> None:
        """Stop the server and remove its log; calling it again, or in a fork, does nothing."""
        if self._process != os.getpid():  # the server is the parent's
            return
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
        if (name, value) == ("model_path", ""):
            continue  # the embedded model, as in an Engine; the command line takes no empty path
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(flag if value else "--no-" + flag[2:])
        elif isinstance(value, dict):
            flags += [flag, *(f"{key}={entry}" for key, entry in value.items())]
        elif isinstance(value, (list, tuple)):
            flags += [flag, *map(str, value)]
        elif value is not None:
            flags += [flag, str(value)]
    return flags
