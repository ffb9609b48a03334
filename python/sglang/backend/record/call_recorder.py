"""Record: a backend that writes its calls to a file, and a backend that answers from the file."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sglang.backend.base import (
    Backend,
    Call,
    Choose,
    Commit,
    Complete,
    Completion,
    Prompt,
    checked_backend,
)
from sglang.backend.record.call_file import (
    CallFile,
    asked,
    error_data,
    error_of,
    key_of,
    template_of,
    traits_of,
)
from sglang.errors import BackendError
from sglang.ir.choices import ChoicesMethod, Decision
from sglang.ir.params import GenParams


class Recorder(Backend):
    """Passes every call to ``backend`` and writes it to the file ``path``, which is overwritten.

    A call is written when it ends with an answer or an error; an aborted call is not. The context
    manager closes the file at its end; ``shutdown`` also shuts the backend down.
    """

    def __init__(self, backend: Any, path: str | os.PathLike[str]) -> None:
        self._backend = inner = checked_backend(backend)
        self.resemble(inner)
        self.native = inner.native
        self._lock = threading.Lock()
        self._file = open(path, "w", encoding="utf-8", errors="surrogatepass")  # noqa: SIM115
        self._write(traits_of(inner))

    def pause_hint(self, prompt: Prompt, tool: str, expected_seconds: float | None) -> None:
        self._backend.pause_hint(prompt, tool, expected_seconds)

    def complete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        with self._line(Complete(prompt, params)) as line:
            answer = self._backend.complete(prompt, params)
            line["answer"] = [[one.text, one.meta] for one in answer]
        return answer

    async def acomplete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        with self._line(Complete(prompt, params)) as line:
            answer = await self._backend.acomplete(prompt, params)
            line["answer"] = [[one.text, one.meta] for one in answer]
        return answer

    def stream(self, prompt: Prompt, params: GenParams) -> Iterator[Completion]:
        with self._line(Complete(prompt, params)) as line:
            for piece in self._backend.stream(prompt, params):
                _grow(line, piece)
                yield piece

    async def astream(self, prompt: Prompt, params: GenParams) -> AsyncIterator[Completion]:
        with self._line(Complete(prompt, params)) as line:
            async for piece in self._backend.astream(prompt, params):
                _grow(line, piece)
                yield piece

    def choose(self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod) -> Decision:
        with self._line(Choose(prompt, tuple(options), method)) as line:
            decision = self._backend.choose(prompt, options, method)
            line["answer"] = [decision.text, decision.meta]
        return decision

    async def achoose(
        self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
    ) -> Decision:
        with self._line(Choose(prompt, tuple(options), method)) as line:
            decision = await self._backend.achoose(prompt, options, method)
            line["answer"] = [decision.text, decision.meta]
        return decision

    def commit(self, prompt: Prompt) -> dict[str, Any]:
        with self._line(Commit(prompt)) as line:
            meta = line["answer"] = self._backend.commit(prompt)
        return meta

    async def acommit(self, prompt: Prompt) -> dict[str, Any]:
        with self._line(Commit(prompt)) as line:
            meta = line["answer"] = await self._backend.acommit(prompt)
        return meta

    def request(self, call: Call) -> dict[str, Any]:
        return self._backend.request(call)

    def tokenize(self, texts: Sequence[str], special: bool = True) -> list[Sequence[int]]:
        return self._backend.tokenize(texts, special)

    def detokenize(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return self._backend.detokenize(rows)

    def flush_cache(self) -> Any:
        return self._backend.flush_cache()

    def get_server_info(self) -> dict[str, Any]:
        return self._backend.get_server_info()

    def close(self) -> None:
        """Close the file. The backend stays open."""
        with self._lock:
            self._file.close()

    def shutdown(self) -> None:
        self.close()
        self._backend.shutdown()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _line(self, call: Call) -> Iterator[dict[str, Any]]:
        """Write a line for the call made inside the context; the caller sets its ``answer``."""
        what = asked(call)
        line = {"key": key_of(what), **what}
        del line["messages"]  # the prompt's text contains the messages
        try:
            yield line
        except Exception as error:
            line.pop("answer", None)
            self._write({**line, "error": error_data(error)})
            raise
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        text = json.dumps(line, ensure_ascii=False) + "\n"
        with self._lock:
            if self._file.closed:
                raise BackendError(f"the recording {self._file.name} is closed; nothing was kept")
            self._file.write(text)
            self._file.flush()


class Replay(Backend):
    """Answers from a file that a ``Recorder`` has written, without a model.

    A repeated call gets its recorded answers in turn, and after the last the first again. A call
    that was not recorded raises BackendError with the nearest recorded call.
    """

    name = "replay"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._recording = CallFile(path)
        traits = self._recording.traits
        self.chat_template = template_of(traits)
        self.constraints = frozenset(traits["constraints"])
        self.speculates = traits["speculates"]
        self.messages_only = traits["messages_only"]
        self.continues = traits.get("continues", False)  # missing in older recordings
        self.calls_tools = traits.get("calls_tools", False)
        self.tool_format = traits.get("tool_format", "hermes")

    def complete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        return [Completion(*one) for one in self._answer(Complete(prompt, params))]

    async def acomplete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        return self.complete(prompt, params)

    def stream(self, prompt: Prompt, params: GenParams) -> Iterator[Completion]:
        line = self._recording.line(Complete(prompt, params)) or {}
        pieces, text = line.get("pieces", []), ""
        for kept, added in pieces if "error" in line else pieces[:-1]:
            text = text[:kept] + added
            yield Completion(text, {"finish_reason": None})
        ((text, meta),) = _given(line)
        yield Completion(text, meta)

    async def astream(self, prompt: Prompt, params: GenParams) -> AsyncIterator[Completion]:
        for piece in self.stream(prompt, params):
            yield piece

    def choose(self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod) -> Decision:
        return Decision(*self._answer(Choose(prompt, tuple(options), method)))

    async def achoose(
        self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
    ) -> Decision:
        return self.choose(prompt, options, method)

    def commit(self, prompt: Prompt) -> dict[str, Any]:
        return dict(self._answer(Commit(prompt)))

    async def acommit(self, prompt: Prompt) -> dict[str, Any]:
        return self.commit(prompt)

    def flush_cache(self) -> None:
        """Do nothing: a replay has no cache."""

    def _answer(self, call: Call) -> Any:
        return _given(self._recording.line(call) or {"answer": {}})


def _grow(line: dict[str, Any], piece: Completion) -> None:
    """Add a piece of a stream to the line: the number of characters kept, and the new text."""
    before = line["answer"][0][0] if "answer" in line else ""
    kept = len(before) if piece.text.startswith(before) else 0
    line.setdefault("pieces", []).append([kept, piece.text[kept:]])
    line["answer"] = [[piece.text, piece.meta]]


def _given(line: dict[str, Any]) -> Any:
    if "error" in line:
        raise error_of(line["error"])
    return line["answer"]
