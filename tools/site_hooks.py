"""Hooks of mkdocs: pages that are made when the site is built.

The reference comes from the code (`tools.reference`), the pages of the project's root from their
files, and a link from a page to a source file leads to a page that shows the file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ROOT_PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=[)#])")
LANGUAGES = {".py": "python", ".sh": "bash", ".json": "json", ".yaml": "yaml", ".h": "cpp"}
# Addresses that a browser fetches by itself when it shows a page.
FETCHED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="(?:https?:)?//[^"]*"
    |<link\b[^>]*\brel="(?:stylesheet|preload|icon)"[^>]*\bhref="(?:https?:)?//[^"]*"
    |@import\s+(?:url\()?["']?(?:https?:)?//""", re.VERBOSE)  # fmt: skip


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to those of docs/."""
    from mkdocs.structure.files import File

    sys.path.insert(0, str(ROOT))
    from tools import reference

    for name, make in reference.PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=make()))
    for name in ROOT_PAGES:
        content = inside_docs((ROOT / name).read_text(encoding="utf-8"), ROOT)
        files.append(File.generated(config, name, content=content))
    pages = [(page, page.parent) for page in DOCS.glob("*.md")]
    pages += [(ROOT / name, ROOT) for name in ROOT_PAGES]
    for source in sorted({file for page, base in pages for file in sources(page, base)}):
        name = source.relative_to(ROOT).as_posix()
        files.append(File.generated(config, f"source/{name}.md", content=shown(source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links that leave docs/ to the pages of their files."""
    if (DOCS / page.file.src_uri).is_file():
        return inside_docs(markdown, DOCS)
    return markdown


def on_post_build(config: Any) -> None:
    """Raise where a page of the site would fetch something from elsewhere."""
    if found := fetched(Path(config.site_dir)):
        from mkdocs.exceptions import PluginError

        raise PluginError("pages that fetch from elsewhere:\n" + "\n".join(found))


def fetched(site: Path) -> list[str]:
    """Return what a browser would fetch from elsewhere, each with its page."""
    return [
        f"{page.relative_to(site)}: {match[0]}"
        for page in (*site.rglob("*.html"), *site.rglob("*.css"))
        for match in FETCHED.finditer(page.read_text(encoding="utf-8"))
    ]


def inside_docs(markdown: str, base: Path) -> str:
    """Markdown of a page in the folder `base`, its links as of a page in docs/."""
    return LINK.sub(lambda match: target(match[1], base), markdown)


def target(link: str, base: Path) -> str:
    """A link of a page in `base`, as of a page in docs/; of a file outside, its page."""
    path = local(link, base)
    if path is None:
        return link
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    return name if name in ROOT_PAGES else f"source/{name}.md"


def local(link: str, base: Path) -> Path | None:
    """The file of the project that a link leads to."""
    path = (base / link).resolve()
    inside = not re.match(r"\w+:", link) and path.is_relative_to(ROOT)
    return path if inside and path.is_file() else None


def sources(page: Path, base: Path) -> Iterator[Path]:
    """Files outside docs/ that a page links to, without those that are pages of their own."""
    for match in LINK.finditer(page.read_text(encoding="utf-8")):
        path = local(match[1], base)
        if path and not path.is_relative_to(DOCS) and path.name not in ROOT_PAGES:
            yield path


def shown(source: Path) -> str:
    """A page with the text of a file, or with the cells of a notebook."""
    if source.suffix == ".ipynb":
        from tools import notebooks

        return notebooks.markdown(notebooks.read(source))
    fence = "~~~~"
    name = source.relative_to(ROOT).as_posix()
    text = source.read_text(encoding="utf-8")
    return f"# {name}\n\n{fence}{LANGUAGES.get(source.suffix, 'text')}\n{text}{fence}\n"
