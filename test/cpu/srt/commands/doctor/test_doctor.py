"""``sglang doctor``: what it finds, of a machine that is well and of one that is not."""

from __future__ import annotations

import http.server
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import threading
from importlib.metadata import packages_distributions
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.http_server import serve_text
from helpers.paths import PYTHON, ROOT
from helpers.tiny_model import write_config
from helpers.toy_tokenizer import byte_level
from sglang.srt import cli
from sglang.srt.commands.doctor import machine_checks as machine
from sglang.srt.commands.doctor import prebuild
from sglang.srt.commands.doctor.doctor_command import model
from sglang.srt.commands.doctor.finding import FAIL, OK, WARN, CheckFinding, examine
from sglang.srt.config import Config
from sglang.srt.core.version import __version__
from sglang.srt.tokenizer.tokenizer import EMBEDDED

NEEDS_MODEL = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the embedded model is missing"
)


def doctor(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Any]]:
    """Exit code, and the findings by check."""
    code = cli.main(["doctor", "--json", *flags])
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] == (code == 0)
    return code, {found["check"]: found for found in report["findings"]}


def states(findings: list[CheckFinding]) -> dict[str, str]:
    return {finding.check: finding.state for finding in findings}


def test_the_packages_of_the_extra_are_looked_for() -> None:
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extra = declared.split("\ncpu = [")[1].split("\n]")[0]
    wanted = {name.replace("_", "-") for name in re.findall(r'"([\w-]+)>=', extra)}
    modules = packages_distributions()
    found = {
        dist.replace("_", "-").lower() for name in machine.NEEDED for dist in modules.get(name, ())
    }
    assert len(wanted) > 10
    assert wanted <= found


@NEEDS_MODEL
def test_a_machine_that_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = doctor(capsys, "--port", "0")
    assert code == 0, found
    for check in ("python", "packages", "device", "model", "config", "weights", "memory",
                  "tokenizer", "chat template", "port", "temporary files"):  # fmt: skip
        assert found[check]["state"] == OK, found[check]
    assert "3.1 M parameters" in found["memory"]["found"]
    assert "kernels: " in found["device"]["found"]
    assert cli.main(["doctor", "--port", "0"]) == 0
    table = capsys.readouterr().out
    assert table.splitlines()[-1].endswith("0 fail")
    assert all(line.isprintable() for line in table.splitlines())


