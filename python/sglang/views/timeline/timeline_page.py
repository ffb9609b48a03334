"""Page: a trace as one self-contained HTML file, whose policy forbids loading other files."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from sglang.run.trace_record import TraceRecord
from sglang.views.timeline.trace_view import view_of

SCRIPTS = ("rows.js", "chart.js", "panel.js", "page.js")


def page_of(trace: TraceRecord) -> str:
    """Return the page. Texts of the trace are embedded as data, so that they cannot run as code."""
    assets = _assets()
    script = "".join(assets[name] for name in SCRIPTS)
    style = assets["page.css"]
    view = view_of(trace)
    return Template(assets["page.html"]).substitute(
        title=escape(_title(view["groups"])),
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; "
        f"script-src {_hash(script)}; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        data=embedded(view),
    )


def embedded(value: Any) -> str:
    """Return JSON for a script element, with &, < and > escaped."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=repr)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _title(groups: list[dict[str, Any]]) -> str:
    """Return the names of the three programs with the most runs, and the number of others."""
    names = [name for name, _ in Counter(group["name"] for group in groups).most_common()]
    several = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + several if names else "nothing ran"


def _hash(text: str) -> str:
    """Return the source expression of an inline script or style for the page's policy."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def _assets() -> dict[str, str]:
    folder = files("sglang.views.timeline").joinpath("assets")
    return {
        entry.name: entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith((".html", ".css", ".js"))
    }
