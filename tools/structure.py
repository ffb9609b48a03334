"""Structure of the packages in numbers: `python -m tools.structure`.

Every import counts, those inside functions and under `TYPE_CHECKING` too, and module names in files
that call `import_module`. The ceilings of the numbers are in `tools/structure.json`; they may only
fall (`--lower` sets them to today's values).

    unit        a module or package on the top level of a package
    back arrow  an import of a unit that imports the importer at once, directly or through others;
                or one of the language by a module of the runtime that others import
    level       1 for a unit that imports no other of its package; else one more than the highest
                that it imports. Back arrows are left out, and a cycle has one level
    cycle       files, or units of a package, that import each other, directly or through others
    homonym     a name that two classes, or two modules or packages, have (except for `BOTH_RIGHT`)

The exit status is 1 where a number is above its ceiling.
"""

from __future__ import annotations

import argparse
import ast
import gc
import io
import json
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CEILINGS = ROOT / "tools" / "structure.json"

# Folder of each package below python/. The link python/sglang/srt is not followed.
FOLDERS = {"sglang": "sglang", "sglang.srt": "srt"}

# Modules under upstream's names or earlier names of the project: doors into packages, part of none.
# A name that ends with a dot stands for a package with all its modules.
ALIASES = (
    "sglang.__main__", "sglang.chat", "sglang.compiler",
    "sglang.lang.", "sglang.test.", "sglang.utils", "sglang.global_config", "sglang.launch_server",
    "sglang.bench_serving", "sglang.bench_offline_throughput", "sglang.bench_one_batch",
    "sglang.check_env", "sglang.version", "sglang.srt.constrained.", "sglang.srt.entrypoints.",
    "sglang.srt.utils.", "sglang.srt.hf_transformers_utils", "sglang.srt.server_args",
    "sglang.srt.server",
)  # fmt: skip

INNER = ("core", "memory", "schedule", "engine", "worker")
LANGUAGE = ("ir", "run", "compile", "api", "program", "state")
# Lines of code that a ring may have, and its packages and modules.
RINGS = {
    "inner ring": (9000, [f"sglang.srt.{name}" for name in INNER]),
    "language proper": (5000, [f"sglang.{name}" for name in LANGUAGE]),
}

# The parts of the language that the runtime may import: data and meaning that both share.
SHARED = ("sglang.ir.", "sglang.semantics.")

# Model files describe one architecture each, in that architecture's own words.
MODELS = "sglang.srt.models."
SHARED_NAMES = frozenset({"__init__", "__main__", "routes"})

# Names that two modules or packages have because each is the field's word for what it holds. A
# third module of the name counts, and so does one of these that has moved.
BOTH_RIGHT = {
    # Clients of an API in the language; routes of the same API in the server.
    "anthropic": {"sglang.backend.anthropic", "sglang.srt.web.anthropic"},
    "openai": {"sglang.backend.openai", "sglang.srt.web.openai"},
    "native": {"sglang.backend.native", "sglang.srt.web.native"},
    # The backend that calls the engine in this process; the engine.
    "engine": {"sglang.backend.engine", "sglang.srt.engine"},
    # The library that programs import; the control layer that they call.
    "inferlet": {"sglang.inferlet", "sglang.srt.inferlet"},
    # Many items of one program; many rows of one forward pass.
    "batch": {"sglang.batch", "sglang.srt.core.batch"},
    # Messages between processes; Anthropic's API of that name.
    "messages": {"sglang.srt.core.messages", "sglang.srt.web.anthropic.messages"},
    # Experts for tokens; engines for requests.
    "routing": {"sglang.srt.layers.routing", "sglang.srt.routing"},
    # Submitted programs: their plain data; their runs; their routes.
    "programs": {"sglang.srt.programs", "sglang.srt.runtime.programs", "sglang.srt.web.programs"},
    # A package and its main module.
    "tokenizer": {"sglang.srt.tokenizer", "sglang.srt.tokenizer.tokenizer"},
}

Graph = dict[str, set[str]]


