"""Inferlets in tests: programs over a model of transformers (``Programs``), or over the engine."""

from __future__ import annotations

import asyncio
import runpy
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import sglang as sgl
import torch
from helpers.paths import ROOT
from helpers.space_model import SpaceModel
from sglang.backend.engine.inferlets import InferletError, TrustedDriver
from sglang.srt.engine.info import EngineInfo
from sglang.srt.inferlet.controller import Controller
from sglang.srt.inferlet.driver import Driver
from sglang.srt.inferlet.inferlet_run import InferletRun
from sglang.srt.inferlet.inferlet_session import InferletSession
from sglang.srt.inferlet.program_limits import TRUSTED, ProgramLimits, Rights
from sglang.srt.inferlet.served import RunFollower, Served
from sglang.srt.tokenizer.tokenizer import EMBEDDED, Tokenizer
from transformers import AutoModelForCausalLM

Main = Callable[[Any], Awaitable[Any]]


def embedded_model() -> Any:
    """The embedded model by transformers, fp32."""
    torch.set_num_threads(1)  # other work of the machine makes two slower than one
    return AutoModelForCausalLM.from_pretrained(EMBEDDED, dtype=torch.float32)


def example(name: str) -> Main:
    """``main`` of an example."""
    main: Main = runpy.run_path(str(ROOT / "examples" / "inferlets" / f"{name}.py"))["main"]
    return main


class Programs:
    """Runs of programs over a ``SpaceModel``.

    Attributes:
        errors: of the last programs, in order.
        sent: messages of the last programs, in order.
        passes, tokens: of the last programs together.
    """

    def __init__(self, hf: Any, tokenizer: Tokenizer, page_size: int = 1) -> None:
        self.hf, self.tokenizer = hf, tokenizer
        config = hf.config
        self.info = EngineInfo(
            model_path="fake", architecture="Llama", dtype="float32", device="cpu",
            vocab_size=config.vocab_size, context_length=4096, capacity=1 << 16,
            page_size=page_size, max_running_requests=64, max_queued_requests=64, eos=(2, 0),
        )  # fmt: skip
        self.model = SpaceModel(hf, page_size)
        self.passes = self.tokens = 0
        self.errors: list[str] = []
        self.sent: list[list[Any]] = []

    def run(
        self,
        *mains: Main,
        arguments: Sequence[str] = (),
        rights: Rights = TRUSTED,
        policy: str = "cohort",
        mail: Sequence[str] = (),
    ) -> list[Any]:
        """Results of programs that run at the same time; where one has failed, its error is in
        ``errors``."""
        passes, tokens = self.model.passes, self.model.tokens
        values = asyncio.run(self._run(mains, arguments, rights, policy, mail))
        self.passes, self.tokens = self.model.passes - passes, self.model.tokens - tokens
        return values

    def one(self: Programs | EnginePrograms, main: Main, *arguments: str, **more: Any) -> Any:
        """The result of one program, which must not fail."""
        [value] = self.run(main, arguments=arguments, **more)
        assert self.errors == [""], self.errors[0]
        return value

    async def _run(
        self, mains: Sequence[Main], arguments: Sequence[str], rights: Rights, policy: str,
        mail: Sequence[str],
    ) -> list[Any]:  # fmt: skip
        self.controller = Controller(Served(self.model, self.info, self.tokenizer), policy)
        self.sent = [[] for _ in mains]
        self.logs: list[str] = []
        ends = [asyncio.get_running_loop().create_future() for _ in mains]
        sessions = []
        for main, sent, end in zip(mains, self.sent, ends):
            follower = RunFollower(sent.append, self.logs.append, end.set_result)
            session = self.controller.open(arguments, rights, ProgramLimits(), follower)
            InferletRun(self.controller, session, self._driver(main, session)).start()
            for message in mail:
                session.mail_in(message)
            sessions.append(session)
        self.errors = await asyncio.wait_for(asyncio.gather(*ends), 60)
        await asyncio.sleep(0)
        assert self.controller.runnable == 0
        assert not self.controller.dispatcher.queues
        until = time.monotonic() + 10
        while self.model.spaces and time.monotonic() < until:  # the end of the last call is handled
            await asyncio.sleep(0.001)
        assert not self.model.spaces
        return [session.parts.outcome.value for session in sessions]

    def _driver(self, main: Main, session: InferletSession) -> Driver:
        return TrustedDriver(main, session.parts.facts)


class EnginePrograms:
    """Runs of programs on an engine, with the attributes of ``Programs``."""

    def __init__(self, **settings: Any) -> None:
        self.engine = sgl.Engine(**settings)
        self.info = self.engine._engine.info
        self.passes = self.tokens = 0
        self.errors: list[str] = []
        self.sent: list[list[Any]] = []

    def run(
        self,
        *mains: Main,
        arguments: Sequence[str] = (),
        rights: Rights = TRUSTED,
        policy: str = "cohort",
        mail: Sequence[str] = (),
    ) -> list[Any]:
        before = self.stats()
        programs = [
            self.engine.inferlet(main, *arguments, rights=rights, policy=policy) for main in mains
        ]
        for program in programs:
            for message in mail:
                program.send(message)
        values: list[Any] = []
        self.errors = []
        for program in programs:
            try:
                values.append(program.result(60))
                self.errors.append("")
            except InferletError as error:
                values.append(None)
                self.errors.append(str(error))
        self.sent = [program.messages for program in programs]
        after = self.stats()
        self.passes = after["passes"] - before["passes"]
        self.tokens = after["computed_tokens"] - before["computed_tokens"]
        assert after["failed_audits"] == after["failed_passes"] == after["bad_verbs"] == 0
        assert after.get("spaces", 0) == 0
        return values

    one = Programs.one

    def stats(self) -> dict[str, int]:
        found: dict[str, int] = self.engine.get_server_info()["stats"]
        return found
