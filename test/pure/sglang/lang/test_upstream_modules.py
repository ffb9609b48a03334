"""Modules and helpers by the names that programs written for upstream import."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sglang as sgl
from helpers.fake_endpoint import FakeEndpoint
from helpers.paths import PYTHON
from sglang import ServerArgs, utils
from sglang.lang.chat_template import get_chat_template, register_chat_template
from sglang.srt.config import Config
from sglang.srt.utils import is_port_available, kill_process_tree
from sglang.test import test_utils as helpers

# A module, the names that it has, and the object that one of them is.
MODULES = {
    "sglang.global_config": ("global_config", sgl.global_config),
    "sglang.lang.api": ("gen select function user assistant image Runtime Engine", None),
    "sglang.lang.backend.anthropic": ("Anthropic", sgl.Anthropic),
    "sglang.lang.backend.base_backend": ("BaseBackend", None),
    "sglang.lang.backend.litellm": ("LiteLLM", sgl.LiteLLM),
    "sglang.lang.backend.openai": ("OpenAI", sgl.OpenAI),
    "sglang.lang.backend.runtime_endpoint": ("RuntimeEndpoint Runtime", sgl.RuntimeEndpoint),
    "sglang.lang.chat_template": (
        "get_chat_template get_chat_template_by_model_path register_chat_template", None,
    ),
    "sglang.lang.choices": (
        "token_length_normalized greedy_token_selection ChoicesSamplingMethod",
        sgl.token_length_normalized,
    ),
    "sglang.lang.interpreter": ("ProgramState StreamExecutor ProgramStateGroup", sgl.ProgramState),
    "sglang.lang.ir": ("SglFunction SglGen SglExpr SglExprList SglSelect", sgl.SglFunction),
    "sglang.srt.constrained": ("build_regex_from_object", None),
    "sglang.srt.constrained.outlines_backend": ("build_regex_from_object", None),
    "sglang.srt.entrypoints.engine": ("Engine", sgl.Engine),
    "sglang.srt.entrypoints.http_server": ("launch_server", None),
    "sglang.srt.hf_transformers_utils": ("get_tokenizer", None),
    "sglang.srt.server": ("Engine Runtime launch_server", sgl.Engine),
    "sglang.srt.server_args": ("ServerArgs prepare_server_args", sgl.ServerArgs),
    "sglang.srt.utils": ("kill_process_tree is_port_available", None),
    "sglang.srt.utils.hf_transformers_utils": ("get_tokenizer", None),
    "sglang.test.doc_patch": ("launch_server_cmd", utils.launch_server_cmd),
    "sglang.utils": ("print_highlight terminate_process wait_for_server read_jsonl", None),
}  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_its_names(module: str) -> None:
    names, first = MODULES[module]
    found = importlib.import_module(module)
    for name in names.split():
        assert getattr(found, name) is not None
        assert name in found.__all__
    if first is not None:
        assert getattr(found, names.split()[0]) is first


@pytest.mark.slow
def test_no_module_imports_what_computes() -> None:
    heavy = ["torch", "numpy", "zmq", "tokenizers", "uvicorn", "openai", "anthropic", "httpx"]
    code = f"import sys, {', '.join(MODULES)}\n"
    code += f"print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": PYTHON}, capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


# -- ServerArgs -----------------------------------------------------------------------------------


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-prompts", type=int, default=3)
    ServerArgs.add_cli_args(parser)
    return parser.parse_args(words)


def test_server_args_are_the_settings() -> None:
    args = ServerArgs("a/model", page_size=16, api_key="secret")
    assert dataclasses.is_dataclass(args)
    assert dataclasses.asdict(args) == Config.of(**args.chosen()).settings()
    assert {f.name for f in dataclasses.fields(ServerArgs)} == set(Config().settings())
    assert args.chosen() == {"model_path": "a/model", "page_size": 16, "api_key": "secret"}
    assert repr(args) == "ServerArgs(model_path='a/model', page_size=16, api_key='***')"
    assert pickle.loads(pickle.dumps(args)) == args
    assert dataclasses.replace(args, page_size=1).page_size == 1


def test_server_args_of_a_command_line() -> None:
    args = parsed("--model-path", "a/model", "--page-size", "16", "--lora-paths", "x=y")
    found = ServerArgs.from_cli_args(args)
    assert args.num_prompts == 3
    assert found == ServerArgs(model_path="a/model", page_size=16, lora_paths={"x": "y"})
    assert ServerArgs.from_cli_args(parsed()) == ServerArgs()


def test_server_args_refuse_what_the_server_does() -> None:
    with pytest.raises(TypeError, match="did you mean 'page_size'"):
        ServerArgs(pagesize=16)
    with pytest.raises(ValueError, match="--page-size is 0; it must be at least 1"):
        ServerArgs.from_cli_args(parsed("--page-size", "0"))


def test_a_changed_field_counts() -> None:
    args = ServerArgs(page_size=16)
    args.port, args.page_size = 31000, 1
    assert args.chosen() == {"port": 31000}


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "http://127.0.0.1:30000"),
        ({"host": "0.0.0.0", "port": 1}, "http://127.0.0.1:1"),
        ({"host": "::1", "ssl_certfile": "c"}, "https://[::1]:30000"),
    ],
)
def test_server_args_know_the_address(settings: dict[str, Any], url: str) -> None:
    assert ServerArgs(**settings).url() == url


def test_prepared_server_args_have_the_key_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sglang.srt.server_args import prepare_server_args

    monkeypatch.setenv("SGLANG_API_KEY", "secret")
    assert prepare_server_args(["--port", "7"]).chosen() == {"port": 7, "api_key": "secret"}
    with pytest.raises(SystemExit):
        prepare_server_args(["--page-size", "0"])
    assert "--page-size is 0" in capsys.readouterr().err


# -- sglang.utils ---------------------------------------------------------------------------------


def test_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('# a comment\n{"a": 1}\n\n[2]\n', encoding="utf-8")
    assert list(utils.read_jsonl(str(path))) == [{"a": 1}, [2]]


def test_states_are_dumped(tmp_path: Path) -> None:
    program = sgl.function(lambda s: s.__iadd__("Hello " + sgl.gen("x")))
    states = [program.run(backend=sgl.Mock("world")), "a text", 3]
    path = tmp_path / "states.txt"
    utils.dump_state_text(str(path), states)
    text = path.read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line and "=" not in line] == [
        "Hello world", "a text", "3",
    ]  # fmt: skip


def test_a_file_is_fetched_once(tmp_path: Path) -> None:
    source, copy = tmp_path / "source.txt", tmp_path / "copy.txt"
    source.write_text("first")
    assert utils.download_and_cache_file(source.as_uri(), str(copy)) == str(copy)
    source.write_text("second")
    utils.download_and_cache_file(source.as_uri(), str(copy))
    assert copy.read_text() == "first"
    with pytest.raises(OSError):
        utils.download_and_cache_file((tmp_path / "none").as_uri(), str(tmp_path / "other"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.txt", "source.txt"]


@pytest.mark.parametrize(
    ("before", "chunk", "rest"),
    [("", "a", "a"), ("Hello wo", "world", "rld"), ("aa", "aab", "b"), ("x", "y", "y")],
)
def test_overlaps_are_trimmed(before: str, chunk: str, rest: str) -> None:
    assert utils.trim_overlap(before, chunk) == rest


@pytest.mark.slow
def test_a_command_is_started_without_a_shell(tmp_path: Path) -> None:
    code = "import os, sys; open(sys.argv[1], 'w').write(os.environ['A'] + sys.argv[2])"
    out = tmp_path / "out $HOME"
    process = utils.execute_shell_command(f'A=1 python -c "{code}" \\\n "{out}" "b c"')
    assert process.wait(60) == 0
    assert out.read_text() == "1b c"
    with pytest.raises(ValueError, match="names no program"):
        utils.execute_shell_command("A=1")


@pytest.mark.slow
def test_a_server_command_gets_a_port() -> None:
    process, port = utils.launch_server_cmd('python -c "import sys; sys.exit(int(sys.argv[2]))"')
    assert process.wait(60) == port % 256
    assert is_port_available(port)
    with pytest.raises(RuntimeError, match=f"ended with status {port % 256}"):
        utils.wait_for_server(f"http://127.0.0.1:{port}", process=process)
    with pytest.raises(TimeoutError, match="did not answer in 0 s"):
        utils.wait_for_server(f"http://127.0.0.1:{port}", timeout=0)


@pytest.mark.slow
def test_a_process_is_killed_with_its_children() -> None:
    code = "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True)"
    process = subprocess.Popen([sys.executable, "-c", code + "; p.wait()"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    kill_process_tree(process.pid)
    assert process.wait(60) == -9
    kill_process_tree(process.pid)
    while runs(child):  # until the kernel has seen to it
        time.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# -- sglang.test.test_utils -----------------------------------------------------------------------


def test_flags_choose_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeEndpoint() as server:
        host, _, port = server.url.rpartition(":")
        monkeypatch.setattr(sys, "argv", ["bench", "--host", host, "--port", port])
        args = helpers.add_common_sglang_args_and_parse(argparse.ArgumentParser())
        assert (args.parallel, args.backend, args.result_file) == (64, "srt", "result.jsonl")
        backend = helpers.select_sglang_backend(args)
    assert isinstance(backend, sgl.RuntimeEndpoint)
    assert backend.get_model_name() == "fake"
    args.backend = "gpt-4"
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert isinstance(helpers.select_sglang_backend(args), sgl.OpenAI)
    args.backend = "palm"
    with pytest.raises(ValueError, match="backend is 'palm'; use srt"):
        helpers.select_sglang_backend(args)


def test_other_backends_have_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--backend", "vllm"])
    args = helpers.add_common_other_args_and_parse(argparse.ArgumentParser())
    assert args.port == 8000
    args.backend = "guidance"
    with pytest.raises(ValueError, match="backend is 'guidance'; use one of srt-raw, vllm"):
        helpers.get_call_generate(args)


def test_chat_templates_can_be_registered() -> None:
    from sglang.ir.chat_template import TEMPLATES

    own = dataclasses.replace(get_chat_template("chatml"), name="own")
    register_chat_template(own)
    try:
        assert get_chat_template("own") is own
    finally:
        del TEMPLATES["own"]


def test_a_pattern_of_a_schema() -> None:
    pytest.importorskip("outlines_core")
    from pydantic import BaseModel
    from sglang.srt.constrained.outlines_backend import build_regex_from_object

    class Boat(BaseModel):
        name: str
        masts: int

    pattern = build_regex_from_object(Boat)
    assert re.fullmatch(pattern, '{"name": "Vela", "masts": 2}')
    assert not re.fullmatch(pattern, '{"name": "Vela"}')
    assert build_regex_from_object(json.dumps(Boat.model_json_schema())) == pattern
    assert re.fullmatch(build_regex_from_object(Boat, ""), '{"name":"Vela","masts":2}')


def test_the_tokenizer_has_lists() -> None:
    pytest.importorskip("tokenizers")
    from sglang.srt.hf_transformers_utils import get_tokenizer

    tokenizer = get_tokenizer("sglang-tiny", tokenizer_mode="auto", trust_remote_code=False)
    ids = tokenizer.encode("Hello world")
    assert json.loads(json.dumps(ids)) == ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Hello world"
    messages = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text.endswith("assistant\n")
    assert tokenizer.decode(tokenizer.apply_chat_template(messages)) in text
    assert len(tokenizer) == tokenizer.vocab_size > max(ids)
    assert tokenizer.eos_token_id in tokenizer.eos_ids


@pytest.mark.slow
def test_settings_are_the_same_however_they_are_reached() -> None:
    """An import of the submodule sets an attribute of the package."""
    code = (
        "import sglang as sgl; before = sgl.global_config; import sglang.global_config;"
        "from sglang.global_config import global_config as again;"
        "assert before is sgl.global_config is again; sgl.global_config.max_threads = 7;"
        "assert before.max_threads == 7"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