def test_a_port_that_is_taken_is_named_with_its_owner(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        code, found = doctor(capsys, "--port", port)
    assert code == 1
    assert found["port"]["state"] == FAIL
    assert port in found["port"]["found"]
    assert f"process {os.getpid()}" in found["port"]["found"]
    assert "--port" in found["port"]["fix"]


def test_an_open_door_is_a_warning() -> None:
    found = states(list(machine.port(Config.of(host="0.0.0.0", port=0))))
    assert found == {"port": OK, "access": WARN}
    assert "access" not in states(
        list(machine.port(Config.of(host="0.0.0.0", port=0, api_key="k")))
    )


def test_a_key_of_the_environment_shuts_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--host", "0.0.0.0", "--port", "0")
    assert doctor(capsys, *flags)[1]["access"]["state"] == WARN
    monkeypatch.setenv("SGLANG_API_KEY", "k")
    assert "access" not in doctor(capsys, *flags)[1]


def test_files_that_a_server_would_refuse_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('[{"name": "a", "key": "k"}]')
    flags = ("--port", "0", "--api-keys-file", str(keys))
    assert doctor(capsys, *flags)[1]["keys, TLS"]["state"] == OK
    keys.write_text('[{"name": "a"}]')
    code, found = doctor(capsys, *flags)
    assert (code, found["keys, TLS"]["state"]) == (1, FAIL)
    assert str(keys) in found["keys, TLS"]["found"]
    code, found = doctor(capsys, "--port", "0", "--ssl-keyfile", "key.pem")
    assert (code, found["keys, TLS"]["state"]) == (1, FAIL)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The embedded model, to be spoilt."""
    return Path(shutil.copytree(EMBEDDED, tmp_path / "model"))


def spoil(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, **changes}))


def of(directory: Path, **settings: Any) -> dict[str, CheckFinding]:
    findings = model(Config.of(model_path=str(directory), **settings))
    return {finding.check: finding for finding in findings}


@NEEDS_MODEL
def test_what_is_wrong_with_a_model_is_said(copy: Path) -> None:
    assert set(states(list(of(copy).values())).values()) == {OK}
    config = copy / "config.json"
    whole = config.read_text()
    spoil(config, architectures=["NoSuchModel"])
    assert of(copy)["config"].state == FAIL
    assert "NoSuchModel" in of(copy)["config"].found
    config.write_text(whole)
    spoil(config, num_hidden_layers=99)
    assert of(copy)["weights"].state == FAIL
    assert of(copy, load_format="dummy")["weights"].state == OK
    config.write_text("{")
    assert of(copy)["config"].state == FAIL
    config.write_text(whole)
    with open(copy / "model.safetensors", "r+b") as file:
        file.truncate(1000)
    assert of(copy)["weights"].state == FAIL
    (copy / "model.safetensors").unlink()
    assert "no safetensors" in of(copy)["weights"].found
    (copy / "tokenizer.json").write_text("[]")
    assert of(copy)["tokenizer"].state == FAIL
    assert of(copy / "none")["model"].state == FAIL


@NEEDS_MODEL
def test_memory_that_is_not_there_is_said(copy: Path) -> None:
    assert of(copy, max_total_tokens=1 << 30)["memory"].state == FAIL
    assert "lower what the message names" in of(copy, max_total_tokens=1 << 30)["memory"].fix
    assert of(copy, max_total_tokens=100)["memory"].state == WARN
    assert of(copy, context_length=1 << 20)["memory"].state == FAIL


@NEEDS_MODEL
def test_ranks_that_cannot_be_are_said(copy: Path) -> None:
    good = of(copy, tp_size=2, pp_size=2, device="cpu")["ranks"]
    assert good.state == OK
    assert "2 stages of 2 ranks, 4 on this machine" in good.found
    assert "which 3 tensor-parallel ranks" in of(copy, tp_size=3, device="cpu")["ranks"].found
    assert "--pp-size is 9 and the model has" in of(copy, pp_size=9, device="cpu")["ranks"].found


@NEEDS_MODEL
def test_a_tokenizer_of_another_model_is_said(copy: Path, tmp_path: Path) -> None:
    small = byte_level(tmp_path / "small")
    assert of(copy, tokenizer_path=str(small))["tokenizer"].state == OK
    spoil(copy / "config.json", vocab_size=100)
    assert of(copy, tokenizer_path=str(small))["tokenizer"].state == FAIL


TEMPLATES = {
    "{{ messages[0].content }}{% if tools %}{{ tools }}<tool_call>{% endif %}": (
        OK, "knows tools, calls in the format Hermes, no reasoning"),
    "{{ messages[0].content }}{% if true %}<think></think>{% endif %}": (
        OK, "reasoning between <think> and </think>"),
    "hello": (FAIL, "drops what the user says"),
    "{{ raise_exception('never') }}": (FAIL, "never"),
    "{% if %}": (FAIL, "not valid jinja2"),
}  # fmt: skip


@NEEDS_MODEL
@pytest.mark.parametrize("source", TEMPLATES)
def test_a_chat_template_is_tried(source: str, copy: Path, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text(source)
    found, (state, text) = of(copy, chat_template=str(path)), TEMPLATES[source]
    one = found.get("chat template", found["tokenizer"])
    assert (one.state, text in one.found) == (state, True), one


def test_a_hub_model_is_not_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def connect(*_: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(socket.socket, "connect", connect)
    (found,) = model(Config.of(model_path="somebody/no-such-model"))
    assert (found.check, found.state) == ("model", WARN)


def test_a_check_that_breaks_is_a_finding() -> None:
    def broken() -> list[CheckFinding]:
        raise RuntimeError("line one\nline two")

    assert examine([("it", broken)]) == [CheckFinding("it", FAIL, "RuntimeError: line one")]


def test_clients_that_were_never_tried_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"openai": "2.3.4", "anthropic": "99.0", "litellm": None, "dspy": "odd"}
    monkeypatch.setattr(machine, "_version", lambda name: versions.get(name))
    found = {finding.found.split()[0]: finding.state for finding in machine.clients()}
    assert (found["openai"], found["anthropic"], found["dspy"]) == (OK, WARN, WARN)
    assert "litellm" in list(machine.clients())[-1].found


def test_a_running_server_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_text(tmp_path, Config.of(api_key="the-key")) as served:
        before = served.client.golden()
        code, found = doctor(capsys, "--url", f"{served.url}/v1", "--api-key", "the-key")
        assert code == 0, found
        assert {check: one["state"] for check, one in found.items()} == dict.fromkeys(
            ("health", "request id", "keys", "models", "completion", "streaming", "metrics"), OK
        )
        code, found = doctor(capsys, "--url", served.url)
        assert code == 1
        assert found["health"]["fix"] == "give --api-key"
        served.state.drain.begun = True
        code, found = doctor(capsys, "--url", served.url, "--api-key", "the-key")
        assert code == 1
        assert "shutting down" in found["health"]["found"]
        served.state.drain.begun = False
        assert served.client.golden() == before


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "http://[", "", "ftp://a/b"])
def test_a_server_that_is_not_there(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    if url:
        code, found = doctor(capsys, "--url", url)
        assert code == 1
        assert all(one["state"] == FAIL for one in found.values())


def test_a_stranger_at_the_url_breaks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    class Odd(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"\x1b[31m<html>{")

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Odd) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        assert cli.main(["doctor", "--url", url]) == 1
        server.shutdown()
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    assert "JSONDecodeError" in out


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, timeout=60,
        env={"PYTHONPATH": str(PYTHON), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip


def test_versions_are_one() -> None:
    project = (PYTHON.parent / "pyproject.toml").read_text()
    language = (PYTHON / "sglang" / "version.py").read_text()
    assert 'version = {attr = "sglang.version.__version__"}' in project
    assert f'__version__ = "{__version__}"' in language
    for words in (("sglang.srt.cli",), ("sglang.launch_server",), ("sglang.srt.cli", "doctor")):
        assert command(*words, "--version").stdout == f"sglang {__version__}\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("sglang.srt.cli", "serve", "--modle-path", "x"), "did you mean --model-path?"),
        (("sglang.launch_server", "--max-runing-requests=3"), "did you mean --max-running-requ"),
        (("sglang.srt.cli", "doctor", "--zzzzzzz"), "unrecognized arguments: --zzzzzzz\n"),
        (("sglang.srt.cli", "doctr"), "invalid choice: 'doctr'"),
    ],
)
def test_an_unknown_flag_is_told_what_it_was_to_be(words: tuple[str, ...], hint: str) -> None:
    done = command(*words)
    assert done.returncode == 2
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


@NEEDS_MODEL
def test_it_is_fast() -> None:
    """Most of it goes to importing torch, whatever that takes here."""
    at = [resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime]
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    at.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)
    done = command("sglang.srt.cli", "doctor", "--port", "0")
    at.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)
    assert done.returncode == 0, done.stdout
    assert at[2] - at[1] < 3 * (at[1] - at[0]), at


def test_clients_said_to_work_are_those_of_the_tests() -> None:
    folder = PYTHON.parent / "test" / "e2e" / "clients" / "requirements"
    text = "\n".join(path.read_text() for path in folder.glob("*.txt"))
    assert set(machine.CLIENTS) <= set(re.findall(r"^[\w-]+", text, re.MULTILINE))


def test_prebuild_needs_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = doctor(capsys, "--prebuild", "--device", "cpu")
    assert code == 1
    assert list(found) == ["prebuild"]
    assert found["prebuild"]["found"] == "there is no GPU to compile for: the device is cpu"
    assert "run it on the machine with the GPU" in found["prebuild"]["fix"]


def test_prebuild_compiles_here(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--prebuild", "--url", "http://127.0.0.1:1"])
    message = "--prebuild compiles on this machine and --url names another; give one."
    assert message in capsys.readouterr().err


class Built:
    """A FlashInfer module that is compiled when it is built."""

    name, is_compiled = "prefill", False


def test_prebuild_says_what_it_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The modules first, then a worker with random weights and its warm-up."""
    from sglang.srt.attention import backend_choice, flashinfer_modules
    from sglang.srt.worker import model_worker

    path = write_config(tmp_path, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    needed: list[flashinfer_modules.ModuleNeeds] = []
    choice = backend_choice.BackendChoice("flashinfer", "the fastest there is")
    monkeypatch.setattr(prebuild, "_gpu", lambda config: CheckFinding("prebuild", OK, "an H100"))
    monkeypatch.setattr(backend_choice, "choose", lambda *arguments: choice)
    monkeypatch.setattr(backend_choice, "takes_fa3", lambda *arguments: True)
    monkeypatch.setattr(
        flashinfer_modules, "specs", lambda needs: needed.append(needs) or [Built(), Built()]
    )
    monkeypatch.setattr(flashinfer_modules, "build", lambda wanted, seen: seen(2) or 61.2)
    workers: list[Config] = []
    made = model_worker.ModelWorker.__init__

    def start(worker: Any, config: Config) -> None:
        made(worker, config)
        workers.append(config)
        worker.compilations = SimpleNamespace(count=31, seconds=24.4)

    monkeypatch.setattr(model_worker.ModelWorker, "__init__", start)
    config = Config.of(model_path=path, device="cpu", skip_server_warmup=True)
    modules, kernels = prebuild.prebuild(config)
    assert modules.state == kernels.state == OK
    assert modules.found == "2 of 2 modules compiled in 61 s (prefill, prefill)"
    assert "with 31 kernels of Triton ready in 24 s" in kernels.found
    assert (needed[0].head_dim, needed[0].tensor_cores, needed[0].windows) == (64, False, (0, 0))
    assert needed[0].fa3
    assert (workers[0].model.load_format, workers[0].server.skip_server_warmup) == ("dummy", False)
