"""Submitted: a program that runs on a server, and the futures of its variables."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from sglang.errors import BackendError, ConnectionFailed, NotFound, SglangError, UnknownVariable
from sglang.on_server.answers import Answers
from sglang.on_server.lowering.lower import Lowered
from sglang.on_server.lowering.values import sendable
from sglang.on_server.server_session import LOOP, ServerSession
from sglang.run.live_nodes import Promised
from sglang.run.run_scope import in_loop
from sglang.state import ProgramState

T = TypeVar("T")
RECONNECTIONS = 3  # limit of the lost connections of one submission
PAUSE_SECONDS = 0.2


class VariableFuture(Promised):
    """Future of the variable ``name`` of a submitted program.

    As an argument of another ``submit`` to the same session, the value stays on the server.
    ``for text in future`` and ``async for`` yield the text while it is generated; ``await future``
    returns the value.
    """

    def __init__(self, program: Submitted, name: str) -> None:
        self.program, self.name = program, name
        self.executor = program.replayed._executor

    def get(self, criteria: Any = None, timeout: float | None = None) -> Any:
        """Wait for the value and return it.

        Args:
            criteria: "latency", "throughput", {"ttft_ms": n} or {"tpot_ms": n}: performance
                criterion of this variable and of all variables that it depends on. The strictest
                criterion of a variable applies.
            timeout: seconds to wait.

        Raises:
            ProgramError: the variable, or one it depends on, has failed; with the program's line.
            TimeoutError: the value is not complete in time."""
        if in_loop(LOOP.loop):
            raise SglangError("reading would block the event loop of submissions; await the future")
        return LOOP.run(self.aget, criteria, timeout)

    async def aget(self, criteria: Any = None, timeout: float | None = None) -> Any:
        """Return the value as ``get`` does, awaited."""
        self.program.wish(self.name, criteria)
        try:
            return await asyncio.wait_for(self.program.replayed.aget(self.name), timeout)
        except asyncio.TimeoutError:
            raise TimeoutError(
                f"variable {self.name!r} is not there after {timeout} s; the program is "
                f"{self.program.state()}"
            ) from None

    def value(self) -> Any:
        """Wait for the typed value and return it. Raises the errors of ``ProgramState.value``."""
        return self.program.replayed.value(self.name)

    def set(self, value: Any) -> None:
        """Set the variable of a tool whose function the client does not run. Raises
        BackendError."""
        LOOP.run(self.program.call, "/v1/set", self, {"value": value})

    def cancel(self) -> None:
        """Cancel this variable, and the variables that only this one needs."""
        LOOP.start(_quietly, self.program.call, "/v1/cancel", self, {})

    async def id(self) -> str:
        """Return the id of the semantic variable on the server. Raises the error of a failed
        submission."""
        ids = await self.program.variables()
        if self.name not in ids:
            raise SglangError(
                f"variable {self.name!r} stays with the client, as it holds what JSON cannot"
            )
        return ids[self.name]

    def __await__(self) -> Generator[Any, None, Any]:
        return self.aget().__await__()

    def __iter__(self) -> Iterator[str]:
        self.program.stream()
        return self.program.replayed.text_iter(self.name)

    def __aiter__(self) -> AsyncIterator[str]:
        self.program.stream()
        return self.program.replayed.text_async_iter(self.name)

    def __format__(self, spec: str) -> str:
        raise TypeError(
            "a future cannot be formatted into a text; give it to submit as an argument, or use "
            ".get()"
        )

    def __repr__(self) -> str:
        return f"VariableFuture({self.name!r}, {self.program.state()})"


class Submitted:
    """A program that was sent to a server. ``f["x"]`` is the future of its variable x.

    Attributes:
        session: session that runs the program.
        replayed: the state as in a run by this process, updated while results arrive.
    """

    def __init__(
        self,
        lowered: Lowered,
        session: ServerSession,
        answers: Answers,
        criteria: dict[str, Any],
        growing: bool = False,
    ) -> None:
        self.session, self._lowered, self._answers = session, lowered, answers
        session.note(self)
        self._criteria = criteria
        self._accepted: asyncio.Future[dict[str, str]] = LOOP.loop.create_future()
        self._submission_id = self._session_id = ""
        self._growing, self._cancelled = growing, False
        self._done: Future[None] = Future()
        self.replayed: ProgramState

    def __getitem__(self, name: str) -> VariableFuture:
        """Return the future of a variable. Raises UnknownVariable if the program makes no variable
        of this name."""
        if name not in self._lowered.names:
            known = sorted(self._lowered.names)
            raise UnknownVariable(f"the program makes no variable {name!r}; it makes {known}")
        return VariableFuture(self, name)

    def start(self, state: ProgramState, replay: Callable[[], Awaitable[None]]) -> None:
        """Send the program. ``replay`` runs the program on ``state`` while results arrive."""
        self.replayed = state
        LOOP.start(self._serve)
        LOOP.start(self._replay, replay)

    def state(self) -> str:
        """Return "waiting" (not accepted yet), "running", "done", "failed" or "cancelled"."""
        if self._cancelled:
            return "cancelled"
        return self._answers.state

    def result(self) -> ProgramState:
        """Wait for the end and return the state, as ``run`` does. Raise the errors of ``run``."""
        try:
            self._done.result()
        except BaseException:
            self.cancel()
            raise
        return self.replayed

    async def aresult(self) -> ProgramState:
        """Return the state as ``result`` does, awaited. Cancelling the wait cancels the program."""
        try:
            await asyncio.shield(asyncio.wrap_future(self._done))
        except BaseException:
            self.cancel()
            raise
        return self.replayed

    def __await__(self) -> Generator[Any, None, ProgramState]:
        return self.aresult().__await__()

    def cancel(self) -> None:
        """Cancel the program in this process and on the server. Complete values stay readable."""
        if self._done.done():
            return
        self._cancelled = True
        self.replayed.cancel()

    # On the event loop of submissions

    async def variables(self) -> dict[str, str]:
        """Return the variables' ids on the server by name. Raises the submission's error."""
        if in_loop(LOOP.loop):
            return await asyncio.shield(self._accepted)
        return await asyncio.wrap_future(LOOP.start(self.variables))

    async def call(self, path: str, future: VariableFuture, body: dict[str, Any]) -> dict[str, Any]:
        """Make a request about one variable. Raises BackendError."""
        return await self._call(path, semantic_var_id=await future.id(), **body)

    async def _call(self, path: str, **body: Any) -> dict[str, Any]:
        """Make a request about this program, in the session that accepted the program. Raises
        BackendError."""
        await self.variables()
        return await self.session.service.program_call(
            path, {**body, "session_id": self._session_id}
        )

    def wish(self, name: str, criteria: Any) -> None:
        """Send the server the criteria of a variable, without waiting."""
        if criteria is None:
            return
        body = {"criteria": criteria_of(criteria)}
        if not self._answers.ended:
            LOOP.start(_quietly, self.call, "/v1/get", self[name], body)

    def stream(self) -> None:
        """Make the server send growing texts from now on."""
        if not self._growing and not self._answers.ended:
            self._growing = True
            LOOP.start(_quietly, self._follow, True)

    async def set_tool(self, step: int, text: str | None) -> None:
        """Send the server the text of the tool of a step; None: it failed. Raises BackendError."""
        ids, name = await self.variables(), self._lowered.tools[step]
        id = ids[f"{step}.{name}"]
        if text is None:
            await _quietly(self._call, "/v1/cancel", semantic_var_id=id)
        else:
            await self._call("/v1/set", semantic_var_id=id, value=text)

    async def _serve(self) -> None:
        """Send the submission and process its events; reconnect after a lost connection."""
        try:
            await self._submit()
            for _ in range(RECONNECTIONS):
                if self._answers.ended:
                    return
                await asyncio.sleep(PAUSE_SECONDS)
                with suppress(ConnectionFailed):
                    await self._follow(self._growing)
            lost = "the connection to the server was lost, and the program's results with it"
            self._answers.fail(ConnectionFailed(lost))
        except BaseException as error:
            self._answers.fail(error)
            if not self._accepted.done():
                self._accepted.set_exception(error)
                self._accepted.exception()  # marks it as read
            if not isinstance(error, Exception):
                raise

    async def _submit(self) -> None:
        """Send the program to the server. Raises the server's error if the program is refused."""
        key = uuid.uuid4().hex
        promised = {name: await self._sent(p) for name, p in self._lowered.promised.items()}
        submission = self._lowered.submission
        graph = {**submission, "arguments": {**submission["arguments"], **promised}}
        for attempt in range(RECONNECTIONS):
            self._session_id = await self.session.id()
            body = {"graph": graph, "session_id": self._session_id, "stream": True,
                    "idempotency_key": key, "criteria": self._criteria,
                    "grown": self._growing}  # fmt: skip
            try:
                return await self._take("/v1/submit", body)
            except ConnectionFailed:
                if self._accepted.done():
                    return  # the caller continues with ``_follow``
                if attempt == RECONNECTIONS - 1:
                    raise
            except NotFound:
                if promised or attempt:
                    raise
                self.session.forget(self._session_id)  # the session has expired

    async def _sent(self, promise: Promised) -> Any:
        """Return an argument in its sent form: a reference for a variable of the same session, else
        the variable's value, which is awaited. Raises the error of a failed variable."""
        assert isinstance(promise, VariableFuture)
        if promise.program.session is self.session:
            return {"var": await promise.id()}
        return sendable(await promise.aget())

    async def _follow(self, grown: bool) -> None:
        await self.variables()
        body = {"submission_id": self._submission_id, "stream": True, "grown": grown,
                "session_id": self._session_id}  # fmt: skip
        await self._take("/v1/get", body)

    async def _take(self, path: str, body: dict[str, Any]) -> None:
        """Make a request and process the events of its answer."""
        async with aclosing(self.session.service.program_events(path, body)) as events:
            async for event in events:
                if "event" in event:
                    self._answers.take(event)
                elif not self._accepted.done():
                    self._submission_id = event["submission_id"]
                    self._answers.accept()
                    self._accepted.set_result(event["variables"])

    async def _replay(self, replay: Callable[[], Awaitable[None]]) -> None:
        """Replay the program with the results. If it fails early, cancel it on the server."""
        executor = self.replayed._executor
        error: BaseException | None = None
        try:
            await replay()
            await self._answers.end()
        except BaseException as failure:
            error = failure
            executor.run.cancel(failure)
            if not self._answers.ended:
                await asyncio.shield(_quietly(self._give_up))
            if not isinstance(failure, Exception):
                raise
        finally:
            executor.close()
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)

    async def _give_up(self) -> None:
        await self.variables()
        await self._call("/v1/cancel", submission_id=self._submission_id)


async def _quietly(function: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> None:
    """Call a function and ignore BackendError, which the program's results will report too."""
    with suppress(BackendError):
        await function(*args, **kwargs)


def criteria_of(value: Any) -> Any:
    """Return valid criteria in the form of the request. Raise ValueError for other values."""
    if value in ("latency", "throughput"):
        return value
    if isinstance(value, dict) and value and set(value) <= {"ttft_ms", "tpot_ms"}:
        numbers = [v for v in value.values() if type(v) in (int, float) and v > 0]
        if len(numbers) == len(value):
            return value
    raise ValueError(
        f"criteria is {value!r:.60}; give 'latency', 'throughput', {{'ttft_ms': n}} or "
        "{'tpot_ms': n}, with milliseconds above 0"
    )


def criteria_by_name(value: Any) -> dict[str, Any]:
    """Return criteria by the name of a variable, "*" for the whole program. Raise ValueError."""
    if value is None:
        return {}
    if isinstance(value, dict) and value and not set(value) <= {"ttft_ms", "tpot_ms"}:
        return {str(name): criteria_of(one) for name, one in value.items()}
    return {"*": criteria_of(value)}
