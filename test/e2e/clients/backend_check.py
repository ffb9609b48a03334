"""The OpenAI backend with whichever ``openai`` package this interpreter has.

    PYTHONPATH=python:test python test/e2e/clients/backend_check.py

Every kind of call in each of its ways against the fake service; ends with "ok" and the version.
Needs no test runner, so that an environment of a few packages can run it.
"""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from typing import Any

import openai
import sglang as sgl
from helpers.fake_openai import Broken, FakeOpenAI, Late, Refuse
from sglang import errors
from sglang.backend.base import Prompt
from sglang.backend.openai.openai_backend import OpenAI
from sglang.ir.choices import token_length_normalized
from sglang.ir.params import DEFAULTS

PROMPT = Prompt("Count to", ({"role": "user", "content": "Count to"},))
WANTED = {"finish_reason": {"type": "stop", "matched": None}, "prompt_tokens": 2,
          "completion_tokens": 3, "cached_tokens": 1}  # fmt: skip


def check(happened: Any, what: str) -> None:
    """An ``assert`` that an optimising interpreter keeps."""
    if not happened:
        raise AssertionError(f"openai {openai.__version__}: {what}")


def in_all_ways(backend: OpenAI) -> list[Any]:
    """The finished completion of each way to ask, or the class of the error."""

    async def loop() -> list[Any]:
        async def streamed() -> Any:
            return [part async for part in backend.astream(PROMPT, DEFAULTS)]

        calls = backend.acomplete(PROMPT, DEFAULTS), streamed()
        return await asyncio.gather(*calls, return_exceptions=True)

    found: list[Any] = []
    for ask in (backend.complete, backend.stream):
        try:
            found.append(list(ask(PROMPT, DEFAULTS)))
        except errors.SglangError as error:
            found.append(error)
    found += asyncio.run(loop())
    return [type(item) if isinstance(item, Exception) else item[-1] for item in found]


def apis() -> None:
    for api in ("chat", "completions", "responses"):
        with FakeOpenAI("one two three") as service:
            backend = OpenAI("m", api=api, base_url=service.url)
            for completion in in_all_ways(backend):
                check(completion.text == "one two three", f"{api} text: {completion}")
                check(WANTED.items() <= completion.meta.items(), f"{api} meta: {completion.meta}")
                check(completion.meta["request_id"].startswith("req_"), f"{api} request id")
            check(backend.token_usage.completion_tokens == 12, f"{api} usage")
            backend.shutdown()


def failures() -> None:
    soon = {"retry-after": "0.001"}
    cases: list[tuple[Any, type[Exception]]] = [
        (Refuse(400), errors.BadRequest),
        (Refuse(401), errors.AuthenticationFailed),
        (Refuse(404), errors.NotFound),
        (Refuse(429, headers=soon), errors.RateLimited),
        (Refuse(500, headers=soon), errors.ServerFailed),
        (Broken(), errors.ConnectionFailed),
    ]
    for reply, kind in cases:
        with FakeOpenAI(reply) as service:
            backend = OpenAI("m", base_url=service.url, max_retries=isinstance(reply, Refuse))
            found = in_all_ways(backend)
            check(found == [kind] * 4, f"{reply}: {found}")
            backend.shutdown()
    with FakeOpenAI(Broken(b"data: {oops\n\n", "a b")) as service:
        backend = OpenAI("m", base_url=service.url)
        _, streamed, _, astreamed = in_all_ways(backend)
        check({streamed, astreamed} == {errors.BackendError}, f"{streamed}, {astreamed}")
        backend.shutdown()


def choices() -> None:
    with FakeOpenAI('{"value": "b"}') as service:
        backend = OpenAI("m", base_url=service.url)
        check(backend.choose(PROMPT, ["a", "b"], token_length_normalized).text == "b", "enum")
        backend.shutdown()
    with FakeOpenAI("", scores={"b": -0.5}) as service:
        backend = OpenAI("m", api="completions", base_url=service.url)
        check(backend.choose(PROMPT, [" a", " b"], token_length_normalized).text == " b", "echo")
        backend.shutdown()


def azure() -> None:
    with FakeOpenAI("yes") as service:
        where: dict[str, Any] = {
            "azure_endpoint": service.url.removesuffix("/v1"),
            "api_version": "2024-10-21",
        }
        backend = OpenAI("d", is_azure=True, api_key="k", **where)
        check({c.text for c in in_all_ways(backend)} == {"yes"}, "azure text")
        path = "/openai/deployments/d/chat/completions?api-version=2024-10-21"
        check(set(service.paths) == {path}, f"azure paths: {service.paths}")
        backend.shutdown()


@sgl.function
def conversation(s: Any) -> None:
    s += sgl.system("Count.")
    s += sgl.user("To one.") + sgl.assistant(sgl.gen("one", max_tokens=4))
    s += sgl.user("To two.") + sgl.assistant(sgl.gen("two", max_tokens=4))


def program() -> None:
    with FakeOpenAI(["1", "1 2"]) as service:
        backend = OpenAI("gpt-4o", base_url=service.url)
        state = conversation.run(backend=backend)
        check((state["one"], state["two"]) == ("1", "1 2"), "program")
        check(len(service.bodies[1]["messages"]) == 4, "conversation")
        backend.shutdown()


def abort() -> None:
    """A call of a thread ends with its program; the service sees the connection go."""
    with FakeOpenAI(Late(3600, "a b")) as service:
        backend = OpenAI("gpt-4o", base_url=service.url)

        @sgl.function
        def failing(s: Any) -> None:
            s += sgl.user("Hi") + sgl.assistant(sgl.gen("x"))
            while not service.under_way:
                time.sleep(0.001)
            raise KeyError("on purpose")

        for stream in (False, True):
            try:
                failing.run(backend=backend, stream=stream).text()
            except KeyError:
                while service.connections:
                    time.sleep(0.001)
        backend.shutdown()


if __name__ == "__main__":
    warnings.simplefilter("error", ResourceWarning)
    for part in (apis, failures, choices, azure, program, abort):
        part()
    while threading.active_count() > 1:
        time.sleep(0.001)
    print("ok", openai.__version__)
