"""Reference page: shows /openapi.json as one page of HTML, which the server renders without a
script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Schema = Mapping[str, Any]

GROUPS = {
    "/v1/": "OpenAI's API, Anthropic's, and programs",
    "/api/": "Ollama's API",
    "/": "The server, and its native routes",
}
"""Titles of groups of routes by the beginnings of their paths, the longest first."""

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: auto; padding: 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere; }
pre { overflow: auto; padding: .5rem; border: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; }
th, td { text-align: left; vertical-align: top; padding: .2rem .5rem .2rem 0;
  border-bottom: 1px solid color-mix(in srgb, currentColor 15%, transparent); overflow-wrap: anywhere; }
section { margin: 2rem 0; } h3 { margin-bottom: .2rem; } summary { cursor: pointer; }
nav ul { columns: 18rem; padding-left: 1rem; } nav li { break-inside: avoid; }
"""  # noqa: E501
_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; "
    f"frame-ancestors 'none'; style-src 'sha256-{_DIGEST}'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def reference(document: Schema) -> str:
    """Return the page of an OpenAPI document."""
    info = document["info"]
    title = f"{escape(info['title'])} {escape(info['version'])}"
    groups: dict[str, list[tuple[str, str, Schema]]] = {name: [] for name in GROUPS.values()}
    for path, operations in document["paths"].items():
        group = next(name for begin, name in GROUPS.items() if path.startswith(begin))
        groups[group] += [(method.upper(), path, op) for method, op in operations.items()]
    body = "".join(
        f"<h2>{escape(group)}</h2>{''.join(map(_operation, ops))}" for group, ops in groups.items()
    )
    schemas = document["components"]["schemas"]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style><h1>{title}</h1>"
        '<p>Every route of this server, as <a href="/openapi.json">/openapi.json</a> describes it.'
        f"</p><nav>{''.join(_links(groups))}</nav><main>{body}<h2>Objects</h2>"
        f"{''.join(_object(name, schemas[name]) for name in sorted(schemas))}</main></html>"
    )


def _links(groups: Mapping[str, list[tuple[str, str, Schema]]]) -> Iterator[str]:
    for group, operations in groups.items():
        items = "".join(
            f'<li><a href="#{escape(op["operationId"])}">{method} {escape(path)}</a>'
            for method, path, op in operations
        )
        yield f"<details><summary>{escape(group)}</summary><ul>{items}</ul></details>"


def _operation(found: tuple[str, str, Schema]) -> str:
    method, path, op = found
    parts = [
        f'<section id="{escape(op["operationId"])}"><h3>{method} <code>{escape(path)}</code></h3>',
        _words(op.get("description", "")),
    ]
    if parameters := op.get("parameters"):
        rows = [
            (one["name"], one["schema"], bool(one.get("required")), f"In the {one['in']}.")
            for one in parameters
        ]
        parts.append(_table("Parameter", rows))
    for media, content in op.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body: <code>{escape(media)}</code>, {_kind(content['schema'])}</p>")
        for number, example in enumerate(content.get("examples", {}).values(), 1):
            text = json.dumps(example["value"], indent=2, ensure_ascii=False)
            parts.append(
                f"<details><summary>Example {number}</summary><pre>{escape(text)}</pre></details>"
            )
    parts.append(f"<p>Answers: {'; '.join(map(_response, op['responses'].items()))}.</p></section>")
    return "".join(parts)


def _response(found: tuple[str, Schema]) -> str:
    status, response = found
    content = response.get("content", {})
    kinds = (f"<code>{escape(m)}</code> {_kind(c.get('schema', {}))}" for m, c in content.items())
    return f"{escape(status)} {', '.join(kinds)}".strip()


def _object(name: str, schema: Schema) -> str:
    needed = schema.get("required", ())
    rows = [(field, of, field in needed, "") for field, of in schema.get("properties", {}).items()]
    more = _table("Field", rows) if rows else f"<p>{_kind({**schema, 'title': None})}</p>"
    return (
        f'<section id="schema-{escape(name)}"><h3><code>{escape(name)}</code></h3>'
        f"{_words(schema.get('description', ''))}{more}</section>"
    )


def _table(title: str, rows: list[tuple[str, Schema, bool, str]]) -> str:
    """Return a table with name, schema, whether it is required, and description, one a row."""
    lines = "".join(
        f"<tr><td><code>{escape(name)}</code>{' (required)' if needed else ''}<td>{_kind(schema)}"
        f"<td>{_words(schema.get('description', '') or words, 'span')}"
        for name, schema, needed, words in rows
    )
    return f"<table><tr><th>{title}<th>Type<th>{lines}</table>"


def _kind(schema: Any) -> str:
    """Return the type of a schema in a few words."""
    if not isinstance(schema, Mapping):
        return "anything" if schema else "nothing"
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    for key, between in (("anyOf", " or "), ("oneOf", " or "), ("allOf", " and ")):
        if key in schema:
            return between.join(dict.fromkeys(map(_kind, schema[key])))
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"<code>{escape(json.dumps(value))}</code>" for value in values)
    kind = schema.get("type", "anything")
    kind = " or ".join(kind) if isinstance(kind, list) else kind
    if kind == "array":
        return f"array of {_kind(schema.get('items', True))}"
    return escape(kind) + _bounds(schema)


def _bounds(schema: Schema) -> str:
    words = {
        "minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most",
        "maxLength": "characters at most", "format": "format",
    }  # fmt: skip
    found = [f"{said} {schema[key]}" for key, said in words.items() if key in schema]
    return escape(f" ({', '.join(found)})") if found else ""


def _words(text: str, tag: str = "p") -> str:
    """Return a description as HTML. Text in backquotes becomes ``<code>``."""
    shown = re.sub(r"`+([^`]+)`+", r"<code>\1</code>", escape(text))
    return f"<{tag}>{shown}</{tag}>" if text else ""
