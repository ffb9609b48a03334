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
    """The scores of each item; ``scores`` is this list. ``prompt_tokens``: of all prompts."""

    def __init__(self, scores: list[list[float]], prompt_tokens: int) -> None:
        super().__init__(scores)
        self.prompt_tokens = prompt_tokens

    @property
    def scores(self) -> list[list[float]]:
        return self


class EngineControl(NativeBackend):
    """Scores, sessions, adapters, the cache and statistics of the runtime in this process."""

    def _alive(self) -> EngineRuntime:
        """Return the running runtime. Raises BackendError after ``shutdown``."""
        raise NotImplementedError

    def _wait(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the engine's loop and wait for its result. Raises BackendError."""
        raise NotImplementedError

    async def _awaiting(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine as ``_wait`` does, awaited in the caller's event loop."""
        raise NotImplementedError

    def score(
        self,
        query: str | list[int] | None = None,
        items: str | list[str] | list[list[int]] | None = None,
        label_token_ids: list[int] | None = None,
        apply_softmax: bool = False,
        item_first: bool = False,
    ) -> ScoreResult:
        """Return, for each item, the probability of each label as the token after ``query`` and the
        item. ``apply_softmax``: normalise over the labels.

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
        """Score as ``score`` does, in an event loop."""
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
        """Open a session. Return its id, for ``session_params`` of ``generate``.

        Args:
            capacity_of_str_len: limit of a prompt in tokens; 0: the model's context length.
            streaming: every request continues the last one.
            timeout: seconds without a request after which the session is closed; None: an hour.

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
        """Close a session and abort its requests. Return False if no session has that id."""
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
        """Return settings, facts of the engine and its current counters (under ``stats``)."""
        runtime = self._alive()
        reply = self._wait(lambda: runtime.completion.control("stats"))
        info = runtime.info
        facts = {name: getattr(info, name) for name in info.__struct_fields__}
        return {**runtime.config.settings(), **facts, "stats": reply.data}

    def load_lora_adapter(
        self, lora_name: str, lora_path: str, pinned: bool = False
    ) -> dict[str, Any]:
        """Load an adapter in PEFT's layout from a directory or the hub. Gens and requests select it
        by its name as ``lora_path``. Raises BackendError."""
        adapters = self._alive().adapters
        info = self._wait(lambda: adapters.load(lora_name, lora_path, pinned, trusted=True))
        return {name: getattr(info, name) for name in info.__struct_fields__}

    def unload_lora_adapter(self, lora_name: str) -> None:
        """Unload an adapter. Return when its requests have ended. Raises BackendError."""
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
