"""Programs as people write them: the same text on the embedded model in process and over HTTP, by
every way of running, and on a mock that is scripted with the model's own answers."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from helpers import scripts_upstream as scripts
from helpers.launched import best_model
from helpers.programs_upstream import CASES, Case
from sglang.backend.base import Choose, Commit
from sglang.run.history import HISTORY
from sglang.srt.entrypoints.http_server import launch_server
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils import kill_process_tree
from sglang.test import test_utils
from sglang.utils import free_port, wait_for_server

pytest.importorskip("torch")
SETTINGS: dict[str, Any] = {
    "max_total_tokens": 32768,
    "log_level": "warning",
    "device": "cpu",
    "threads": 1,
}


@pytest.fixture(scope="module")
def engine() -> Iterator[sgl.Engine]:
    with sgl.Engine(**SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="module")
def runtime() -> Iterator[sgl.Runtime]:
    with sgl.Runtime(**SETTINGS) as runtime:
        yield runtime


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    yield CASES[request.param]
    sgl.set_default_backend(None)


def outcome(state: sgl.ProgramState) -> tuple[Any, ...]:
    return state.text(), state.ret_value, {n: state[n] for n in state._executor.stream.variables}


def in_all_ways(case: Case, backend: Any) -> Iterator[sgl.ProgramState]:
    sgl.set_default_backend(backend)
    arguments = {**case.arguments, "temperature": 0.0}
    yield case.program.run(**arguments)
    streamed = case.program.run(**arguments, stream=True)
    assert "".join(streamed.text_iter()) == streamed.text()
    yield streamed
    yield asyncio.run(case.program.arun(**arguments))
    yield from case.program.run_batch([case.arguments] * 2, temperature=0.0)
    if not case.refused:
        yield case.program.compile().run(**arguments)


def test_the_same_text_everywhere(case: Case, engine: sgl.Engine, runtime: sgl.Runtime) -> None:
    HISTORY.clear()
    sgl.set_default_backend(engine)
    expected = outcome(case.program.run(**case.arguments, temperature=0.0))
    said = {
        entry.call.prompt.text: entry.answer.text
        if isinstance(entry.call, Choose)
        else entry.answer[0].text
        for entry in HISTORY.last(100)
        if not isinstance(entry.call, Commit)
    }
    mock = sgl.Mock(lambda prompt, params: said[prompt.text])
    assert said
    for backend in (engine, runtime, mock):
        for state in in_all_ways(case, backend):
            assert outcome(state) == expected


# -- whole scripts, as upstream's examples are ----------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return (best_model(tmp_path_factory.mktemp("model")) or ["", "sglang-tiny"])[1]


@pytest.fixture(autouse=True)
def no_default_backend() -> Iterator[None]:
    yield
    sgl.set_default_backend(None)


SCRIPTS: dict[Callable[[str], None], str] = {
    scripts.complete: r"answer: .+\n( .+\n?){3}.*cached: True\nflushed: True\n",
    scripts.readme: r"(calculator|dictionary) True\nTrue\n\d+\.\d+\.\d+\.\d+\n",
    scripts.streaming: r"True\nTrue\n",
    scripts.choices_logprob: r"(True\n){4}",
    scripts.parallel_sample: r"((calculator|browser)\n){5}",
    scripts.json_decode: r"True\n(sword|bow)\n(True\n){4}",
    scripts.min_tokens: r"True\n",
    scripts.multi_stage_fork: r"True\n",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_script_on_a_server(
    script: Callable[[str], None], runtime: sgl.Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    script(runtime.url)
    assert re.fullmatch(SCRIPTS[script], capsys.readouterr().out, re.DOTALL)


@pytest.mark.parametrize("script", [scripts.rag, scripts.templates])
def test_a_script_on_a_runtime(
    script: Callable[[sgl.Runtime], None], runtime: sgl.Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    script(runtime)
    assert capsys.readouterr().out == "True\n"


def test_the_quick_start_with_a_runtime_of_its_own(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts.chat(model)
    out = capsys.readouterr().out
    assert out.count("assistant : ") == 2
    assert out.count("What is 17 + 25?") == 2, "messages, and the stream"
    assert out.endswith("assistant\nassistant\n")


def test_the_offline_engine(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    scripts.offline(model)
    out = capsys.readouterr().out
    assert out.count("Generated text: ") == 4
    assert out.endswith("True\nTrue\nTrue\n")


def test_the_offline_engine_in_an_event_loop(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts.offline_async(["--model-path", model, "--max-total-tokens", "8192", "--device", "cpu"])
    assert capsys.readouterr().out.count("Generated text: ") == 32


def test_a_notebook(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openai")
    scripts.notebook(model)
    assert re.fullmatch(r"Response: .+\nTrue\n", capsys.readouterr().out, re.DOTALL)


def test_states_in_a_file(
    runtime: sgl.Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripts.dumped(runtime.url, str(tmp_path / "states.txt"))
    assert capsys.readouterr().out == "2\n"


def test_a_server_by_its_settings(model: str) -> None:
    settings = ServerArgs(model, **SETTINGS)
    settings.port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=launch_server, args=(settings,))
    process.start()
    try:
        wait_for_server(settings.url(), timeout=240)
        assert scripts.few_shot.run(
            question="What is 4 + 4?", backend=sgl.RuntimeEndpoint(settings.url())
        )["answer"]
    finally:
        process.terminate()
        process.join(60)
    assert process.exitcode == 0


def test_a_server_that_cannot_start_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with pytest.raises(SystemExit) as end:
            launch_server(ServerArgs(str(tmp_path / "none"), port=free_port()))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert end.value.code == 1
    settings = ServerArgs()
    settings.page_size = 0
    with pytest.raises(SystemExit):
        launch_server(settings)
    assert "--page-size is 0" in capsys.readouterr().err
    monkeypatch.setenv("SGLANG_API_KEY", " ")  # read from the environment if no key is given
    with pytest.raises(SystemExit):
        launch_server(ServerArgs())
    assert "SGLANG_API_KEY is set and is ' '" in capsys.readouterr().err


def test_the_helpers_of_tests(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    others = ["--max-total-tokens", 8192, "--threads", 1, "--log-level", "warning"]
    process = test_utils.popen_launch_server(
        model, url, timeout=240, other_args=others, device="cpu", api_key=None
    )
    try:
        words = ["bench", "--backend", "srt-raw", "--port", str(port)]
        monkeypatch.setattr(sys, "argv", words)
        args = test_utils.add_common_other_args_and_parse(scripts.argparse.ArgumentParser())
        call = test_utils.get_call_generate(args)
        text = call("Q: What is 4 + 4?\nA:", temperature=0, max_tokens=8, stop="\n")
        assert len(call("Q: What is 4 + 4?\nA:", temperature=1.0, max_tokens=8, n=2)) == 2
        args.backend = "vllm"
        call = test_utils.get_call_generate(args)
        assert call("Q: What is 4 + 4?\nA:", temperature=0, max_tokens=8, stop="\n") == text
        with pytest.raises(RuntimeError, match="answered 400"):
            call("a", temperature=-1, max_tokens=8)
        args.backend = "srt"
        sgl.set_default_backend(test_utils.select_sglang_backend(args))
        prompt = sgl.function(lambda s: s.__iadd__("Q: " + sgl.gen("x", max_tokens=3)))
        assert prompt.run()["x"]
    finally:
        kill_process_tree(process.pid)
        assert process.wait(60) == -9
    with pytest.raises(RuntimeError, match="ended with status"):
        test_utils.popen_launch_server(model, url, timeout=240, other_args=["--page-size", "0"])
