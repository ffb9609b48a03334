"""Permitted imports, read from the source with ``ast``: lazy and relative imports count too."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from helpers.paths import PYTHON

from tools.structure import uncollected

STANDARD = frozenset(sys.stdlib_module_names)

# ``srt`` is short for ``sglang.srt`` in all names here.
# A module is ruled by the longest name here that contains it. After the colon: what it may import
# besides itself and the standard library. Tensor code: each layer uses those before it.
TENSORS = "srt.core srt.config srt.numeric torch numpy"
UPSTREAM = "sglang srt psutil outlines_core"  # aliases under upstream's names
RUNNING = (
    "sglang.ir sglang.semantics sglang.errors sglang.backend"  # below the rooms that run programs
)
RULES = {
    "srt.core": "msgspec sglang.ir",
    "srt.system": "",
    "srt.system.processes": "psutil",
    "srt.config": "srt.core",
    "srt.memory": "srt.core",
    "srt.schedule": "srt.core",
    "srt.routing": "srt.core",
    "srt.disk": "srt.core srt.memory",
    "srt.kv_events": "srt.core srt.config msgspec zmq",
    "srt.interception": "srt.core srt.memory srt.schedule",
    "srt.spaces": "sglang.ir srt.core srt.memory srt.schedule msgspec numpy",
    "srt.grammar": "sglang.ir srt.core srt.config msgspec numpy re2 interegular outlines_core"
    " llguidance srt.system",
    "srt.files": "srt.core huggingface_hub",
    "srt.tokenizer": "srt.core srt.files tokenizers jinja2",
    "srt.media": "srt.core msgspec numpy PIL",
    "srt.media.video_file": "srt.media PIL av",
    "srt.numeric": "torch numpy ml_dtypes",
    "srt.parallel": f"{TENSORS} sgl_kernel",
    "srt.attention": f"{TENSORS} sgl_kernel srt.parallel flashinfer",
    "srt.logits": f"{TENSORS} sgl_kernel srt.parallel srt.attention",
    "srt.layers": f"{TENSORS} sgl_kernel srt.parallel srt.attention",
    "srt.models": f"{TENSORS} sgl_kernel srt.parallel srt.attention srt.layers"
    " srt.files srt.media.processor_settings srt.media.tiles safetensors tqdm",
    "srt.worker": f"{TENSORS} sgl_kernel srt.parallel srt.attention srt.layers srt.models srt.files"
    " srt.logits sglang.ir psutil",
    "srt.ranks": "sglang.ir srt.core srt.config srt.numeric torch numpy sgl_kernel srt.parallel"
    " srt.attention srt.logits srt.worker srt.files msgspec zmq srt.system",
    "srt.engine": "sglang.ir srt.core srt.config srt.memory srt.schedule srt.disk srt.interception"
    " srt.spaces srt.grammar srt.kv_events msgspec zmq",
    "srt.engine.process": "srt.core srt.config srt.grammar srt.tokenizer srt.kv_events msgspec zmq"
    " srt.system",
    "srt.engine.executor": "srt.core srt.config srt.worker srt.ranks",
    "srt.remote": "srt.core srt.config srt.files srt.tokenizer srt.engine msgspec zmq srt.system",
    "srt.launchers": "srt.core srt.config ray srt.system",
    "srt.requests": "sglang.ir",
    "srt.requests.completion": "sglang.ir srt.core srt.tokenizer srt.engine.client srt.engine.info"
    " srt.requests.common_fields srt.requests.request_error msgspec",
    "srt.requests.replies": "sglang.ir sglang.semantics",
    "srt.requests.strict_json": "srt.core srt.requests.request_error",
    "srt.requests.media_input": "srt.core srt.media srt.requests.request_error",
    "srt.programs": "sglang.ir sglang.semantics srt.core msgspec",
    "srt.runtime": "sglang.ir sglang.semantics srt.core srt.config srt.tokenizer srt.requests"
    " srt.engine.client msgspec srt.system",
    "srt.inferlet": "sglang.ir srt.core srt.engine.info srt.requests msgspec",
    "srt.inferlet.host": "srt.core msgspec wasmtime srt.system",
    "srt.inferlet.sandbox": "sglang.ir srt.core srt.requests msgspec",
    "srt.runtime.fleet": "srt.core srt.config srt.tokenizer srt.requests srt.engine srt.routing"
    " srt.remote"
    " srt.runtime msgspec",
    "srt.runtime.programs": "sglang.ir sglang.semantics srt.core srt.config srt.requests"
    " srt.programs srt.runtime msgspec",
    "srt.runtime.program_gate": "srt.core srt.config srt.requests srt.interception srt.engine.info",
    "srt.runtime.vision_setup": "srt.config srt.files srt.media srt.tokenizer srt.requests"
    " srt.engine.info",
    "srt.runtime.crash_dump": "sglang.ir srt.core srt.config srt.requests srt.engine.client"
    " srt.files.crash_file",
    "srt.runtime.supervisor": "sglang.ir srt.core srt.config srt.tokenizer srt.requests srt.engine"
    " msgspec",
    "srt.web": "sglang.ir sglang.semantics srt.core srt.config srt.tokenizer srt.requests"
    " srt.runtime srt.inferlet msgspec starlette pydantic_core uvicorn httptools"
    " prometheus_client psutil python_multipart",
    "srt.web.openapi.native_shapes": "srt.core srt.engine.info srt.web srt.runtime msgspec",
    "srt.web.launch": "srt.core srt.config srt.tokenizer srt.requests srt.runtime srt.web"
    " srt.engine srt.ranks srt.config.command_line srt.system",
    "srt.web.serving": "srt.core srt.config srt.tokenizer srt.requests srt.runtime srt.web"
    " srt.engine uvicorn srt.system",
    "srt.web.telemetry.request_tracing": "srt.core srt.requests opentelemetry",
    "srt.commands": "srt.core srt.config.command_line",
    "srt.commands.bench": "",
    "srt.commands.ps_command": "srt.config.command_line psutil",
    "srt.commands.pull_command": "srt.core srt.files huggingface_hub",
    "srt.commands.engine_command": "srt.core srt.config srt.remote srt.launchers srt.system",
    "srt.commands.engine_keys_command": "srt.remote",
    "srt.commands.schema_command": "sglang.ir srt.core srt.grammar srt.tokenizer msgspec numpy"
    " jsonschema",
    "srt.commands.models_command": "srt.models.verified",
    "srt.commands.doctor": "sglang.semantics srt.core srt.config srt.numeric srt.tokenizer"
    " srt.requests srt.layers srt.models srt.files srt.attention srt.worker srt.ranks srt.runtime"
    " sgl_kernel msgspec psutil torch huggingface_hub srt.system",
    "srt.cli": "srt.config.command_line srt.commands srt.web.launch",
    "srt.server": UPSTREAM,
    "sglang": "sglang",
    "sglang.ir": "",
    "sglang.semantics": "sglang.ir re2",
    "sglang.errors": "sglang.ir",
    "sglang.backend": "sglang.ir sglang.semantics sglang.errors h11 openai anthropic litellm"
    " pydantic pydantic_core typing_extensions jsonschema referencing tiktoken",
    "sglang.backend.engine": "sglang.backend sglang.ir sglang.semantics sglang.errors"
    " sglang.inferlet srt",
    "sglang.inferlet": "",
    "sglang.run": RUNNING,
    "sglang.tools": f"{RUNNING} sglang.run pydantic pydantic_core",
    "sglang.views": f"{RUNNING} sglang.run sglang.version",
    "sglang.views.timeline.otel": "sglang.views sglang.errors sglang.run opentelemetry",
    "sglang.state": f"{RUNNING} sglang.run sglang.tools sglang.views",
    "sglang.compile": f"{RUNNING} sglang.run sglang.views sglang.state",
    "sglang.on_server": f"{RUNNING} sglang.run sglang.views sglang.state sglang.compile",
    "sglang.on_server.lowering": f"{RUNNING} sglang.run",
    "sglang.batch": f"{RUNNING} sglang.run sglang.views sglang.state sglang.compile tqdm",
    "sglang.forecast": f"{RUNNING} sglang.run sglang.views sglang.state sglang.compile"
    " sglang.batch tiktoken",
    "sglang.program": f"{RUNNING} sglang.run sglang.tools sglang.views sglang.state sglang.compile"
    " sglang.batch sglang.forecast sglang.on_server",
    "sglang.api": f"{RUNNING} sglang.run sglang.tools sglang.views sglang.program",
    "sglang.integrations.dspy": f"{RUNNING} sglang.run sglang.integrations.dspy_tools dspy",
    "sglang.integrations.dspy_tools": f"{RUNNING} sglang.tools dspy",
    "sglang.terminal": f"{RUNNING} sglang.run sglang.views sglang.state sglang.program"
    " sglang.bench_serving sglang.bench_offline_throughput sglang.bench_one_batch"
    " srt.commands.named_values srt.core.nearest",
    "sglang.terminal.chaos": f"{RUNNING} sglang.run sglang.program sglang.terminal"
    " srt.commands.named_values srt.files.crash_file psutil pydantic",
    "sglang.__main__": "srt.cli",
    "sglang.launch_server": "sglang srt",
    "sglang.bench_serving": "srt.commands.bench srt.config.command_line",
    "sglang.bench_offline_throughput": "sglang srt.commands.bench srt.config.command_line",
    "sglang.bench_one_batch": "sglang srt.commands.bench srt.config.command_line",
    "sglang.check_env": "sglang srt",
    "srt.server_args": UPSTREAM,
    "srt.entrypoints": UPSTREAM,
    "srt.constrained": UPSTREAM,
    "srt.utils": UPSTREAM,
    "srt.hf_transformers_utils": UPSTREAM,
}


# Packages that may import of the package around them only what their rule names.
APART = ("srt.requests.completion", "srt.requests.replies", "srt.requests.media_input")


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def sources() -> dict[str, str]:
    """Source text by module name. The link ``sglang/srt`` is not followed: its target is read."""
    found = {}
    for path in PYTHON.rglob("*.py"):
        parts = path.relative_to(PYTHON).with_suffix("").parts
        found[".".join(parts)] = path.read_text(encoding="utf-8")
    return found


def imports(module: str, source: str) -> Iterator[tuple[int, str]]:
    """Line and name of everything imported, at whatever depth of the code."""
    for line, name in _imports(module, source):
        yield line, name.removeprefix("sglang.") if inside(name, "sglang.srt") else name


def _imports(module: str, source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{prefix}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            name = node.args[0]
            if called in ("import_module", "__import__") and isinstance(name, ast.Constant):
                yield node.lineno, str(name.value)


def violations(modules: dict[str, str]) -> list[str]:
    """``module:line imports name`` for every import that no rule allows."""
    found = []
    for module, source in sorted(modules.items()):
        owner = module.removesuffix(".__init__")
        layer = max((rule for rule in RULES if inside(owner, rule)), key=len, default="")
        # A module with a rule of its own is still part of its package; one without any rule (a new
        # package) may use the standard library alone.
        own = layer.count(".") < 2 or layer in APART
        home = layer if own else layer.rpartition(".")[0]
        allowed = [home, *RULES[layer].split()] if layer else []
        for line, name in imports(module, source):
            if name.split(".")[0] in STANDARD or any(inside(name, one) for one in allowed):
                continue
            found.append(f"{module}:{line} imports {name}")
    return found


PAGE = PYTHON.parent / "docs" / "architecture.md"


def page_rules() -> dict[str, list[str]]:
    """The table of the page: what each module may import."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = lines[lines.index("| module | may import |") + 2 :]
    cells = [row.strip("| ").split(" | ") for row in rows[: rows.index("")]]
    return {
        name.strip("`"): names.replace("nothing else", "").replace("`", "").split(", ")
        for name, names in cells
    }


