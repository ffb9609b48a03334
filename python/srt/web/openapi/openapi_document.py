"""The OpenAPI document of /openapi.json, made from the types of the routes."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_type_hints

import msgspec
from sglang.srt.core.request_stats import RequestCounts
from sglang.srt.web.exchange.error_replies import CODES, anthropic, ollama
from sglang.srt.web.openapi.examples import EXAMPLES
from sglang.srt.web.openapi.limits import Schema, fields_of, query_schemas, sampling_schema
from sglang.srt.web.openapi.native_shapes import (
    AnthropicErrorReply,
    ErrorReply,
    Event,
    OllamaErrorReply,
)
from sglang.srt.web.openapi.rules import ruled, ruled_at
from sglang.srt.web.page.page_files import CHALLENGE
from sglang.srt.web.route import EVENTS, FORM, JSON, Route

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_ANYWHERE = (400, 403, 408, 431, 500, 503)  # no HTTP, another host, a slow client, no engine
_PHRASES = {
    400: "It cannot be honoured",
    401: "No key, or a wrong one",
    403: "Not for this caller",
    404: "There is no such thing",
    408: "It did not come in time",
    409: "It was done before, in another way",
    410: "It has ended",
    413: "The body is too large",
    415: "The body is no plain JSON in UTF-8",
    429: "Too many requests",
    431: "The headers are too large",
    500: "A fault of the server",
    503: "No more requests are taken, or the engine is lost",
}
_HEADERS: dict[str, Schema] = {
    "x-request-id": {
        "description": "The request's id: the client's own, or a new one.",
        "required": True,
        "schema": {"type": "string"},
    },
    "Retry-After": {
        "description": "Seconds to wait.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "WWW-Authenticate": {"schema": {"enum": ["Bearer", CHALLENGE]}},
}
_KEYS: dict[str, Schema] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "basic": {"type": "http", "scheme": "basic", "description": "The password is the key."},
}

_ANTHROPIC, _OLLAMA = "Anthropic-", "Ollama-"  # before the statuses of their errors

Schemas = Mapping[Any, Schema]  # by the type


def document(
    routes: Sequence[Route], title: str, version: str, secured: Callable[[str], bool]
) -> Schema:
    """Return the document of these routes. ``secured``: returns whether a path needs a key."""
    bodies = dict.fromkeys(route.body for route in routes if route.body is not None)
    replies = [route.reply for route in routes if route.reply is not None]
    types = [
        *bodies,
        *dict.fromkeys(replies),
        ErrorReply,
        AnthropicErrorReply,
        OllamaErrorReply,
        Event,
    ]
    found, components = msgspec.json.schema_components(types, ref_template=_REF)
    schemas = dict(zip(types, found))
    for body in bodies:
        for kind in (body, *_structs_in(body)):
            component = components[kind.__name__]
            component["properties"] = fields_of(kind, component["properties"])
        components[body.__name__] = ruled(body.__name__, components[body.__name__])
    meta = components["CompletionMeta"]  # counts have defaults, and an answer has all counts
    meta["required"] = [*RequestCounts.__struct_fields__, *meta["required"]]
    one = {"$ref": _REF.format(name="SamplingParams")}
    several = {"anyOf": [one, {"type": "array", "items": one}, {"type": "null"}]}
    components["GenerateRequest"]["properties"]["sampling_params"] = several
    components["SamplingParams"] = sampling_schema()
    paths: defaultdict[str, Schema] = defaultdict(dict)
    for route in routes:
        path, closed = _PARAMETER.sub(r"{\1}", route.path), secured(route.path)
        paths[path][route.method.lower()] = _operation(route, path, schemas, closed)
    known = {"schemas": components, "responses": dict(_failures(schemas)), "headers": _HEADERS}
    if any(map(secured, paths)):
        known["securitySchemes"] = _KEYS
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": known,
    }


def _structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs that are direct values of a body's fields."""
    for hint in get_type_hints(kind).values():
        for one in get_args(hint):
            if isinstance(one, type) and issubclass(one, msgspec.Struct):
                yield one


