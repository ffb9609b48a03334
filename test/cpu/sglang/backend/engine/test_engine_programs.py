"""Programs that an engine in this process runs whole make the states of runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from helpers.random_programs import made, random_program
from helpers.tiny_model import write_config
from helpers.toy_tokenizer import byte_level
from sglang.errors import ProgramError
from sglang.on_server.server_session import LOOP, ServerSession

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sgl.Engine]:
    """Random weights: no text is right by luck."""
    directory = tmp_path_factory.mktemp("model")
    byte_level(directory)
    write_config(Path(directory), vocab_size=512)
    settings: dict[str, Any] = {
        "load_format": "dummy",
        "dtype": "float32",
        "device": "cpu",
        "threads": 1,
    }
    with sgl.Engine(
        model_path=str(directory), max_total_tokens=20000, context_length=512,
        log_level="warning", **settings,
    ) as engine:  # fmt: skip
        yield engine


@sgl.function
def answer(s, question, tokens=24):
    s += "Q: " + question + "\nA:"
    s += sgl.gen("answer", max_tokens=tokens, temperature=0, ignore_eos=True)


@pytest.mark.parametrize("seeded", [False, True])
def test_random_program_makes_the_same_everywhere(engine: sgl.Engine, seeded: bool) -> None:
    for seed in range(20, 26):
        program = random_program(seed, seeded)
        plain = made(program.run("Where?", backend=engine))
        assert made(program.run("Where?", backend=engine, on="server")) == plain, seed


def test_futures_and_streams_are_those_of_a_server(engine: sgl.Engine) -> None:
    first = answer.submit("why", backend=engine, stream=True)
    second = answer.submit(first["answer"])
    assert "".join(first["answer"]) == answer.run("why", backend=engine)["answer"]
    text = answer.run(first["answer"].get(), backend=engine)["answer"]
    assert second["answer"].get("latency", timeout=60) == text


def test_cancel_and_errors_reach_the_reader(engine: sgl.Engine) -> None:
    submitted = answer.submit("why", 400, backend=engine)
    submitted.cancel()
    with pytest.raises(sgl.SglangError):
        submitted["answer"].get(timeout=60)
    long = answer.submit("why " * 600, backend=engine)
    with pytest.raises(ProgramError, match="context length is 512") as caught:
        long["answer"].get(timeout=60)
    assert caught.value.filename == __file__
    assert answer.run("how", backend=engine, on="server")["answer"]


def test_session_ends_with_its_values(engine: sgl.Engine) -> None:
    session = ServerSession(engine)
    submitted = answer.submit("why", backend=engine, session=session)
    assert submitted["answer"].get(timeout=60)
    LOOP.run(session.close)
    with pytest.raises(sgl.SglangError, match=r"session|expired"):
        answer.submit(submitted["answer"], session=session)["answer"].get(timeout=60)
