"""Message parts: texts, images and videos of a message, in the form of a chat template's input.

A template that supports parts gets them, and writes the placeholder of each image itself. A
template that takes only text gets text with a random mark for each image. After rendering, the
marks are replaced by placeholders. So no text of a request can pass for an image.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from sglang.srt.requests.media_input.sources import MediaSource, source_of
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer.jinja_chat_template import JinjaChatTemplate

_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_MEDIA = {
    "image_url": "image", "input_image": "image", "image": "image", "video_url": "video",
    "video": "video",
}  # fmt: skip
_NONCE = secrets.token_hex(8)
MARKS = {kind: f"\ufdd0{_NONCE}{kind}\ufdd0" for kind in ("image", "video")}

Part = str | MediaSource


def read_content(where: str, role: str, content: Any) -> str | list[Part]:
    """Return the text of a message, or its parts if it has images or videos. Raises
    RequestError."""
    if isinstance(content, list):
        parts = [_part(f"{where}.content[{i}]", part) for i, part in enumerate(content)]
        if all(isinstance(part, str) for part in parts):
            return "".join(map(str, parts))
        if role != "user":
            raise RequestError(
                f"{where} is a message of role {role!r} with an image or a video; only those of "
                "the user may have some.",
                "messages",
                "unsupported",
            )
        return parts
    if not isinstance(content, str):
        raise RequestError(f"{where}.content must be text or a list of parts.", "messages")
    return content


def _part(where: str, part: Any) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _MEDIA:
        value = part.get(kind) if kind != "input_image" else part.get("image_url")
        return source_of(_MEDIA[kind], value, f"{where}.{kind}")
    text = part.get(_TEXTS[kind]) if isinstance(kind, str) and kind in _TEXTS else None
    if isinstance(text, str):
        return text
    if kind in _TEXTS:
        raise RequestError(f"{where} is a part without {_TEXTS[kind]}.", "messages")
    raise RequestError(
        f"{where} is a part of type {kind!r:.60}; text, image_url and video_url are available.",
        "messages",
        "unsupported",
    )


def template_content(content: str | Sequence[Part]) -> str | list[dict[str, Any]]:
    """Return a content for a template: media parts only have their type, without a source."""
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind}
        for part in content
    ]


def shaped(
    messages: Sequence[Mapping[str, Any]], template: JinjaChatTemplate | None, media: bool
) -> list[dict[str, Any]]:
    """Return the messages with contents in the form that the template takes. ``media``: some
    messages have images or videos."""
    if template is None:
        return [dict(message) for message in messages]
    kinds = {part["type"] for message in messages if media for part in _parts(message)}
    lists = all(template.takes(kind) for kind in kinds - {"text"})
    return [{**m, "content": _shaped(m.get("content"), template, lists)} for m in messages]


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _shaped(content: Any, template: JinjaChatTemplate, lists: bool) -> Any:
    if isinstance(content, str):
        return content if template.takes_text else [{"type": "text", "text": content}]
    if lists or not isinstance(content, list):
        return content
    return "".join(MARKS.get(part["type"]) or part["text"] for part in content)


def marked(text: str, placeholders: Mapping[str, str]) -> str:
    """Return the rendered text with the marks replaced by the model's placeholders."""
    for kind, mark in MARKS.items():
        if mark in text:
            token = placeholders[kind]
            if token.startswith("<") and token.count("<") == 1:
                # The format of LLaVA's training: an image, a line break, the text.
                text = text.replace(f"{mark}\n", mark)
                token = f"{token}\n"
            text = text.replace(mark, token)
    return text