def _operation(route: Route, path: str, schemas: Schemas, secured: bool) -> Schema:
    said = inspect.getdoc(route.handler) or (route.body and inspect.getdoc(route.body)) or path
    words = re.sub(r"\W+", "_", path).strip("_")
    failures = {str(status): _failure(route, status) for status in _statuses(route, secured)}
    found: Schema = {
        "operationId": f"{route.method.lower()}_{words}",
        "description": said.replace("``", "`"),
        "parameters": [*_in_path(route), *_in_query(route)],
        "responses": {"200": _success(route, schemas), **failures},
    }
    if route.body is not None:
        examples = {str(i): {"value": body} for i, body in enumerate(EXAMPLES[route.path], 1)}
        content = {JSON: {"schema": ruled_at(path, schemas[route.body]), "examples": examples}}
        found["requestBody"] = {"required": not route.optional, "content": content}
    if route.form:
        found["requestBody"] = {"required": True, "content": {FORM: {"schema": _form(route)}}}
    if secured:
        found["security"] = [{name: []} for name in _KEYS if name != "basic" or route.page]
    return found


def _form(route: Route) -> Schema:
    text: Schema = {"type": "string"}
    fields = {name: {**text, "format": "binary"} if name == "file" else text for name in route.form}
    return {"type": "object", "properties": fields, "required": ["file", "purpose"]}


def _in_path(route: Route) -> Iterator[Schema]:
    for name in _PARAMETER.findall(route.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _in_query(route: Route) -> Iterator[Schema]:
    if route.query is not None:
        for name, schema in query_schemas(route.query).items():
            yield {"name": name, "in": "query", "schema": schema}


def _success(route: Route, schemas: Schemas) -> Schema:
    known = {JSON: schemas.get(route.reply, {}), EVENTS: schemas[Event]}
    content = {media: {"schema": known.get(media, {"type": "string"})} for media in route.media}
    return {"description": "OK", "headers": _headers("x-request-id"), "content": content}


def _statuses(route: Route, secured: bool) -> list[int]:
    """Return the error statuses that a route may answer with."""
    found = list(_ANYWHERE)
    if secured:
        found.append(401)
    named = {"lora_name", "lora_path", "model", "name"} & set(
        getattr(route.body, "__struct_fields__", ())
    )
    if "{" in route.path or named:
        found.append(404)
    if {"semantic_var_id", "placeholders"} & set(getattr(route.body, "__struct_fields__", ())):
        found += (404, 409, 410)
    if route.body is not None or route.form:
        found += (413, 415)
    if route.method == "POST" or route.streams:
        found.append(429)
    return sorted(found)


def _failure(route: Route, status: int) -> Schema:
    kind = _ANTHROPIC if anthropic(route.path) else _OLLAMA if ollama(route.path) else ""
    return {"$ref": f"#/components/responses/{kind}{status}"}


def _failures(schemas: Schemas) -> Iterator[tuple[str, Schema]]:
    """Yield the error responses that ``_failure`` refers to, by name."""
    headers = {401: ["WWW-Authenticate"], 429: ["Retry-After"], 503: ["Retry-After"]}
    replies = {"": ErrorReply, _ANTHROPIC: AnthropicErrorReply, _OLLAMA: OllamaErrorReply}
    for kind, reply in replies.items():
        for status, phrase in _PHRASES.items():
            codes = ", ".join(code for code, (of, _) in CODES.items() if of == status)
            yield (
                f"{kind}{status}",
                {
                    "description": f"{phrase}: {codes}.",
                    "headers": _headers("x-request-id", *headers.get(status, ())),
                    "content": {JSON: {"schema": schemas[reply]}},
                },
            )


def _headers(*names: str) -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
