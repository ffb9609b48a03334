"""Engine: model, scheduler and programs in this process, without HTTP.

    caller's thread  --coroutine-->  loop thread (tokenizer, programs)  --verbs-->  engine thread

Requests are the structs of ``sglang.srt.runtime``, which the HTTP server uses too. Answers are the
dicts of the native ``/generate``.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Sequence,
)
from concurrent.futures import CancelledError, Future
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from sglang.backend.engine.engine_programs import EnginePrograms
from sglang.backend.engine.inferlets import Inferlet, Inferlets
from sglang.backend.engine.server_args import ServerArgs, settings_of
from sglang.backend.loop_thread import begin, drawn, finish, waited
from sglang.errors import BackendError, lacking
from sglang.ir.chat_template import template_for, template_named
from sglang.ir.prompt_media import sent
from sglang.semantics.tool_calls.tool_formats import with_tool_turns

if TYPE_CHECKING:
    from sglang.srt.runtime.engine_runtime import EngineRuntime

T = TypeVar("T")
_END = object()
SHUTDOWN_SECONDS = 10.0
_STATUSES = {
    "not_found": 404, "conflict": 409, "expired": 410, "queue_full": 429, "engine_lost": 503,
}  # fmt: skip


class Engine(EnginePrograms):
    """A backend for programs that is also a runtime: ``generate``, ``async_generate``.

    Keyword arguments are the server's settings (``model_path=``, ``max_total_tokens=``, ...). The
    default model is the embedded one. Thread-safe. Needs the extra ``cpu``.

    Raises:
        TypeError, ValueError: an unknown setting, or a value out of range.
        BackendError: the model cannot be loaded.
    """

    name = "Engine"

    def __init__(
        self,
        *,
        server_args: ServerArgs | None = None,
        chat_template_name: str | None = None,
        **settings: Any,
    ) -> None:
        try:
            from sglang.srt.config import Config
            from sglang.srt.engine.local import LocalEngine
            from sglang.srt.requests.completion.completer import Completer
            from sglang.srt.requests.completion.completion_request import CONSTRAINTS
            from sglang.srt.runtime.engine_runtime import EngineRuntime
            from sglang.srt.tokenizer import Tokenizer
        except ImportError as error:
            raise lacking("Engine", "srt", error) from error
        config = Config.of(**settings_of(server_args, settings))
        if config.parallel.dp_size > 1:
            raise BackendError(
                f"dp_size is {config.parallel.dp_size} and this is one engine; several engines are "
                "a server's: sglang.Runtime(dp_size=...), or sglang serve --dp-size"
            )
        named = template_named(chat_template_name) if chat_template_name is not None else None
        model = config.model
        try:
            self.tokenizer = Tokenizer.load(
                model.tokenizer_path or model.model_path,
                model.revision,
                config.server.chat_template,
            )
            self._engine = LocalEngine(
                config, self.tokenizer.token_bytes, vocabulary=self.tokenizer.vocabulary
            )
        except ImportError as error:
            raise lacking("Engine", "srt", error) from error
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            raise BackendError(f"the model cannot be loaded: {error}") from error
        self.load_seconds: float = self._engine.load_seconds
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="sglang-engine", daemon=True)
        self._thread.start()
        client = self._engine.client_on(self._loop)
        completion = Completer(client, self.tokenizer, config.server.max_tokenized_bytes)
        self._inferlets = Inferlets(self._loop, client, self.tokenizer, self._answer)
        self._runtime: EngineRuntime | None = EngineRuntime(config, completion)
        self.constraints = frozenset(CONSTRAINTS)
        template = named or template_for(self.get_model_name(), self.tokenizer.chat_template)
        self.tool_format = self._runtime.tool_format.name
        template = template.seeing(self._runtime.placeholders)
        self.chat_template = with_tool_turns(template, self.tool_format)
        atexit.register(self.shutdown)

    def generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        image_data: Any = None,
        *,
        return_logprob: bool | list[bool] | None = None,
        logprob_start_len: int | list[int] | None = None,
        top_logprobs_num: int | list[int] | None = None,
        stream: bool = False,
        **fields: Any,
    ) -> Any:
        """Return the answer of ``/generate``: a dict; a list of dicts for several prompts or n > 1;
        with ``stream`` an iterator of dicts with cumulative text. ``image_data``: an argument of
        ``sglang.image``, or base64: one image for all prompts, a list for a single prompt, or a
        list per prompt. ``fields``: further fields of the request.

        Raises BackendError, and the errors of ``sglang.image``."""
        body = _body(
            prompt, sampling_params, input_ids, image_data, return_logprob, logprob_start_len,
            top_logprobs_num, fields,
        )  # fmt: skip
        return self.call_stream({**body, "stream": True}) if stream else self.call(body)

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        image_data: Any = None,
        *,
        return_logprob: bool | list[bool] | None = None,
        logprob_start_len: int | list[int] | None = None,
        top_logprobs_num: int | list[int] | None = None,
        stream: bool = False,
        **fields: Any,
    ) -> Any:
        """Generate as ``generate`` does, in an event loop; ``stream``: an asynchronous iterator."""
        body = _body(
            prompt, sampling_params, input_ids, image_data, return_logprob, logprob_start_len,
            top_logprobs_num, fields,
        )  # fmt: skip
        if stream:
            return self.acall_stream({**body, "stream": True})
        return await self.acall(body)

    def call(self, body: dict[str, Any]) -> Any:
        return self._wait(lambda: self._answer(body))

    async def acall(self, body: dict[str, Any]) -> Any:
        return await self._awaiting(lambda: self._answer(body))

    async def _awaiting(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        future: Future[T] = Future()
        self._begin(make, future)
        return await self._awaited(future)

    async def _awaited(self, future: Future[T]) -> T:
        try:
            with _translated():
                return await asyncio.wrap_future(future)
        except asyncio.CancelledError as error:
            if self._runtime is None:
                raise BackendError("the engine is gone: it was shut down", 503) from error
            raise

    def call_stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with _translated():
            yield from drawn(self._begin, lambda: self._events(body))

    def acall_stream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        return self._aiterate(lambda: self._events(body))

    async def _aiterate(self, make: Callable[[], AsyncGenerator[T, None]]) -> AsyncIterator[T]:
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[Any] = asyncio.Queue()

        def put(item: Any) -> None:
            with suppress(RuntimeError):  # the caller's loop is closed
                loop.call_soon_threadsafe(items.put_nowait, item)

        future: Future[None] = Future()
        future.add_done_callback(lambda _: put(_END))
        try:
            self._begin(lambda: _pump(make, put), future)
            while (item := await items.get()) is not _END:
                yield item
            await self._awaited(future)
        finally:
            future.cancel()

    def inferlet(
        self, main: Any, *arguments: str, rights: Any = None, policy: str = "cohort"
    ) -> Inferlet:
        """Start ``async def main(ctx)``, a program that holds pages (``sglang.inferlet``).

        ``rights``: see ``sglang.srt.inferlet.program_limits``; None: all rights except non-public
        addresses. ``policy``: rule for the batching of calls; the first program sets it for all.
        Raises BackendError.
        """
        from sglang.srt.inferlet.program_limits import TRUSTED

        self._alive()
        return self._inferlets.start(main, arguments, rights or TRUSTED, policy)

    def encode(
        self,
        prompt: str | list[str] | None = None,
        *,
        input_ids: list[int] | list[list[int]] | None = None,
        **fields: Any,
    ) -> Any:
        """Return the embedding of a text: the dict of ``/encode``; a list of dicts for several
        texts. ``fields``: further fields (``pooling``, ``dimensions``, ``normalize``).

        Raises BackendError.
        """
        return self._wait(lambda: self._encoded(prompt, input_ids, fields))

    async def async_encode(
        self,
        prompt: str | list[str] | None = None,
        *,
        input_ids: list[int] | list[list[int]] | None = None,
        **fields: Any,
    ) -> Any:
        """Encode as ``encode`` does, in an event loop."""
        return await self._awaiting(lambda: self._encoded(prompt, input_ids, fields))

    def tokenize(self, texts: Sequence[str], special: bool = True) -> list[Sequence[int]]:
        return [self.tokenizer.encode(text, special) for text in texts]

    def detokenize(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return [self.tokenizer.decode(row) for row in rows]

    def get_tokenizer(self) -> Any:
        """Return the model's tokenizer."""
        return self.tokenizer

    def shutdown(self) -> None:
        """Abort all requests, stop the threads, release the model. A second call has no effect."""
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            return
        atexit.unregister(self.shutdown)
        self._loop.call_soon_threadsafe(self._inferlets.close)
        self._loop.call_soon_threadsafe(runtime.abort)
        self._engine.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SHUTDOWN_SECONDS)
        del self._engine

    def __repr__(self) -> str:
        return f"Engine({self.get_model_name() if self._runtime else 'shut down'})"

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _alive(self) -> EngineRuntime:
        if self._runtime is None:
            raise BackendError("this Engine has been shut down")
        if os.getpid() != self._process:
            raise BackendError(
                f"this Engine belongs to process {self._process}; in a forked one make another, or "
                "share a Runtime"
            )
        return self._runtime

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            finish(self._loop)

    def _begin(self, make: Callable[[], Coroutine[Any, Any, T]], future: Future[T]) -> None:
        self._alive()
        begin(self._loop, make, future)

    def _wait(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with _translated():
            return waited(lambda future: self._begin(make, future))

    async def _answer(self, fields: dict[str, Any]) -> Any:
        from sglang.srt.runtime.generate_request import GenerateRequest
        from sglang.srt.runtime.generation import generate
        from sglang.srt.runtime.request_fields import convert, plain

        return plain(await generate(self._alive(), convert(fields, GenerateRequest)))

    async def _encoded(self, prompt: Any, input_ids: Any, fields: dict[str, Any]) -> Any:
        from sglang.srt.runtime.request_fields import convert, plain
        from sglang.srt.runtime.vectors import EncodeRequest, encode

        _verify_names(fields, EncodeRequest.__struct_fields__)
        request = convert({"text": prompt, "input_ids": input_ids, **fields}, EncodeRequest)
        return plain(await encode(self._alive(), request))

    async def _events(self, fields: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        from sglang.srt.runtime.generate_request import GenerateRequest
        from sglang.srt.runtime.generation import stream
        from sglang.srt.runtime.request_fields import convert, plain

        request = convert(fields, GenerateRequest)
        async with aclosing(stream(self._alive(), request)) as items:
            async for item in items:
                yield plain(item)


async def _pump(make: Callable[[], AsyncGenerator[Any, None]], put: Any) -> None:
    async with aclosing(make()) as items:
        async for item in items:
            put(item)


@contextmanager
def _translated() -> Iterator[None]:
    """Convert the runtime's errors to BackendError, with the status that HTTP would return."""
    from sglang.srt.requests.completion.completer import EngineLost
    from sglang.srt.requests.request_error import RequestError

    try:
        yield
    except RequestError as error:
        status = _STATUSES.get(error.code, 400)
        raise BackendError(error.message, status) from error
    except (EngineLost, CancelledError) as error:
        reason = str(error) or "it was shut down"
        raise BackendError(f"the engine is gone: {reason}", 503) from error
    except (TimeoutError, asyncio.TimeoutError) as error:
        raise BackendError("the engine does not answer", 503) from error


def _verify_names(fields: dict[str, Any], own: tuple[str, ...]) -> None:
    """Raise TypeError for a field that is neither in ``own`` nor one of the original sglang."""
    from sglang.srt.core.nearest import nearest
    from sglang.srt.runtime.request_fields import IGNORED, UNSUPPORTED

    for name in fields:
        if name not in own and name not in IGNORED and name not in UNSUPPORTED:
            meant = nearest(name, own)
            hint = f"; did you mean {meant!r}?" if meant else f"; the fields are {', '.join(own)}"
            raise TypeError(f"unknown field {name!r}{hint}")


def _body(
    prompt: Any,
    sampling_params: Any,
    input_ids: Any,
    image_data: Any,
    return_logprob: Any,
    logprob_start_len: Any,
    top_logprobs_num: Any,
    fields: dict[str, Any],
) -> dict[str, Any]:
    from sglang.srt.runtime.generate_request import GenerateRequest

    _verify_names(fields, GenerateRequest.__struct_fields__)
    body = {
        "text": prompt,
        "sampling_params": sampling_params,
        "input_ids": input_ids,
        "image_data": sent("image", image_data),
        "return_logprob": return_logprob,
        "logprob_start_len": logprob_start_len,
        "top_logprobs_num": top_logprobs_num,
        **fields,
    }
    if fields.get("video_data") is not None:
        body["video_data"] = sent("video", fields["video_data"])
    return {name: value for name, value in body.items() if value is not None}
