"""Libraries of the page that others write, kept as files: `python -m tools.vendored`.

`python/srt/web/page/static/vendor/vendored.json` has each library's name, version, licence and the
SHA-256 of its files. Without an option, compare the files with it and print their sizes; the exit
status is 1 where one differs.

    python -m tools.vendored --record     write the hashes of the files as they are
    python -m tools.vendored --table      the table of docs/page.md
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "python" / "srt" / "web" / "page" / "static" / "vendor"
LIST = FOLDER / "vendored.json"


def listed() -> list[dict[str, Any]]:
    """The libraries, in the order of the list."""
    files: list[dict[str, Any]] = json.loads(LIST.read_text(encoding="utf-8"))
    return files


def hashes(name: str) -> dict[str, str]:
    """SHA-256 of each file of a library, by its path in the library's folder."""
    folder = FOLDER / name
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def differences() -> list[str]:
    """Return the differences between the files and the list."""
    found = []
    libraries = {library["folder"]: library for library in listed()}
    folders = {path.name for path in FOLDER.iterdir() if path.is_dir()}
    found += [f"{name} is not listed" for name in sorted(folders - set(libraries))]
    for name, library in libraries.items():
        present = hashes(name)
        if not any(path.startswith("LICENSE") for path in present):
            found.append(f"{name} has no licence")
        for path in sorted(set(present) | set(library["files"])):
            if present.get(path) != library["files"].get(path):
                found.append(f"{name}/{path} differs")
    return found


def sizes(name: str) -> tuple[int, int]:
    """Bytes of a library's files, and in a wheel (deflated)."""
    packed = io.BytesIO()
    total = 0
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in hashes(name):
            content = (FOLDER / name / path).read_bytes()
            total += len(content)
            archive.writestr(f"{name}/{path}", content)
    return total, len(packed.getvalue())


def table() -> str:
    """Sizes in KB, as the page of the documentation has them."""
    lines = [
        "| library | version | licence | for | KB | in the wheel |",
        "|---|---|---|---|---|---|",
    ]
    sums = [0, 0]
    for library in listed():
        found = sizes(library["folder"])
        sums = [a + b for a, b in zip(sums, found, strict=True)]
        kb = " | ".join(f"{size / 1000:.0f}" for size in found)
        lines.append(
            f"| {library['name']} | {library['version']} | {library['licence']} | "
            f"{library['use']} | {kb} |"
        )
    lines.append(f"| all | | | | {sums[0] / 1000:.0f} | {sums[1] / 1000:.0f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.vendored")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.record:
        found = [{**library, "files": hashes(library["folder"])} for library in listed()]
        LIST.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if options.table:
        print(table())
        return 0
    wrong = differences()
    print("\n".join(wrong) or table())
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
