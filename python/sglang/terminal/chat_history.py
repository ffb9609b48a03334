"""ChatHistory: the turns of a chat as plain data, and the file it is kept in."""

from __future__ import annotations

import base64
import json
import mimetypes
from pathlib import Path
from typing import Any

from sglang.terminal.bounded_file import read_bounded, read_bounded_text

FORMAT = 1
MAX_IMAGE_BYTES = 32 << 20
MAX_CHAT_BYTES = 256 << 20
ROLES = ("system", "user", "assistant")


class ChatHistory:
    """Messages of OpenAI's form, a system message first where there is one.

    Attributes:
        messages: what is sent.
        settings: fields of the request, such as temperature.
    """

    def __init__(self, system: str = "", settings: dict[str, Any] | None = None) -> None:
        self.messages: list[dict[str, Any]] = []
        self.settings = dict(settings or {})
        self._images: list[str] = []  # data URLs of the next message
        if system:
            self.set_system(system)

    @property
    def system(self) -> str:
        first = self.messages[:1]
        return str(first[0]["content"]) if first and first[0]["role"] == "system" else ""

    def set_system(self, text: str) -> None:
        """Replace the system message; an empty text takes it away."""
        turns = self.messages[1:] if self.system else self.messages
        self.messages = ([{"role": "system", "content": text}] if text else []) + turns

    def ask(self, text: str) -> None:
        """Add a message of the user, with the images that were attached."""
        content: Any = text
        if self._images:
            images = [{"type": "image_url", "image_url": {"url": url}} for url in self._images]
            content = [*images, {"type": "text", "text": text}]
        self._images = []
        self.messages.append({"role": "user", "content": content})

    def answer(self, text: str) -> None:
        """Add the answer; an empty one takes the question away too."""
        if text:
            self.messages.append({"role": "assistant", "content": text})
        else:
            self.undo()

    def attach(self, path: str) -> int:
        """Attach an image file to the next message; how many it has then. Raises ValueError."""
        kind = mimetypes.guess_type(path)[0] or ""
        if not kind.startswith("image/"):
            raise ValueError(f"{path} is no image by its name; give a .png, .jpg or .webp file")
        try:
            data = base64.b64encode(read_bounded(path, MAX_IMAGE_BYTES)).decode()
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
        self._images.append(f"data:{kind};base64,{data}")
        return len(self._images)

    def undo(self) -> Any:
        """Take the last question and its answer away. Return the question; None without one."""
        while self.messages and self.messages[-1]["role"] != "system":
            last = self.messages.pop()
            if last["role"] == "user":
                return last["content"]
        return None

    def clear(self) -> None:
        """Take all turns away; the system message stays."""
        self.messages = self.messages[:1] if self.system else []
        self._images = []

    def save(self, path: str) -> None:
        """Write the conversation as JSON. Raises OSError."""
        whole = {"sglang_chat": FORMAT, "messages": self.messages, "settings": self.settings}
        text = json.dumps(whole, indent=1, ensure_ascii=False)
        Path(path).write_bytes(text.encode("utf-8", "replace"))

    def load(self, path: str) -> None:
        """Take the conversation of a file in place of this one. Raises ValueError and OSError."""
        try:
            found = json.loads(read_bounded_text(path, MAX_CHAT_BYTES))
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is no chat: {error}; give a file that /save wrote") from error
        if not isinstance(found, dict) or found.get("sglang_chat") != FORMAT:
            raise ValueError(f"{path} is no chat of format {FORMAT}; give a file that /save wrote")
        messages: Any = found.get("messages")
        settings = found.get("settings")
        if not _are_messages(messages) or not isinstance(settings, dict):
            raise ValueError(f"{path} is damaged: its messages are no list of roles and contents")
        self.messages, self.settings, self._images = messages, settings, []


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict)
        and one.get("role") in ROLES
        and _is_content(one.get("content"))
        and (one["role"] != "system" or i == 0)
        for i, one in enumerate(value)
    )


def _is_content(value: Any) -> bool:
    """Whether it is a text, or a list of texts and images."""
    return isinstance(value, str) or (
        isinstance(value, list)
        and all(isinstance(p, dict) and isinstance(p.get("text", ""), str) for p in value)
    )
