"""The documentation's generated parts: reference pages, diagrams, and links of the site."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import sglang
from helpers.paths import ROOT
from sglang.srt.config import Config
from sglang.srt.config.translation import option
from sglang.srt.web.routes import ROUTES

from tools import diagrams, reference, site_hooks

DOCS = ROOT / "docs"


def test_flags_has_every_setting_once() -> None:
    page = reference.flags()
    found = re.findall(r"(?m)^\| `(--[\w-]+)` \|", page)
    assert sorted(found) == sorted(option(name) for name in Config().settings())
    assert "| `--page-size` | `1` |" in page
    assert not re.search(r"(?m)^\|[^|]*\|[^|]*\|[^|]*[^\\]\|[^|]+\|$", page), "a cell is cut"


def test_routes_has_every_route_and_runnable_examples() -> None:
    page = reference.routes()
    headings = re.findall(r"(?m)^## (\w+ \S+)$", page)
    assert len(headings) == len(set(headings)) == len({(r.method, r.path) for r in ROUTES})
    for path in ("/generate", "/v1/chat/completions", "/v1/messages"):
        section = page.split(f"## POST {path}\n")[1].split("\n## ")[0]
        assert json.loads(re.findall(r"```json\n(.*?)```", section, re.DOTALL)[0])
        assert "| field | type | default | limits |" in section
    linked = re.findall(r"\(#([\w-]+)\)", page)
    assert {reference.slug(title) for title in headings} == set(linked)


def test_metrics_has_every_family_with_a_kind() -> None:
    rows = re.findall(r"(?m)^\| `(sglang:\w+)` \| (\w+) \| (\S.*) \|$", reference.metrics())
    kinds = {name: kind for name, kind, _ in rows}
    assert len(kinds) == len(rows) > 80
    assert kinds["sglang:num_running_reqs"] == "gauge"
    assert kinds["sglang:time_to_first_token_seconds"] == "histogram"


def test_api_names_every_function_and_class() -> None:
    page = reference.api()
    named = {line.rpartition(".")[2] for line in re.findall(r"(?m)^::: (\S+)$", page)}
    known = {
        getattr(sglang, name).__name__
        for name in sglang.__all__
        if callable(getattr(sglang, name)) and hasattr(getattr(sglang, name), "__name__")
    }
    assert named == known


def test_cell_keeps_a_table_whole() -> None:
    assert reference.cell("a | b\n<c>") == "a \\| b &lt;c>"


@pytest.mark.parametrize("name", sorted(diagrams.DIAGRAMS))
def test_diagrams_are_up_to_date(name: str) -> None:
    diagram = diagrams.DIAGRAMS[name]
    path = DOCS / "images" / f"{name}.svg"
    assert path.read_text(encoding="utf-8") == diagrams.svg(diagram), "python -m tools.diagrams"
    frames = [diagrams.frame(box) for box in diagram.boxes.values()]
    for number, one in enumerate(frames):
        for other in frames[:number]:
            apart = one.left >= other.right or other.left >= one.right
            assert apart or one.top >= other.bottom or other.top >= one.bottom


def test_diagrams_arrows_join_boxes() -> None:
    for diagram in diagrams.DIAGRAMS.values():
        assert {key for arrow in diagram.arrows for key in arrow[:2]} <= diagram.boxes.keys()


@pytest.mark.parametrize(
    ("link", "base", "expected"),
    [
        ("http.md", DOCS, "http.md"),
        ("docs/http.md", ROOT, "http.md"),
        ("../examples/chat.py", DOCS, "source/examples/chat.py.md"),
        ("../CHANGELOG.md", DOCS, "CHANGELOG.md"),
        ("https://arxiv.org/abs/2312.07104", DOCS, "https://arxiv.org/abs/2312.07104"),
    ],
)
def test_site_links_stay_inside(link: str, base: Path, expected: str) -> None:
    assert site_hooks.target(link, base) == expected


def test_site_nav_names_every_page_once() -> None:
    nav = re.findall(r"(?m)^      - (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert len(nav) == len(set(nav))
    generated = {f"reference/{name}.md" for name in reference.PAGES} | set(site_hooks.ROOT_PAGES)
    assert set(nav) == {page.name for page in DOCS.glob("*.md")} | generated


@pytest.mark.parametrize(
    ("html", "fetched"),
    [
        ('<script src="https://elsewhere/x.js"></script>', True),
        ('<link rel="stylesheet" href="//fonts/x.css">', True),
        ('<a href="https://elsewhere">read</a>', False),
        ('<script src="assets/x.js"></script>', False),
    ],
)
def test_site_fetches_nothing_from_elsewhere(html: str, fetched: bool, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    assert bool(site_hooks.fetched(tmp_path)) is fetched


def test_site_shows_the_text_of_a_notebook() -> None:
    page = site_hooks.shown(ROOT / "examples" / "notebooks" / "programs.ipynb")
    assert page.startswith("# Programs\n")
    assert "```python\nimport sglang as sgl\n" in page
    assert "```text\n'9591'\n```" in page
