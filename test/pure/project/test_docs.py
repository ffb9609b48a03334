"""The pages say what is there: every path, test, flag and link in them exists."""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator

from helpers.paths import ROOT
from sglang import bench_offline_throughput, bench_one_batch, bench_serving
from sglang.backend.engine import inferlet_command, sandbox_command
from sglang.srt.commands import (
    drain_command,
    engine_command,
    explain_command,
    ps_command,
    pull_command,
    schema_command,
    workers_command,
)
from sglang.srt.commands.doctor import doctor_command
from sglang.srt.config import Config
from sglang.srt.config.command_line import Parser
from sglang.srt.config.translation import FLAGS
from sglang.srt.config.upstream import MEANS, SPELLINGS
from sglang.terminal import bench_command, chat_command, run_command
from sglang.terminal.chaos import chaos_command, replay_command
from sglang.views.timeline import command as trace_command

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
FOREIGN = {
    "http-overhead",
    "rounds",
    "clients",
    "output-len",
    "help",
    "version",
    "editable",
    "constraint",
    "set",
    "total-queued-requests-metric",
    "total-running-requests-metric",
    "kv-cache-usage-percentage-metric",
    "lora-info-metric",
    "build-arg",
    "gpus",
    "shm-size",
    "target",
}  # flags of other programs


def named(pattern: str) -> list[tuple[str, str]]:
    return [
        (page.name, found)
        for page in PAGES
        for found in re.findall(pattern, page.read_text(encoding="utf-8"))
    ]


def test_links_lead_somewhere() -> None:
    links = [
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
        if not target.startswith("http")
    ]
    assert links
    assert [str(target) for page, target in links if not (page.parent / target).exists()] == []


def test_lists_and_tables_begin_behind_an_empty_line() -> None:
    """The site's Markdown would read them as part of the paragraph before."""
    begins, goes_on = re.compile(r"- |\d+\. |\| "), re.compile(r"\s*- |\s*\d+\. |\s{2,}|\|")
    found = []
    for page in PAGES:
        text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
        before = ""
        for line in text.splitlines():
            if begins.match(line) and before.strip() and not goes_on.match(before):
                found.append(f"{page.name}: {line[:60]}")
            before = line
    assert found == []


def test_nothing_installs_this_project_by_name() -> None:
    """The public index has another project of this name: installs are from the project's folder."""
    texts = [*PAGES, ROOT / "CHANGELOG.md", *(ROOT / "python").rglob("*.py")]
    by_name = re.compile(r"pip install (?:-\S+ )*['\"]?sglang\b")
    assert by_name.search("pip install 'sglang[srt]'")
    assert [str(p) for p in texts if by_name.search(p.read_text(encoding="utf-8"))] == []


def test_named_files_exist() -> None:
    paths = named(r"`((?:python|srt|test|docs|tools|examples|benchmark)/[\w/.-]*\w)[`:]")
    assert len(paths) > 40
    missing = [
        (page, path)
        for page, path in paths
        if not any((base / path).exists() for base in (ROOT, ROOT / "python"))
        and not (ROOT / "python" / f"{path}.py").exists()
    ]
    assert missing == []


def test_named_tests_exist() -> None:
    tests = named(r"`(test/[\w/]+\.py::test_\w+)`")
    assert len(tests) > 30
    functions = defaultdict(set)
    for _, name in tests:
        path, _, function = name.partition("::")
        functions[path].add(function)
    missing = []
    for path, told in functions.items():
        defined = set(re.findall(r"(?m)^def (test_\w+)\(", (ROOT / path).read_text("utf-8")))
        missing += [f"{path}::{function}" for function in told - defined]
    assert missing == []


def flags_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The flags of a parser and of its actions, without dashes."""
    yield from (name.removeprefix("--") for name in parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from flags_of(inner)


def test_named_flags_exist() -> None:
    names = [*Config().settings(), *FLAGS, *MEANS, *SPELLINGS]
    known = {name.replace("_", "-") for name in names} | FOREIGN
    commands = (
        doctor_command, drain_command, engine_command, explain_command, inferlet_command,
        sandbox_command, schema_command, trace_command, workers_command, ps_command, pull_command,
        bench_command, chat_command, run_command, chaos_command, replay_command,
    )  # fmt: skip
    for command in commands:
        parser = Parser()
        command.add_parser_arguments(parser)
        known |= set(flags_of(parser))
    for benchmark in (bench_offline_throughput, bench_one_batch, bench_serving):
        known |= set(flags_of(benchmark.parser()))
    for source in [*(ROOT / "benchmark").rglob("*.py"), *(ROOT / "tools").glob("*.py")]:
        flags = re.findall(r'"--([a-z][a-z-]+)"', source.read_text(encoding="utf-8"))
        known |= {*flags, *(f"no-{flag}" for flag in flags)}
    assert [(page, flag) for page, flag in named(r"--([a-z][a-z0-9-]+)") if flag not in known] == []


def test_named_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert {target for _, target in named(r"(?m)(?:`|^ +)make ([a-z-]+)\b")} <= targets
