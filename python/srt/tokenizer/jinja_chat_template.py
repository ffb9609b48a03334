"""JinjaChatTemplate: renders messages to prompt text by a model's jinja2 template, in a sandbox."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

import jinja2
from sglang.srt.tokenizer.template_budget import (
    SECONDS,
    TooMuchError,
    TooSlowError,
    limited,
    weigh,
)
from sglang.srt.tokenizer.template_sandbox import Sandbox

__all__ = ["SECONDS", "ChatTemplateError", "JinjaChatTemplate", "SlowTemplateError"]

LONGEST = 1 << 20  # characters of a template
REASON = 2000  # characters of a template's own error
_PROBE = "probe"
_MARK = "\ue000\ue001\ue000"  # private-use characters: marks the end of the last message's content


class ChatTemplateError(ValueError):
    """The template cannot render these messages."""


class SlowTemplateError(ChatTemplateError):
    """The template exceeded its time."""


class JinjaChatTemplate:
    """A compiled template. Raises ChatTemplateError if ``source`` is not a valid template.

    ``specials``: control tokens by the names of the template's variables (``bos_token``, ...).
    """

    def __init__(self, source: str, specials: Mapping[str, str]) -> None:
        self.source, self._specials = source, dict(specials)
        self._takes: dict[str, bool] = {}
        if len(source) > LONGEST:
            raise ChatTemplateError(
                f"the chat template has {len(source)} characters; at most {LONGEST}"
            )
        environment = Sandbox()
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        try:
            with limited(SECONDS):
                self._template = environment.from_string(source)
        except RecursionError as error:
            raise ChatTemplateError("the chat template is nested too deep") from error
        except Exception as error:  # constants are computed while compiling
            raise ChatTemplateError(f"the chat template is not valid jinja2: {error}") from error

    @cached_property
    def takes_text(self) -> bool:
        """Whether a message's content may be text. True also for a template that supports no parts,
        so that its own error message reports the accepted form."""
        return _PROBE in self._probed(_PROBE) or not self.takes("image")

    def takes(self, kind: str) -> bool:
        """Whether the template writes something for a part of kind "image" or "video"."""
        if kind not in self._takes:
            text = {"type": "text", "text": _PROBE}
            alone, both = self._probed([text]), self._probed([{"type": kind}, text])
            plain = _PROBE in both and repr(_PROBE) not in both  # text, and not a Python literal
            self._takes[kind] = plain and both != alone
        return self._takes[kind]

    def _probed(self, content: Any) -> str:
        """Return the prompt of one user message; "" if the template refuses it."""
        try:
            return self.render([{"role": "user", "content": content}])
        except ChatTemplateError:
            return ""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        seconds: float = SECONDS,
        **variables: Any,
    ) -> str:
        """Return the prompt. Raises ChatTemplateError, and SlowTemplateError after ``seconds``.

        With ``continue_final_message`` the prompt ends at the end of the last message's content, so
        that the model continues it.
        """
        talk = [dict(message) for message in messages]
        if continue_final_message:
            content = talk[-1].get("content") if talk else None
            if isinstance(content, list) and len(content) == 1 and "text" in content[0]:
                talk[-1]["content"] = [{**content[0], "text": content[0]["text"] + _MARK}]
            elif isinstance(content, str):
                talk[-1]["content"] = content + _MARK
            else:
                raise ChatTemplateError("continue_final_message needs a last message with text")
            add_generation_prompt = False
        values = {
            **self._specials,
            **variables,
            "messages": talk,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._rendered(values, seconds)
        if not continue_final_message:
            return text
        head, mark, _ = text.rpartition(_MARK)
        if not mark:
            raise ChatTemplateError("the chat template drops the last message's content")
        return head

    def _rendered(self, values: dict[str, Any], seconds: float) -> str:
        try:
            with limited(seconds):
                return self._template.render(values)
        except TooSlowError as error:
            raise SlowTemplateError(f"the chat template was stopped: {error}") from error
        except TooMuchError as error:
            raise ChatTemplateError(f"the chat template was stopped: {error}") from error
        except RecursionError as error:
            raise ChatTemplateError("the chat template recurses without end") from error
        except Exception as error:  # a template may raise any exception
            raise ChatTemplateError(f"the chat template refused the messages: {error}") from error


def _refuse(message: Any) -> NoReturn:
    raise jinja2.TemplateError(str(weigh(message))[:REASON])


def _now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
