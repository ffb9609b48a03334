"""Reference pages of the documentation, as Markdown, from the code itself: the API, the flags of
`sglang serve`, the routes of the server and its metrics.

    python -m tools.reference flags        print one of api, flags, routes, metrics
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import sglang
from sglang.srt.config import Config
from sglang.srt.config.translation import option
from sglang.srt.web.openapi.openapi_document import document
from sglang.srt.web.routes import ROUTES
from sglang.srt.web.telemetry.metrics import Metrics
from sglang.version import __version__

Schema = Mapping[str, Any]


def cell(text: object) -> str:
    """Text as one cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def table(*columns: str) -> list[str]:
    """The first two lines of a table."""
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]


def api() -> str:
    """All names of the package `sglang`, with signatures and docstrings by mkdocstrings."""
    functions: list[str] = []
    classes: list[str] = []
    errors: list[str] = []
    for name in sorted(sglang.__all__):
        value = getattr(sglang, name)
        if inspect.isclass(value):
            kind = errors if issubclass(value, Exception) else classes
        elif inspect.isfunction(value):
            kind = functions
        else:
            continue
        kind.append(f"::: {value.__module__}.{value.__name__}\n")
    page = ["# API\n", "All names of `import sglang as sgl`; [language.md](../language.md) explains"
            " them with programs.\n"]  # fmt: skip
    for title, found in (("Functions", functions), ("Classes", classes), ("Errors", errors)):
        page += [f"## {title}\n", *found]
    return "\n".join(page)


def flags() -> str:
    """Every setting: a flag of `sglang serve` and an argument of `Engine` and `Runtime`."""
    page = [
        "# Flags\n",
        "Give a flag to `sglang serve`, or the same name with underscores to `sglang.Engine(...)`"
        " and `sglang.Runtime(...)`: `--page-size 16` is `Engine(page_size=16)`. A flag that is on"
        " or off has a second form, `--no-NAME`.\n",
    ]
    for section in dataclasses.fields(Config):
        kind: Any = section.default_factory
        page += [f"## {section.name.replace('_', ' ').capitalize()}\n", f"{inspect.getdoc(kind)}\n"]
        page += table("flag", "default", "meaning")
        for field in dataclasses.fields(kind):
            choices = field.metadata["choices"]
            meaning = cell(field.metadata["help"])
            if choices:
                meaning += "; one of " + ", ".join(f"`{one}`" for one in choices)
            page.append(f"| `{option(field.name)}` | {default(field.default)} | {meaning} |")
        page.append("")
    return "\n".join(page)


def default(value: Any) -> str:
    """The default of a flag or a field as a cell."""
    if value is None or value in ("", ()) or value is dataclasses.MISSING:
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{cell(value)}`"


def routes() -> str:
    """Every route with its body, an example and the statuses of its errors."""
    found = document(ROUTES, "sglang", __version__, lambda path: False)
    schemas = found["components"]["schemas"]
    page = [
        "# Routes\n",
        "Every route of the server, from its own OpenAPI document (`/openapi.json`)."
        " [http.md](../http.md) explains them.\n",
        *table("route", "for"),
    ]
    details: list[str] = []
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            title = f"{method.upper()} {path}"
            first = re.split(r"(?<=\.)\s", operation["description"])[0]
            page.append(f"| [`{title}`](#{slug(title)}) | {cell(first)} |")
            details += [f"## {title}\n", f"{prose(operation['description'])}\n"]
            details += body(operation.get("requestBody"), schemas)
            statuses = [status for status in operation["responses"] if status != "200"]
            details.append(f"Errors: {', '.join(statuses)}.\n")
    return "\n".join([*page, "", *details])


def slug(title: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def prose(text: str) -> str:
    """A docstring as Markdown: braces and angle brackets of templates stay text."""
    return text.replace("<", "&lt;")


def body(request: Schema | None, schemas: Schema) -> Iterator[str]:
    """The fields of a request's body, and the first example of one."""
    if request is None:
        return
    content = next(iter(request["content"].values()))
    examples = [example["value"] for example in content.get("examples", {}).values()]
    if examples:
        yield f"```json\n{json.dumps(examples[0], indent=2, ensure_ascii=False)}\n```\n"
    properties = resolved(content["schema"], schemas).get("properties")
    if not properties:
        return
    yield from table("field", "type", "default", "limits")
    for name, schema in properties.items():
        shown = default(schema["default"]) if "default" in schema else ""
        yield f"| `{name}` | {cell(kind_of(schema))} | {shown} | {cell(limits(schema))} |"
    yield ""


def resolved(schema: Schema, schemas: Schema) -> Schema:
    """The schema that a reference names; of several alternatives the first with fields."""
    if "$ref" in schema:
        return resolved(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for part in (*schema.get("allOf", ()), *schema.get("anyOf", ())):
        if "properties" in (found := resolved(part, schemas)) and "properties" not in schema:
            return found
    return schema


def kind_of(schema: Schema) -> str:
    """The type of a field in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(kind_of(one) for one in schema[several]))
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"array of {kind_of(schema.get('items') or {})}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


LIMITS = {
    "minimum": "at least {}", "exclusiveMinimum": "above {}", "maximum": "at most {}",
    "exclusiveMaximum": "below {}", "minLength": "at least {} characters",
    "maxLength": "at most {} characters", "minItems": "at least {} entries",
    "maxItems": "at most {} entries", "minProperties": "at least {} properties",
    "maxProperties": "at most {} properties",
}  # fmt: skip


def limits(schema: Schema) -> str:
    """Bounds of a field, of all its alternatives."""
    parts = [schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    found = [
        text.format(part[key]) for part in parts for key, text in LIMITS.items() if key in part
    ]
    return ", ".join(dict.fromkeys(found))


def metrics() -> str:
    """Every metric of `/metrics`, of a server that has not answered yet."""
    page = [
        "# Metrics\n",
        "`GET /metrics` answers in Prometheus' text format. Every metric has the label"
        " `model_name`, the served name. [operations.md](../operations.md) says which to watch, and"
        " `docs/grafana/sglang.json` is a dashboard of them.\n",
        *table("metric", "kind", "what it counts"),
    ]
    kinds = {}
    text = Metrics("model").render().decode()
    for name, kind in re.findall(r"(?m)^# TYPE (\S+) (\w+)$", text):
        kinds[name] = kind
    for name, meaning in re.findall(r"(?m)^# HELP (\S+) (.*)$", text):
        page.append(f"| `{name}` | {kinds[name]} | {cell(meaning)} |")
    return "\n".join([*page, ""])


PAGES: Mapping[str, Callable[[], str]] = {
    "api": api,
    "flags": flags,
    "routes": routes,
    "metrics": metrics,
}


if __name__ == "__main__":
    print(PAGES[sys.argv[1]]())
