"""The reference page: all of the document is on it, and nothing of it is markup or loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from helpers.http_server import is_error
from helpers.scripted_server import Paced, serve_scripted
from helpers.toy_tokenizer import byte_level
from sglang.srt.core.version import __version__
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.openapi.reference_page import reference


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_scripted(Paced(Tokenizer(byte_level(tmp_path_factory.mktemp("model"))))) as url:
        yield url


class Seen(HTMLParser):
    """Tags, ids and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.ids, self.links = set[str](), list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert name in ("id", "href", "lang", "charset", "name", "content"), (tag, name)
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.append(value or "")


def test_every_operation_and_object_is_there_once(url: str) -> None:
    told, reply = httpx.get(f"{url}/openapi.json").json(), httpx.get(f"{url}/docs")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    seen = Seen(reply.text)
    operations = [op["operationId"] for ops in told["paths"].values() for op in ops.values()]
    schemas = [f"schema-{name}" for name in told["components"]["schemas"]]
    assert sorted(seen.ids) == sorted([*operations, *schemas])
    assert {link.removeprefix("#") for link in seen.links if link != "/openapi.json"} <= {*seen.ids}
    assert not seen.tags & {"script", "link", "img", "iframe", "form"}
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


HOSTILE = "<img src=x onerror=alert(1)>\"'`<b>`"


def test_no_text_of_the_document_is_markup() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "description": HOSTILE,
        "properties": {HOSTILE: {"enum": [HOSTILE], "description": HOSTILE}},
    }
    operation = {
        "operationId": HOSTILE,
        "description": HOSTILE,
        "parameters": [{"name": HOSTILE, "in": "query", "schema": schema}],
        "requestBody": {
            "content": {"a/b": {"schema": schema, "examples": {"1": {"value": HOSTILE}}}}
        },
        "responses": {"200": {"content": {HOSTILE: {"schema": schema}}}},
    }
    page = reference({
        "info": {"title": HOSTILE, "version": HOSTILE},
        "paths": {f"/{HOSTILE}": {"get": operation}},
        "components": {"schemas": {HOSTILE: schema}},
    })  # fmt: skip
    assert not Seen(page).tags & {"img", "b"}


def test_version_and_props(url: str) -> None:
    assert httpx.get(f"{url}/version").json() == {"version": __version__}
    props = httpx.get(f"{url}/props").json()
    assert props["default_generation_settings"]["n_ctx"] > 0
    assert "<|im_start|>" in props["chat_template"]
    assert re.fullmatch(r"sglang \S+", props["build_info"])


def test_moderations_say_which_model_they_need(url: str) -> None:
    error = is_error(httpx.post(f"{url}/v1/moderations", json={"input": "a"}), 400)
    assert error["code"] == "unsupported"
    assert "ForSequenceClassification" in error["message"]
