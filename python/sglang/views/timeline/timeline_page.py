"""Page: a trace as one HTML file that needs nothing else and may load nothing."""

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
    """The page. Whatever the texts of a trace are, in it they are data."""
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
    """JSON that can stand in a script element: it ends none and begins none."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), default=repr)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _title(groups: list[dict[str, Any]]) -> str:
    """The programs, those that ran most often first."""
    names = [name for name, _ in Counter(group["name"] for group in groups).most_common()]
    several = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + several if names else "nothing ran"


def _hash(text: str) -> str:
    """The name of an inline script or style in a content security policy."""
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
