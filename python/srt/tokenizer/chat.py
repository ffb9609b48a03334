"""ChatTemplate: a model's jinja2 template turns messages into prompt text, in a sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MARK = "\ue000\ue001\ue000"  # private-use characters: where the last message's content ends


class ChatTemplateError(ValueError):
    """The template cannot render these messages."""


class _Generation(Extension):
    """``{% generation %}``: marks what the model wrote, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template. Raises ChatTemplateError where ``source`` is no template.

    ``specials`` are the names a template may use for control tokens (``bos_token``, ...).
    """

    def __init__(self, source: str, specials: Mapping[str, str]) -> None:
        self.source, self._specials = source, dict(specials)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template is not valid jinja2: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The prompt. Raises ChatTemplateError.

        With ``continue_final_message`` the text ends where the last message's content does, so
        that the model goes on with it.
        """
        talk = [dict(message) for message in messages]
        if continue_final_message:
            content = talk[-1].get("content") if talk else None
            if not isinstance(content, str):
                raise ChatTemplateError("continue_final_message needs a last message with text")
            talk[-1]["content"] = content + _MARK
            add_generation_prompt = False
        values = {
            **self._specials,
            **variables,
            "messages": talk,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._template.render(values)
        except RecursionError as error:
            raise ChatTemplateError("the chat template recurses without end") from error
        except Exception as error:  # a template may raise anything Python can
            raise ChatTemplateError(f"the chat template refused the messages: {error}") from error
        if not continue_final_message:
            return text
        head, mark, _ = text.rpartition(_MARK)
        if not mark:
            raise ChatTemplateError("the chat template drops the last message's content")
        return head


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
