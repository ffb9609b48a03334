"""EngineControl: the calls of an ``Engine`` other than generation."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from sglang.backend.native.native_backend import NativeBackend
from sglang.errors import BackendError

if TYPE_CHECKING:
    from sglang.srt.runtime.engine_runtime import EngineRuntime

T = TypeVar("T")


class ScoreResult(list[list[float]]):
    """The scores of each item; ``scores`` is the same list. ``prompt_tokens``: tokens read."""

    def __init__(self, scores: list[list[float]], prompt_tokens: int) -> None:
        super().__init__(scores)
        self.prompt_tokens = prompt_tokens

    @property
    def scores(self) -> list[list[float]]:
        return self


class EngineControl(NativeBackend):
    """Scores, sessions, adapters, the cache and statistics of the runtime in this process."""

    def _alive(self) -> EngineRuntime:
        """The running runtime. Raises BackendError where it was shut down."""
        raise NotImplementedError

    def _wait(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine on the engine's loop. Raises BackendError."""
        raise NotImplementedError

    async def _awaiting(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """``_wait`` for a running event loop."""
        raise NotImplementedError

    def score(
        self,
        query: str | list[int] | None = None,
        items: str | list[str] | list[list[int]] | None = None,
        label_token_ids: list[int] | None = None,
        apply_softmax: bool = False,
        item_first: bool = False,
    ) -> ScoreResult:
        """The probability of each label as the token after ``query`` and an item, for each item:
        a list of lists. ``apply_softmax``: normalised over the labels.

        Raises BackendError.
        """
        fields = _score_fields(query, items, label_token_ids, apply_softmax, item_first)
        return self._wait(lambda: self._scored(fields))

    async def async_score(
        self,
        query: str | list[int] | None = None,
        items: str | list[str] | list[list[int]] | None = None,
        label_token_ids: list[int] | None = None,
        apply_softmax: bool = False,
        item_first: bool = False,
    ) -> ScoreResult:
        """``score`` for a running event loop."""
        fields = _score_fields(query, items, label_token_ids, apply_softmax, item_first)
        return await self._awaiting(lambda: self._scored(fields))

    async def _scored(self, fields: dict[str, Any]) -> ScoreResult:
        from sglang.srt.runtime.request_fields import convert
        from sglang.srt.runtime.scoring import ScoreRequest, label_scores

        found = await label_scores(self._alive(), convert(fields, ScoreRequest))
        return ScoreResult(found.scores, found.prompt_tokens)

    def open_session(
        self,
        capacity_of_str_len: int,
        session_id: str | None = None,
        streaming: bool = False,
        timeout: float | None = None,
    ) -> str:
        """The id of a new session, for ``session_params`` of ``generate``.

        Args:
            capacity_of_str_len: tokens that a prompt of it may have; 0: the model's context.
            streaming: every request continues the last one.
            timeout: seconds without a request after which it is closed; None: an hour.

        Raises BackendError.
        """
        runtime = self._alive()

        async def opened() -> str:
            from sglang.srt.runtime.request_fields import convert
            from sglang.srt.runtime.sessions import OpenSession

            fields = {"capacity_of_str_len": capacity_of_str_len, "session_id": session_id,
                      "streaming": streaming, "timeout": timeout}  # fmt: skip
            return runtime.sessions.open(convert(fields, OpenSession))

        return self._wait(opened)

    def close_session(self, session_id: str) -> bool:
        """Close a session; what runs in it is aborted. False where there is none of that id."""
        runtime = self._alive()

        async def closed() -> bool:
            return runtime.sessions.close(session_id)

        return self._wait(closed)

    def flush_cache(self) -> dict[str, Any]:
        """Empty the prefix cache. Raises BackendError while requests are running."""
        completion = self._alive().completion
        reply = self._wait(lambda: completion.control("flush"))
        if not reply.ok:
            raise BackendError(f"the cache was not flushed: {reply.message}", 400)
        return {"success": True, **reply.data}

    def get_server_info(self) -> dict[str, Any]:
        """Settings, the engine's facts and its counters of this moment (under ``stats``)."""
        runtime = self._alive()
        reply = self._wait(lambda: runtime.completion.control("stats"))
        info = runtime.info
        facts = {name: getattr(info, name) for name in info.__struct_fields__}
        return {**runtime.config.settings(), **facts, "stats": reply.data}

    def load_lora_adapter(
        self, lora_name: str, lora_path: str, pinned: bool = False
    ) -> dict[str, Any]:
        """Load an adapter, in PEFT's layout, from a directory or the hub; gens and requests then
        name it as ``lora_path``. Raises BackendError."""
        adapters = self._alive().adapters
        info = self._wait(lambda: adapters.load(lora_name, lora_path, pinned, trusted=True))
        return {name: getattr(info, name) for name in info.__struct_fields__}

    def unload_lora_adapter(self, lora_name: str) -> None:
        """Returns when the requests that have it have ended. Raises BackendError."""
        runtime = self._alive()
        self._wait(lambda: runtime.unload_adapter(lora_name))

    def get_model_name(self) -> str:
        runtime = self._alive()
        return runtime.info.model_path or runtime.model_name


def _score_fields(
    query: Any, items: Any, label_token_ids: Any, apply_softmax: bool, item_first: bool
) -> dict[str, Any]:
    return {"query": query, "items": [items] if isinstance(items, str) else items,
            "label_token_ids": label_token_ids, "apply_softmax": apply_softmax,
            "item_first": item_first}  # fmt: skip