@dataclass(frozen=True)
class Module:
    """A source file; `package` where it is an `__init__`."""

    name: str
    package: bool
    tree: ast.Module
    source: str

    @property
    def alias(self) -> bool:
        name = f"{self.name}."
        return any(name.startswith(one) if one[-1] == "." else self.name == one for one in ALIASES)


def read(root: Path = ROOT) -> dict[str, Module]:
    """Modules of the project by name."""
    return read_folders({root / "python" / folder: package for package, folder in FOLDERS.items()})


def read_folders(folders: Mapping[Path, str]) -> dict[str, Module]:
    """Return the modules of folders and of the packages in them (`modules_of`), by name."""
    with uncollected():
        return {
            module.name: module
            for folder, package in folders.items()
            for module in modules_of(folder, package)
        }


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector: syntax trees are millions of objects, all alive, which it would
    visit again and again: reading the project took six times as long in a test run."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def modules_of(folder: Path, package: str) -> Iterator[Module]:
    """Modules of a package's folder, or of one on Python's path (`package` is empty). The link
    python/sglang/srt is not followed."""
    for path in sorted(folder.rglob("*.py")):
        parts = [package] * bool(package) + [*path.relative_to(folder).with_suffix("").parts]
        if parts[:2] != ["sglang", "srt"] or package != "sglang":
            opens = parts[-1] == "__init__"
            source = path.read_text(encoding="utf-8")
            name = ".".join(parts[:-1] if opens else parts)
            yield Module(name, opens, ast.parse(source), source)


def code_lines(module: Module) -> int:
    """Lines that hold code: no blank lines, comments and docstrings."""
    prose = {line for start, end in docstrings(module.tree) for line in range(start, end + 1)}
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
              tokenize.ENCODING, tokenize.ENDMARKER}  # fmt: skip
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type not in silent:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - prose)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """First and last line of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            match node.body[:1]:
                case [ast.Expr(value=ast.Constant(value=str())) as first]:
                    yield first.lineno, first.end_lineno or first.lineno


def imports(module: Module) -> Iterator[tuple[str, bool]]:
    """Dotted names that a module imports, and whether at once (while it is loaded itself)."""
    by_name = False
    texts = set()
    for node, at_once in placed(module.tree, True):
        if isinstance(node, ast.Import):
            yield from ((alias.name, at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = origin(module, node)
            yield from ((f"{start}.{alias.name}", at_once) for alias in node.names)
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            by_name = by_name or called in ("import_module", "__import__")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
    if by_name:
        yield from ((text, False) for text in sorted(texts) if text.startswith("sglang."))


def origin(module: Module, node: ast.ImportFrom) -> str:
    """Dotted name of the module that a statement imports from."""
    base = module.name.split(".") if module.package else module.name.split(".")[:-1]
    kept = base[: len(base) + 1 - node.level] if node.level else []
    return ".".join([*kept, *([node.module] if node.module else [])])


def placed(tree: ast.AST, at_once: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Nodes below a node, and whether they run when the module is loaded."""
    pending = [(tree, at_once)]
    while pending:
        node, now = pending.pop()
        yield node, now
        now = now and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        later = node.body if isinstance(node, ast.If) and checks_types(node.test) else ()
        pending += [(child, now and child not in later) for child in ast.iter_child_nodes(node)]


