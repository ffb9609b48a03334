"""FakeProgramServer: a runtime of ours that runs submissions, over a mock model.

It follows the streams of a submission one step after the other, in tasks, and knows nothing of the
interpreter: what it makes can be compared with a plain run.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator
from typing import Any

from sglang.backend.base import Completion, Prompt
from sglang.backend.mock import Mock
from sglang.errors import BadRequest, NotFound
from sglang.ir.choices import METHODS
from sglang.ir.nodes import REASONING
from sglang.ir.params import NAMES, GenParams
from sglang.semantics import reasoning
from sglang.semantics.transforms import TransformError, text_of, transformed, transforms_of


class StepError(Exception):
    """A step that failed. ``cause``: its number."""

    def __init__(self, cause: int, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class FakeProgramServer(Mock):
    """A ``Mock`` with the calls that submissions need.

    Attributes:
        submissions: bodies of /v1/submit. others: the other calls: path and body.
        hold: where set, calls of the model wait for it.
        lose: connections of events that are cut after the given number of events.
    """

    name = "fake server"
    native = True

    def __init__(self, script: Any = None, **options: Any) -> None:
        super().__init__(script, constraints=("regex", "json_schema"), **options)
        self.submissions: list[dict[str, Any]] = []
        self.others: list[tuple[str, dict[str, Any]]] = []
        self.hold: asyncio.Event | None = None
        self.lose: list[int] = []
        self.refuse: Exception | None = None
        self.sessions: set[str] = set()
        self.opened, self.closed = 0, list[str]()
        self.runs: dict[str, FakeRun] = {}
        self.values: dict[str, asyncio.Future[Any]] = {}

    async def program_call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        body = json.loads(json.dumps(body))
        if path == "/v1/session":
            name, self.opened = f"session{self.opened}", self.opened + 1
            self.sessions.add(name)
            return {"session_id": name, "expires_seconds": 600}
        self._known(body)
        self.others.append((path, body))
        if path == "/v1/set":
            self.values[body["semantic_var_id"]].set_result(body["value"])
        elif path == "/v1/cancel" and "submission_id" in body:
            self.runs[body["submission_id"]].cancel()
        elif path == "/v1/cancel":
            self.values[body["semantic_var_id"]].cancel()
        elif path == "/v1/get":
            return {"value": await asyncio.shield(self.values[body["semantic_var_id"]])}
        return {"status": "ok"}

    async def close_program_session(self, session_id: str) -> None:
        self.sessions.discard(session_id)
        self.closed.append(session_id)

    async def program_events(
        self, path: str, body: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        body = json.loads(json.dumps(body))
        self._known(body)
        if path == "/v1/submit":
            if self.refuse is not None:
                raise self.refuse
            self.submissions.append(body)
            run = next((r for r in self.runs.values() if r.key == body["idempotency_key"]), None)
            run = run or FakeRun(self, body["graph"], body["idempotency_key"])
            self.runs[run.id] = run
            yield {"submission_id": run.id, "variables": run.ids}
        else:
            run = self.runs[body["submission_id"]]
        count = self.lose.pop(0) if self.lose else -1
        at = 0
        while True:
            while at < len(run.events):
                if at == count:
                    from sglang.errors import ConnectionFailed

                    raise ConnectionFailed("the connection was cut")
                event = run.events[at]
                at += 1
                if event["event"] != "grown" or body.get("grown"):
                    yield event
                if event["event"] == "end":
                    return
            run.changed.clear()
            await run.changed.wait()

    def _known(self, body: dict[str, Any]) -> None:
        if body["session_id"] not in self.sessions:
            raise NotFound("no such session", 404)

    async def answer(self, text: str, body: dict[str, Any]) -> list[Completion]:
        """The completions of a request."""
        if self.hold is not None:
            await self.hold.wait()
        sent = dict(body["sampling_params"])
        sent["seed"] = sent.pop("sampling_seed", None)
        params = GenParams(**{name: value for name, value in sent.items() if name in NAMES})
        return await self.acomplete(Prompt(text), params)


class FakeRun:
    """One submission as it runs."""

    def __init__(self, server: FakeProgramServer, graph: dict[str, Any], key: str) -> None:
        self.server, self.graph, self.key = server, graph, key
        self.id = f"run{len(server.runs)}"
        self.events: list[dict[str, Any]] = []
        self.changed = asyncio.Event()
        self.ids: dict[str, str] = {}
        self.texts: dict[int, tuple[str, int, dict[str, Any]]] = {}
        self.behind: dict[int, asyncio.Future[Any]] = {}
        loop = asyncio.get_running_loop()
        for stream in graph["streams"]:
            begin = stream["begin"] or {}
            for number in (begin.get("number"), *(step["number"] for step in stream["steps"])):
                self.behind[number] = loop.create_future()
            for step in stream["steps"]:
                self._name(step, stream["stream"] == 0)
        self.tasks = [loop.create_task(self._stream(stream)) for stream in graph["streams"]]
        self.end = loop.create_task(self._end())

    def _name(self, step: dict[str, Any], main: bool) -> None:
        names = [step.get("name"), *step.get("made", ())]
        if step.get("reasoning") and step.get("name"):
            names.append(step["name"] + REASONING)
        for name in filter(None, names):
            if step["op"] in ("scope_begin",):
                continue
            id = self.ids[f"{step['number']}.{name}"] = f"{self.id}-{step['number']}.{name}"
            self.server.values[id] = asyncio.get_running_loop().create_future()
            if main:
                self.ids[name] = id

    def tell(self, **event: Any) -> None:
        self.events.append(event)
        self.changed.set()

    def cancel(self) -> None:
        for task in self.tasks:
            task.cancel()

    async def _end(self) -> None:
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        failed = any(isinstance(r, StepError) for r in results)
        cancelled = any(isinstance(r, asyncio.CancelledError) for r in results)
        self.tell(event="end", state="failed" if failed else "cancelled" if cancelled else "done")

    async def _stream(self, stream: dict[str, Any]) -> None:
        begin = stream["begin"] or {}
        text, variables, scopes = "", {}, []
        if "fork" in begin:
            text, variables, scopes, _ = await asyncio.shield(self.behind[begin["fork"]])
        own = StreamSoFar(self, text, dict(variables), list(scopes))
        numbers = [begin.get("number")]
        try:
            self._settle(numbers.pop(), own)
            for step in stream["steps"]:
                numbers = [step["number"]]
                await own.visit(step)
                self._settle(step["number"], own)
        except BaseException as error:
            self._fail(stream, own, numbers, error)
            raise

    def _settle(self, number: int | None, own: StreamSoFar) -> None:
        if number is not None:
            self.behind[number].set_result(
                (own.text, dict(own.variables), list(own.scopes), own.begin)
            )

    def _fail(
        self, stream: dict[str, Any], own: StreamSoFar, numbers: list[Any], error: BaseException
    ) -> None:
        steps = [s["number"] for s in stream["steps"] if not self.behind[s["number"]].done()]
        cause = error.cause if isinstance(error, StepError) else -1
        for number in steps:
            if isinstance(error, StepError):
                self.behind[number].set_exception(StepError(cause, str(error)))
                self.behind[number].exception()
                self.tell(event="failed", step=number, message=str(error), code=400,
                          cause_step=cause)  # fmt: skip
            else:
                self.behind[number].cancel()
                self.tell(event="cancelled", step=number)


class StreamSoFar:
    """Text and variables of one stream, which grow."""

    def __init__(self, run: FakeRun, text: str, variables: Any, scopes: Any) -> None:
        self.run, self.text, self.variables, self.scopes = run, text, variables, scopes
        self.begin = len(text)

    async def visit(self, step: dict[str, Any]) -> None:
        try:
            await getattr(self, "_" + step["op"])(step)
        except StepError:
            raise
        except Exception as error:
            raise StepError(step["number"], f"{type(error).__name__}: {error}") from error

    def _define(self, step: dict[str, Any], name: str | None, value: Any) -> None:
        if name is not None:
            self.variables[name] = value
            future = self.run.server.values[self.run.ids[f"{step['number']}.{name}"]]
            if not future.done():
                future.set_result(value)

    async def _of(self, value: Any) -> Any:
        if isinstance(value, list):
            return [await self._of(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "argument" in value:
            return await self._of(self.run.graph["arguments"][value["argument"]])
        if "var" in value:
            return await asyncio.shield(self.run.server.values[value["var"]])
        await asyncio.shield(self.run.behind[value["step"]])
        id = self.run.ids[f"{value['step']}.{value['name']}"]
        return await asyncio.shield(self.run.server.values[id])

    async def _text(self, step: dict[str, Any]) -> None:
        self.text += step["text"]

    async def _value(self, step: dict[str, Any]) -> None:
        value = transformed(transforms_of(step.get("transform", [])), await self._of(step["of"]))
        self.text += text_of(value)

    async def _media(self, step: dict[str, Any]) -> None:
        source = step["source"]
        assert source["url"].startswith("data:") if "url" in source else await self._of(source)
        self.text += step["marker"]

    def _prompt(self) -> dict[str, Any]:
        return {"chars": len(self.text), "sha256": hashlib.sha256(self.text.encode()).hexdigest()}

    async def _gen(self, step: dict[str, Any]) -> None:
        prompt, number = self._prompt(), step["number"]
        self.run.tell(event="started", step=number)
        found = await self.run.server.answer(self.text, step["body"])
        words = found[0].text.split(" ")
        for end in range(1, len(words)) if len(found) == 1 else ():
            self.run.tell(event="grown", step=number, text=" ".join(words[:end]))
            await asyncio.sleep(0)
        texts, thoughts = [c.text for c in found], []
        if model_type := step.get("reasoning"):
            thoughts, texts = map(list, zip(*(reasoning.split(t, model_type) for t in texts)))
        several, name = len(found) > 1, step.get("name")
        if thoughts and name:
            self._define(step, name + REASONING, thoughts if several else thoughts[0])
        self._define(step, name, texts if several else texts[0])
        self.text += texts[0]
        answers = [{"text": c.text, "meta_info": c.meta} for c in found]
        self.run.tell(event="done", step=number, answers=answers, prompt=prompt)

    async def _choose(self, step: dict[str, Any]) -> None:
        prompt = self._prompt()
        decision = await self.run.server.achoose(
            Prompt(self.text), step["options"], METHODS[step["method"]]
        )
        self.text += decision.text
        self._define(step, step.get("name"), decision.text)
        self.run.tell(event="done", step=step["number"], prompt=prompt,
                      decision={"text": decision.text, "meta": decision.meta})  # fmt: skip

    async def _tool(self, step: dict[str, Any]) -> None:
        of = await self._of(step["of"]) if "of" in step else ""
        self.run.tell(event="waiting", step=step["number"], tool=step["tool"], of=text_of(of))
        future = self.run.server.values[self.run.ids[f"{step['number']}.{step['name']}"]]
        try:
            value = await asyncio.shield(future)
        except asyncio.CancelledError:
            if not future.cancelled():
                raise
            raise StepError(step["number"], "the tool was cancelled") from None
        self.text += value
        self.variables[step["name"]] = value
        self.run.tell(event="done", step=step["number"], value=value)

    async def _set(self, step: dict[str, Any]) -> None:
        self._define(step, step["name"], await self._of(step["value"]))

    async def _transform(self, step: dict[str, Any]) -> None:
        value = await self._of(step["of"])
        try:
            made = transformed(transforms_of(step["transform"]), value)
        except TransformError as error:
            raise StepError(step["number"], str(error)) from error
        self._define(step, step["name"], made)

    async def _scope_begin(self, step: dict[str, Any]) -> None:
        self.scopes.append((step["name"], len(self.text)))

    async def _scope_end(self, step: dict[str, Any]) -> None:
        scope = [scope for scope in self.scopes if scope[0] == step["name"]][-1]
        self.scopes.remove(scope)
        self._define(step, step["name"], self.text[scope[1] :])

    async def _fork(self, step: dict[str, Any]) -> None:
        """Children begin where this step is settled."""

    async def _join(self, step: dict[str, Any]) -> None:
        ends = [await asyncio.shield(self.run.behind[end]) for end in step["ends"]]
        if step["mode"] == "gather_variable":
            for name in step.get("made", ()):
                self._define(step, name, [variables.get(name) for _, variables, _, _ in ends])
        else:
            self.text += "".join(text[begin:] for text, _, _, begin in ends)


def refusal(message: str) -> BadRequest:
    """The answer of a server that refuses a submission."""
    return BadRequest(f"the runtime answered 400: {message}", 400)