def test_the_page_has_the_rules() -> None:
    rules = {module: names.split() or [""] for module, names in RULES.items()}
    assert list(page_rules().items()) == list(rules.items())


def test_every_import_is_allowed() -> None:
    with uncollected():
        assert violations(sources()) == []


PLANTED = [
    ("srt.core.planted", "import numpy", "numpy"),
    ("srt.schedule.planted", "def f():\n    import torch", "torch"),
    ("srt.memory.planted", "from ..worker import runner", "srt.worker.runner"),
    ("srt.memory.planted", "from sglang.srt.schedule.scheduler import Scheduler", "srt.schedule"),
    ("srt.core.planted", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
     "torch"),
    ("srt.layers.planted", "from sglang.srt.models.llama import Llama", "srt.models"),
    ("srt.engine.planted", "from sglang.srt import worker", "srt.worker"),
    ("srt.engine.planted", "import importlib\nimportlib.import_module('sglang.srt.worker.runner')",
     "srt.worker"),
    ("srt.requests.completion.planted", "from sglang.srt.engine.engine_core import EngineCore",
     "srt.engine.engine_core"),
    ("srt.web.planted", "from sglang.srt.engine import engine_core", "srt.engine.engine_core"),
    ("srt.cli.planted", "import sglang.srt.config", "srt.config"),
    ("srt.requests.planted", "import sglang", "sglang"),
    ("srt.requests.replies.planted", "from sglang.srt.requests.completion import output",
     "srt.requests.completion.output"),
    ("srt.planted", "from sglang.srt.core import ints", "srt.core.ints"),
    ("sglang.planted", "import torch", "torch"),
    ("sglang.run.interpreter", "from sglang.srt.core import depth", "srt.core.depth"),
    ("sglang.backend.planted", "from sglang.srt.config import Config", "srt.config"),
]  # fmt: skip