def checks_types(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", "")) == "TYPE_CHECKING"


def arrows(modules: Mapping[str, Module]) -> tuple[Graph, Graph]:
    """All imports between files, and those that are made at once."""
    every: Graph = {name: set() for name in modules}
    at_once: Graph = {name: set() for name in modules}
    for name, module in modules.items():
        for target, now in imports(module):
            while target and target not in modules:
                target = target.rpartition(".")[0]
            if target and target != name:
                every[name].add(target)
                if now:
                    at_once[name].add(target)
    return every, at_once


def cycles(graph: Graph) -> list[list[str]]:
    """Groups of nodes that reach each other, largest first (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            start = stack.index(node)
            if len(stack) - start > 1:
                found.append(sorted(stack[start:]))
            del stack[start:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found, key=lambda group: (-len(group), group))


def reached(graph: Graph, start: str) -> set[str]:
    """Nodes that can be reached from one, itself included where a cycle leads back to it."""
    found: set[str] = set()
    pending = [start]
    while pending:
        fresh = graph[pending.pop()] - found
        found |= fresh
        pending += fresh
    return found


def levels(graph: Graph) -> int:
    """Number of levels of a graph; a cycle has one."""
    group = {node: node for node in graph}
    for each in cycles(graph):
        group |= dict.fromkeys(each, each[0])
    below: Graph = {name: set() for name in group.values()}
    for node, targets in graph.items():
        below[group[node]] |= {group[other] for other in targets} - {group[node]}
    level: dict[str, int] = {}

    def visit(node: str) -> int:
        if node not in level:
            level[node] = 1 + max(map(visit, below[node]), default=0)
        return level[node]

    return max(map(visit, below), default=0)


@dataclass(frozen=True)
class Package:
    """Numbers of one package; `back` and `cycles` are between its units."""

    name: str
    modules: int
    packages: int
    levels: int
    back: list[tuple[str, str]]
    cycles: list[list[str]]


def package(name: str, modules: Mapping[str, Module], every: Graph, at_once: Graph) -> Package:
    """Measure one package. Modules under upstream's names are left out."""
    own = {
        module: f"{name}.{module[len(name) + 1 :].partition('.')[0]}"
        for module in modules
        if module.startswith(f"{name}.") and not modules[module].alias
        if not (name == "sglang" and f"{module}.".startswith("sglang.srt."))
    }
    units = set(own.values())
    graph, first = between(own, every), between(own, at_once)
    back = [
        (unit, other)
        for unit in sorted(graph)
        for other in sorted(graph[unit])
        if unit in reached(first, other)
    ]
    forward = {unit: graph[unit] - {to for by, to in back if by == unit} for unit in graph}
    folders = {unit for unit in units if unit not in modules or modules[unit].package}
    return Package(
        name, len(units - folders), len(folders), levels(forward), back, cycles(graph)
    )  # fmt: skip


def between(own: Mapping[str, str], graph: Graph) -> Graph:
    """Arrows between units, from those between their files."""
    found: Graph = {unit: set() for unit in own.values()}
    for module, unit in own.items():
        found[unit] |= {own[other] for other in graph[module] if other in own} - {unit}
    return found


def homonyms(modules: Mapping[str, Module]) -> dict[str, list[str]]:
    """Full names of each name that two classes, or two modules or packages, have."""
    places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for name, module in modules.items():
        if module.alias or name.startswith(MODELS):
            continue
        last = name.rpartition(".")[2]
        if last not in SHARED_NAMES:
            places["module", last].append(name)
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places["class", node.name].append(f"{name}.{node.name}")
    return {
        f"{kind} {name}": sorted(found)
        for (kind, name), found in sorted(places.items())
        if len(found) > 1
        if not (kind == "module" and set(found) <= BOTH_RIGHT.get(name, set()))
    }


def ring(parts: Iterable[str], modules: Mapping[str, Module]) -> int:
    """Code lines of packages and modules."""
    return sum(
        code_lines(module)
        for name, module in modules.items()
        if any(f"{name}.".startswith(f"{part}.") for part in parts)
    )


@dataclass(frozen=True)
class Structure:
    """All measurements of a tree."""

    packages: list[Package]
    between: list[tuple[str, str]]  # files of the runtime that import the language
    cycles: list[list[str]]  # of files
    homonyms: dict[str, list[str]]
    rings: dict[str, int]

    def numbers(self) -> dict[str, int]:
        """The numbers that have ceilings."""
        top = {one.name: one for one in self.packages}
        found = {}
        for name in FOLDERS:
            found[f"top level of {name}"] = top[name].modules + top[name].packages
            found[f"levels of {name}"] = top[name].levels
        return found | {
            "back arrows": sum(len(one.back) for one in self.packages) + len(self.between),
            "cycles of files": len(self.cycles),
            "files in cycles": sum(map(len, self.cycles)),
            "cycles of units": sum(len(one.cycles) for one in self.packages),
            "units in cycles": sum(len(each) for one in self.packages for each in one.cycles),
            "homonyms": len(self.homonyms),
            **{f"code lines of the {name}": lines for name, lines in self.rings.items()},
        }


def measure(root: Path = ROOT) -> Structure:
    """Read and measure the tree."""
    return measure_modules(read(root))


@uncollected()
def measure_modules(modules: Mapping[str, Module]) -> Structure:
    """Measure modules, which have their names as keys."""
    every, at_once = arrows(modules)
    imported = set().union(*(found for name, found in every.items() if not modules[name].alias))
    runtime = [name for name in modules if f"{name}.".startswith("sglang.srt.")]
    back = [
        (name, other)
        for name in sorted(runtime)
        for other in sorted(every[name] - set(runtime))
        if name in imported  # else an entry point, which stands above both
        if not modules[name].alias and not f"{other}.".startswith(SHARED)
    ]
    own = [f"{name}." for name, module in modules.items() if not module.alias]
    names = [
        name
        for name in sorted(modules)
        if modules[name].package and any(one.startswith(f"{name}.") for one in own)
    ]
    return Structure(
        [package(name, modules, every, at_once) for name in names],
        back,
        cycles(every),
        homonyms(modules),
        {name: ring(parts, modules) for name, (_, parts) in RINGS.items()},
    )


def above(numbers: Mapping[str, int], ceilings: Mapping[str, int]) -> list[str]:
    """Numbers that are above their ceilings, a sentence for each."""
    return [
        f"{name}: {numbers[name]}; at most {ceiling}"
        for name, ceiling in ceilings.items()
        if numbers[name] > ceiling
    ]


def lowered(numbers: Mapping[str, int], ceilings: Mapping[str, int]) -> dict[str, int]:
    """Ceilings at today's values, none higher than before. That of a ring is its limit."""
    limits = {f"code lines of the {name}": limit for name, (limit, _) in RINGS.items()}
    return {
        name: limits.get(name, min(number, ceilings.get(name, number)))
        for name, number in numbers.items()
    }


def table(found: Structure, names: bool) -> str:
    """The report as text; `names` adds what each number counts."""
    head = ("package", "modules", "packages", "levels", "back arrows", "cycles")
    rows = [head] + [
        tuple(
            map(str, (p.name, p.modules, p.packages, p.levels, len(p.back), len(p.cycles)))
        )
        for p in found.packages
    ]  # fmt: skip
    width = max(len(row[0]) for row in rows)
    lines = [f"{row[0]:{width}}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in rows]
    lines.append("")
    ceilings = json.loads(CEILINGS.read_text(encoding="utf-8")) if CEILINGS.exists() else {}
    for name, number in found.numbers().items():
        lines.append(f"{name:36}{number:>8,}   at most {ceilings.get(name, number):,}")
    if names:
        lines.append("")
        lines += [f"back arrow  {by} -> {to}" for p in found.packages for by, to in p.back]
        lines += [f"back arrow  {by} -> {to}" for by, to in found.between]
        lines += [f"cycle of units  {', '.join(c)}" for p in found.packages for c in p.cycles]
        lines += [f"cycle of files  {', '.join(c)}" for c in found.cycles]
        lines += [f"homonym  {name}: {', '.join(at)}" for name, at in found.homonyms.items()]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.structure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--names", action="store_true", help="print what each number counts")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--lower", action="store_true", help="lower the ceilings to today's values")
    options = parser.parse_args(argv)
    found = measure()
    ceilings: dict[str, int] = {}
    if CEILINGS.exists():
        ceilings = json.loads(CEILINGS.read_text(encoding="utf-8"))
    if options.lower:
        ceilings = lowered(found.numbers(), ceilings)
        CEILINGS.write_text(json.dumps(ceilings, indent=2) + "\n", encoding="utf-8")
    if options.json:
        print(json.dumps(as_json(found), indent=2))
    else:
        print(table(found, options.names))
    complaints = above(found.numbers(), ceilings)
    print("\n".join(complaints), file=sys.stderr, end="\n" if complaints else "")
    return int(bool(complaints))


def as_json(found: Structure) -> dict[str, Any]:
    return {
        "numbers": found.numbers(),
        "packages": [vars(one) for one in found.packages],
        "runtime imports language": found.between,
        "cycles of files": found.cycles,
        "homonyms": found.homonyms,
    }


if __name__ == "__main__":
    sys.exit(main())
