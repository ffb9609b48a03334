"""Chat session: a history with a server, line by line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from sglang.errors import SglangError
from sglang.terminal.chat_history import ChatHistory
from sglang.terminal.chat_stream import ChatServer
from sglang.terminal.chat_words import (
    ChatWordError,
    command_of,
    help_lines,
    message_of,
    printable,
    read_message,
    setting,
)


class ChatSession:
    """Turns of one chat.

    Attributes:
        history: the turns so far.
        model: the name that requests have.
        stats: whether tokens and speed are shown.
    """

    def __init__(
        self,
        server: ChatServer,
        history: ChatHistory,
        model: str,
        out: Callable[[str], None],
        stats: bool = False,
    ) -> None:
        self._server, self._out = server, out
        self.history, self.model, self.stats = history, model, stats

    def take(self, line: str, more: Callable[[], str]) -> bool:
        """Do what a line says; False where it ends the chat. ``more`` reads the lines of a longer
        message. Faults are printed: the chat goes on."""
        try:
            found = command_of(line)
            if found is None:
                text = message_of(read_message(line, more))
                if text.strip():
                    self.history.ask(text)
                    self.answer()
                return True
            name, rest = found
            if name == "exit":
                return False
            getattr(self, f"_{name}")(rest)
        except (ChatWordError, SglangError, OSError, ValueError) as error:
            self._out(f"{printable(str(error))}\n")
        return True

    def answer(self) -> bool:
        """Answer the last question. Return whether the answer came to its end, and was not stopped
        by Ctrl-C. Raises what failed.

        The text so far of an answer that failed or was stopped stays in the chat; one without
        text takes the question away.
        """
        body = {
            **self.history.settings,
            "model": self.model,
            "messages": self.history.messages,
        }
        shown = _Answer(self._out)
        try:
            with closing(self._server.stream(body)) as pieces:  # type: ignore[type-var]
                for piece in pieces:
                    shown.take(piece)
        except KeyboardInterrupt:
            self._out("\n(stopped)\n")
            self.history.answer(shown.text)
            return False
        except SglangError:
            self._out("\n" if shown.text or shown.reasoning else "")
            self.history.answer(shown.text)
            raise
        self._out("\n")
        if shown.finish == "length":
            self._out("(the answer reached its length limit; /set max_tokens=... raises it)\n")
        if not shown.text:
            self._out("(the answer is empty; the question was taken away)\n")
        self.history.answer(shown.text)
        if self.stats:
            self._out(f"({shown.figures()})\n")
        return True

    # Commands; each takes what follows its name.

    def _help(self, _: str) -> None:
        self._out("\n".join(help_lines()) + "\n")

    def _system(self, rest: str) -> None:
        if rest:
            self.history.set_system("" if rest == "-" else rest)
        else:
            self._out(f"{self.history.system or '(no system message)'}\n")

    def _set(self, rest: str) -> None:
        if not rest:
            self._out(f"{json.dumps(self.history.settings, ensure_ascii=False)}\n")
            return
        name, value = setting(rest)
        if value is None:
            self.history.settings.pop(name, None)
        else:
            self.history.settings[name] = value

    def _image(self, rest: str) -> None:
        count = self.history.attach(rest)
        self._out(f"({count} image{'s' if count > 1 else ''} with the next message)\n")

    def _retry(self, _: str) -> None:
        question = self.history.undo()
        if question is None:
            raise ChatWordError("there is no question to ask again")
        self.history.messages.append({"role": "user", "content": question})
        self.answer()

    def _undo(self, _: str) -> None:
        question = self.history.undo()
        if question is None:
            raise ChatWordError("there is nothing to take away")
        self._out(f"(taken away: {printable(_text(question))})\n")

    def _clear(self, _: str) -> None:
        self.history.clear()

    def _history(self, _: str) -> None:
        for message in self.history.messages:
            self._out(f"{message['role']}: {printable(_text(message['content']))}\n")

    def _save(self, rest: str) -> None:
        self.history.save(rest)

    def _load(self, rest: str) -> None:
        self.history.load(rest)
        self._out(f"({len(self.history.messages)} messages)\n")

    def _model(self, rest: str) -> None:
        names = self._server.models()
        if not rest:
            for name in names:
                self._out(f"{'*' if name == self.model else ' '} {printable(name)}\n")
        elif rest in names:
            self.model = rest
        else:
            raise ChatWordError(f"the server has no model {rest!r}; it has {', '.join(names)}")

    def _stats(self, _: str) -> None:
        self.stats = not self.stats
        self._out(f"(tokens and speed are {'shown' if self.stats else 'not shown'})\n")


class _Answer:
    """Prints an answer as it comes, and counts."""

    def __init__(self, out: Callable[[str], None]) -> None:
        self._out = out
        self.text = self.reasoning = self.finish = ""
        self._usage: dict[str, Any] = {}
        self._began = time.monotonic()
        self._first: float | None = None

    def take(self, piece: Any) -> None:
        if piece.reasoning:
            self._out(("" if self.reasoning else "(thinking) ") + printable(piece.reasoning))
        if piece.text:
            self._out(("\n\n" if self.reasoning and not self.text else "") + printable(piece.text))
        if self._first is None and (piece.text or piece.reasoning):
            self._first = time.monotonic()
        self.text += piece.text
        self.reasoning += piece.reasoning
        self.finish = piece.finish or self.finish
        self._usage = piece.usage or self._usage

    def figures(self) -> str:
        """Tokens and speed of the whole answer, in a line."""
        made, prompt = (_count(self._usage, f"{kind}_tokens") for kind in ("completion", "prompt"))
        cached = _count(self._usage.get("prompt_tokens_details"), "cached_tokens")
        first = (self._first or time.monotonic()) - self._began
        rest = time.monotonic() - self._began - first
        speed = f", {(made - 1) / rest:.0f} tokens/s" if made > 1 and rest > 0 else ""
        return (
            f"{prompt} prompt tokens, {cached} of them cached; first text after {first:.2f} s; "
            f"{made} tokens{speed}"
        )


def _count(usage: Any, name: str) -> int:
    """A count that a server tells, 0 where it tells none."""
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) else 0


def _text(content: Any) -> str:
    """A message's text; images as [image]."""
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "[image]") for part in content)