@pytest.mark.parametrize(("module", "source", "name"), PLANTED)
def test_a_planted_violation_is_caught(module: str, source: str, name: str) -> None:
    found = violations({module: source})
    assert len(found) == 1
    assert found[0].startswith(f"{module}:")
    assert f"imports {name}" in found[0]


ALLOWED = [
    ("srt.engine.executor", "from sglang.srt.worker.model_worker import ModelWorker"),
    ("srt.worker.planted", "from sglang.srt.models.registry import load\nimport torch"),
    ("srt.web.launch", "from sglang.srt.engine import main"),
    ("sglang.backend.engine.embedded", "def f():\n    from sglang.srt.engine.local import start"),
    ("srt.memory.planted", "from . import radix\nfrom .radix import Radix"),
]


@pytest.mark.parametrize(("module", "source"), ALLOWED)
def test_what_the_rules_allow_passes(module: str, source: str) -> None:
    assert violations({module: source}) == []


HEAVY = ("torch", "numpy", "transformers", "tokenizers", "starlette", "zmq", "sglang.srt", "openai",
         "anthropic", "pydantic", "jsonschema", "httpx", "h11")  # fmt: skip


def loaded(statement: str, names: tuple[str, ...]) -> tuple[list[str], float]:
    """The ``names`` that a fresh interpreter holds after ``statement``, and its CPU seconds."""
    code = (
        "import json, sys, time\n"
        "begin = time.process_time()\n"
        f"{statement}\n"
        "spent = time.process_time() - begin\n"
        f"print(json.dumps([[n for n in {names!r} if n in sys.modules], spent]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=120,
        env={"PYTHONPATH": str(PYTHON), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, spent = json.loads(done.stdout)
    return found, spent


@pytest.mark.slow
def test_the_frontend_imports_nothing_heavy() -> None:
    assert loaded("import sglang", HEAVY)[0] == []


@pytest.mark.slow
def test_load_on_a_server_imports_the_standard_library_alone() -> None:
    others = tuple(name for name in HEAVY if name != "sglang.srt")
    assert loaded("import sglang.bench_serving", (*others, "msgspec"))[0] == []


@pytest.mark.slow
def test_the_language_as_data_imports_nothing_else() -> None:
    others = ("sglang.backend", "sglang.run", "sglang.errors", "pydantic", "jsonschema", *HEAVY)
    assert loaded("import sglang.ir.graph, sglang.ir.graph_passes", others)[0] == []


@pytest.mark.slow
def test_the_runtime_imports_nothing_of_http() -> None:
    http = ("starlette", "uvicorn", "fastapi", "prometheus_client", "sglang.srt.web")
    names = (
        "generation", "vectors", "scoring", "classification", "conversations.chat_request",
    )  # fmt: skip
    statement = "; ".join(f"import sglang.srt.runtime.{name}" for name in names)
    assert loaded(statement, http)[0] == []


@pytest.mark.slow
def test_the_frontend_imports_in_a_fifth_of_a_second_of_cpu() -> None:
    assert min(loaded("import sglang", ())[1] for _ in range(5)) < 0.2


@pytest.mark.slow
def test_the_engine_is_started_before_the_server_is_imported() -> None:
    """``run`` starts it; what takes long to import is imported behind that."""
    slow = ("starlette", "uvicorn", "tokenizers", "prometheus_client", "numpy", "torch")
    assert loaded("import sglang.srt.web.launch", slow)[0] == []
    source = ast.parse((PYTHON / "srt" / "web" / "launch.py").read_text(encoding="utf-8"))
    names = {node.name: node for node in source.body if isinstance(node, ast.FunctionDef)}
    run = ast.unparse(names["run"])
    assert run.index("Started(own)") < run.index("_serve(")
    assert "serving" in ast.unparse(names["_serve"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    ["sglang.srt.core.messages", "sglang.srt.memory.store",
     "sglang.srt.schedule.scheduler", "sglang.srt.engine.client", "sglang.srt.remote.remote_engine",
     "sglang.srt.requests.completion.completer", "sglang.srt.web.app", "sglang.srt.web.serving"],
)  # fmt: skip
def test_planning_and_serving_import_no_torch(module: str) -> None:
    assert loaded(f"import {module}", ("torch", "transformers", "ray"))[0] == []


@pytest.mark.parametrize("folder", ["sglang", "srt"])
def test_no_module_hides_one_of_the_standard_library(folder: str) -> None:
    """Python puts the folder of a script that is run by its path first on its own path."""
    names = {path.stem for path in (PYTHON / folder).iterdir() if not path.name.startswith("__")}
    assert names & STANDARD <= {"test"}
