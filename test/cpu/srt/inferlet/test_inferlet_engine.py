"""Programs on an engine: leases, messages, ends, the command, and the ways of the benchmark."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.inferlet_runs import EnginePrograms
from helpers.waiting import until
from sglang.backend.engine.inferlets import InferletError
from sglang.inferlet import CallError, Context, Nucleus
from sglang.srt.cli import main as cli
from sglang.srt.tokenizer.tokenizer import EMBEDDED

from benchmark.inferlets.__main__ import by_programs, completed, measure, prompts_of
from benchmark.inferlets.decoding import best, distributions, lease, sampled

pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is missing"
)


@pytest.fixture(scope="module")
def programs() -> Iterator[EnginePrograms]:
    found = EnginePrograms(dtype="float32", max_total_tokens=8192)
    yield found
    found.engine.shutdown()


def test_leases_are_ordinary_completions(programs: EnginePrograms) -> None:
    prompt, params = "The weather today", {"temperature": 0, "max_new_tokens": 8}

    async def main(ctx: Any) -> Any:
        tokens = await ctx.tokenize(prompt, special=True)
        return await asyncio.gather(
            ctx.generate(prompt, logprobs=True, **params),
            ctx.generate(tokens, **params),
            ctx.generate("pick:", regex="(one|two)", **params),
            ctx.select("Two and two is", [" four", " seven"]),
        )

    text, by_tokens, picked, choice = programs.one(main)
    want = programs.engine.generate(prompt, params, return_logprob=True)
    assert text["text"] == by_tokens["text"] == want["text"]
    assert text["tokens"] == want["output_ids"]
    pairs = want["meta_info"]["output_token_logprobs"]
    assert text["logprobs"] == pytest.approx([one[0] for one in pairs], abs=1e-4)
    assert picked["text"] in ("one", "two")
    assert choice["text"] == [" four", " seven"][choice["index"]]
    assert len(choice["logprobs"]) == 2


def test_refused_lease_names_its_call(programs: EnginePrograms) -> None:
    async def main(ctx: Any) -> Any:
        try:
            await ctx.generate("x", temprature=1)
        except CallError as error:
            return error.code, str(error)

    code, message = programs.one(main)
    assert code == "invalid_value"
    assert message.startswith("call 1, generate: ")
    assert "temperature" in message


def test_every_way_of_decoding_gives_the_built_in_texts(programs: EnginePrograms) -> None:
    """Programs share passes, on a busy machine at least once in ten runs. Without sharing there
    are 24: one for each token of a program."""
    want = completed(programs.engine, prompts_of(4), 6)
    for main in (lease, sampled, distributions, best):
        tries = (measure(programs.engine, by_programs(main), 4, 6, want) for _ in range(10))
        assert any(found.passes <= 20 for found in tries), main.__name__


def test_messages_go_both_ways(programs: EnginePrograms) -> None:
    async def main(ctx: Any) -> Any:
        text = await ctx.receive()
        ctx.send(text.upper())
        ctx.send_blob(await ctx.receive_blob())
        ctx.log("done")

    program = programs.engine.inferlet(main)
    program.send("hello")
    assert program.receive(0, 30) == "HELLO"
    program.send(b"\0\1")
    assert program.receive(1, 30) == b"\0\1"
    assert program.result(30) is None
    assert program.lines == ["done"]
    with pytest.raises(IndexError, match="sent 2 messages"):
        program.receive(2, 30)


def test_stopped_program_gives_its_pages_back(programs: EnginePrograms) -> None:
    async def main(ctx: Any) -> Any:
        text = await Context(ctx).fill("The weather today")
        await text.next_dist()
        ctx.send("ready")
        await ctx.receive()

    program = programs.engine.inferlet(main)
    assert program.receive(0, 30) == "ready"
    assert programs.stats()["spaces"] == 1
    program.stop()
    with pytest.raises(InferletError, match="it was stopped"):
        program.result(30)
    until(lambda: programs.stats()["spaces"] == 0)


def test_program_samples_by_itself(programs: EnginePrograms) -> None:
    async def main(ctx: Any) -> Any:
        text = await Context(ctx).fill("The weather today")
        forks = await text.fork(3)
        jobs = [
            fork.generate_until(6, sampler=Nucleus(top_p=0.9, seed=seed))
            for fork, seed in zip(forks, (1, 1, 2))
        ]
        return await asyncio.gather(*jobs)

    first, second, third = programs.one(main)
    assert first == second != third


PROGRAM = """
async def main(ctx):
    ctx.send("hello")
    ctx.log("a line")
    if ctx.get_arg() == ["fail"]:
        raise RuntimeError("on purpose")
    return {"arguments": ctx.get_arg()}
"""


def test_command_prints_messages_and_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    small = ["--setting", "max_total_tokens=1024"]
    assert cli(["inferlet", "run", *small, str(path), "--", "a", "--b"]) == 0
    shown = capsys.readouterr()
    assert shown.out == 'hello\n{"arguments": ["a", "--b"]}\n'
    assert "a line\n" in shown.err
    assert cli(["inferlet", "run", *small, str(path), "fail"]) == 1
    assert "RuntimeError: on purpose" in capsys.readouterr().err
    path.write_text("x = 1")
    assert cli(["inferlet", "run", str(path)]) == 1
    assert "has no main" in capsys.readouterr().err


def test_library_needs_the_standard_library_alone() -> None:
    code = (
        "import sys; import sglang.inferlet; "
        "print([m for m in ('msgspec', 'torch', 'numpy', 'pydantic', 'h11') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
