"""``sglang inferlet build``: compile a source file to a core module."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

TARGET = "wasm32-unknown-unknown"  # Rust's name of WebAssembly alone
LIBRARIES = Path(str(files("sglang.srt") / "assets" / "inferlet")).resolve()
SUFFIXES = {".wat": "WAT", ".c": "C", ".rs": "Rust", ".ts": "AssemblyScript"}
"""The language of each kind of source file."""
C_FLAGS = [
    "--target=wasm32-freestanding", "-Os", "-nostdlib", "-fno-builtin", "-Wl,--no-entry",
    "-Wl,--export=alloc", "-Wl,--export=turn", "-Wl,-s",
]  # fmt: skip
RUST_FLAGS = [
    "--edition", "2021", "--target", TARGET, "-C", "opt-level=z", "-C", "panic=abort",
    "-C", "codegen-units=1", "-C", "lto=fat", "-C", "strip=symbols",
]  # fmt: skip
ASSEMBLYSCRIPT_FLAGS = [
    "-Osize", "--noAssert", "--runtime", "minimal", "--use", "abort=~lib/sglang_inferlet/abort",
]  # fmt: skip


class BuildFailed(Exception):
    """The file cannot be compiled. The text says why, and how to get what is missing."""


def build_module(source: Path, target: Path) -> None:
    """Compile ``source`` to ``target``. Raises BuildFailed, OSError."""
    builders = {".wat": _wat, ".c": _c, ".rs": _rust, ".ts": _assemblyscript}
    if source.suffix not in builders:
        raise BuildFailed(
            f"{source} ends with {source.suffix!r}; known are {', '.join(SUFFIXES)}. Programs in "
            "Python and JavaScript need no build: put them as they are"
        )
    builders[source.suffix](source, target)


def unbuilt(path: str) -> str:
    """Advice for a file of source that is no program yet; "" for other files."""
    language = SUFFIXES.get(Path(path).suffix)
    if language is None:
        return ""
    text = f"{path} is source in {language}; build it: sglang inferlet build {path}"
    if language == "AssemblyScript":
        text += ". TypeScript for the runner of JavaScript is compiled to .js first, by tsc"
    return text


def missing(tool: str, how: str) -> str:
    """The message for a tool that is not installed."""
    return f"{tool} is not installed; get it by: {how}"


def _wat(source: Path, target: Path) -> None:
    if importlib.util.find_spec("wasmtime") is None:
        raise BuildFailed(missing("wasmtime", "pip install wasmtime"))
    from sglang.srt.inferlet.host.compiling import ProgramRefused, from_text

    try:
        target.write_bytes(from_text(source.read_text()))
    except ProgramRefused as error:
        raise BuildFailed(f"{source}: {error}") from None


def _c(source: Path, target: Path) -> None:
    if shutil.which("clang"):
        compiler = ["clang"]
    elif importlib.util.find_spec("ziglang"):
        compiler = [sys.executable, "-m", "ziglang", "cc"]
    else:
        how = "pip install ziglang, or the packages clang and lld of the system"
        raise BuildFailed(missing("clang", how))
    headers = f"-I{LIBRARIES / 'c'}"
    _run([*compiler, *C_FLAGS, headers, "-o", str(target), str(source)])


def _rust(source: Path, target: Path) -> None:
    """Compile the library to a crate of its own, then the program."""
    if shutil.which("rustc") is None:
        how = "rustup, or the packages rustc, libstd-rust-dev-wasm32 and lld of Debian and Ubuntu"
        raise BuildFailed(missing("rustc", how))
    library = _run(["rustc", "--print", "target-libdir", "--target", TARGET]).strip()
    if not any(Path(library).glob("libstd-*")):
        raise BuildFailed(
            f"{_run(['rustc', '--version']).strip()} has no library of the target {TARGET}; get it "
            f"by: rustup target add {TARGET}, or the package libstd-rust-dev-wasm32 of Debian and "
            "Ubuntu for their rustc"
        )
    # Panics name files without the folders of this machine.
    remapped = f"--remap-path-prefix={LIBRARIES / 'rust'}/="
    flags = [*RUST_FLAGS, *_rust_linker(), remapped]
    with tempfile.TemporaryDirectory() as scratch:
        crate = Path(scratch) / "libsglang_inferlet.rlib"
        command = ["rustc", *flags, "--crate-type", "rlib", "-o", str(crate), "sglang_inferlet.rs"]
        _run(command, LIBRARIES / "rust")
        more = ["--crate-type", "cdylib", "--extern", f"sglang_inferlet={crate}"]
        command = ["rustc", *flags, *more, "-o", str(target.absolute()), source.name]
        _run(command, source.absolute().parent)


def _rust_linker() -> list[str]:
    """Flags that name a linker. rustup's rustc has one inside of it, Debian's has none. Raises
    BuildFailed."""
    root = Path(_run(["rustc", "--print", "sysroot"]).strip())
    if shutil.which("rust-lld") or any(root.glob("lib/rustlib/*/bin/rust-lld*")):
        return []
    for name in ("wasm-ld", *(f"wasm-ld-{version}" for version in range(40, 12, -1))):
        if shutil.which(name):
            return ["-C", "linker-flavor=wasm-ld", "-C", f"linker={name}"]
    raise BuildFailed(missing("wasm-ld, the linker of WebAssembly,", "the package lld"))


def _assemblyscript(source: Path, target: Path) -> None:
    compiler = shutil.which("asc")
    for folder in source.absolute().parents:
        local = folder / "node_modules" / ".bin" / "asc"
        compiler = compiler or (str(local) if local.exists() else None)
    if compiler is None:
        how = (
            "npm install -g assemblyscript, or npm install assemblyscript in the file's folder "
            "(node 20 or later)"
        )
        raise BuildFailed(missing("asc, the compiler of AssemblyScript,", how))
    library = ["--lib", str(LIBRARIES / "assemblyscript"), "--outFile", str(target.absolute())]
    command = [compiler, source.name, *ASSEMBLYSCRIPT_FLAGS, *library]
    _run(command, source.absolute().parent)


def _run(command: list[str], folder: Path | None = None) -> str:
    """Run a compiler; its output. Raises BuildFailed with its errors."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        text = (done.stderr.strip() or done.stdout.strip())[-4000:]
        raise BuildFailed(f"{Path(command[0]).name} has failed:\n{text}")
    return done.stdout
