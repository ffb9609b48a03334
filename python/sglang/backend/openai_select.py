"""How an API of OpenAI takes one of several texts: by structured output, or by echoed prompts.

Each is a generator: it yields ``(path, body)``, is sent the reply, and returns the Decision.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any, TypeAlias

from sglang.backend.api import BadReply
from sglang.backend.base import Prompt
from sglang.backend.openai_exchange import Exchange, Service, brief, mapping, usage_of
from sglang.choices import ChoicesMethod, Decision, Scores, token_length_normalized
from sglang.errors import Unsupported
from sglang.params import GenParams

Steps: TypeAlias = Generator[tuple[str, dict[str, Any]], Any, Decision]
Row: TypeAlias = list[list[Any]]
COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens")


def by_schema(
    api: type[Exchange], service: Service, prompt: Prompt, options: Sequence[str],
    method: ChoicesMethod,
) -> Steps:  # fmt: skip
    """The reply may be nothing but one of the options. There are no log-probabilities of them.

    Raises Unsupported for a method that needs some.
    """
    if method is not token_length_normalized:
        raise Unsupported(
            f"the {service.name} backend has no log-probabilities of a chat model's prompt, which "
            f"choices_method={method} needs; leave the method out, or use Engine or RuntimeEndpoint"
        )
    schema = {"type": "string", "enum": list(dict.fromkeys(options))}
    temperature = None if service.reasoning else 0.0  # reasoning models refuse it
    exchange = api(service, prompt, GenParams(temperature=temperature, json_schema=schema))
    (completion,) = exchange.completions((yield exchange.path, exchange.body))
    try:
        text = json.loads(completion.text)
    except ValueError:
        text = completion.text
    if text not in options:
        raise BadReply(f"it is {text!r}, which is none of {list(options)}")
    usage = {name: completion.meta.get(name, 0) for name in COUNTS}
    return Decision(text, {**completion.meta, "decided_by": "structured output", "usage": usage})


def by_echo(
    service: Service, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
) -> Steps:
    """Every option is scored as the end of the prompt, which the server echoes with its tokens.

    The tokens are compared by their texts. Where the method needs the options without the prompt,
    they are tokenized anew, alone.
    """
    text = prompt.text
    texts = [*([text] if text else []), *(text + option for option in options)]
    reply = yield _echo(service, texts)
    rows, usage = _rows(service, reply, texts), usage_of(reply)
    first = 0
    if text:
        own = rows.pop(0)
        first = min(_shared(own, row) for row in rows)
    tokens = [row[first:] for row in rows]
    alone: list[Row] = []
    if method.unconditional:
        texts = ["".join(entry[1] for entry in row) for row in tokens]
        reply = yield _echo(service, texts)
        alone = _rows(service, reply, texts)
        usage = {name: usage.get(name, 0) + usage_of(reply).get(name, 0) for name in COUNTS}
    decision = method(Scores(options, tokens, [[] for _ in options], alone))
    decision.meta.update(decided_by="log-probabilities", usage=usage)
    return decision


def no_echo(service: Service) -> Unsupported:
    """What to raise where the server gives no log-probabilities of a prompt."""
    return Unsupported(
        f"{service.name}'s {service.model} has no echo with logprobs, which select needs with a "
        "completion model; use a chat model, or gen and compare its text"
    )


def _echo(service: Service, texts: Sequence[str]) -> tuple[str, dict[str, Any]]:
    body = {
        "model": service.model,
        "prompt": list(texts),
        "max_tokens": 0,
        "temperature": 0.0,
        "logprobs": 1,
        "echo": True,
    }
    return "/completions", body


def _rows(service: Service, reply: Any, texts: Sequence[str]) -> list[Row]:
    """Entries of each text's tokens. Raises Unsupported where a text is not echoed with them."""
    choices = mapping(reply, "reply").get("choices")
    if not isinstance(choices, Sequence) or len(choices) != len(texts):
        raise BadReply(f"it has not the {len(texts)} choices asked for: {brief(reply)}")
    rows: list[Row] = []
    for choice, text in zip(sorted(choices, key=lambda c: c.get("index") or 0), texts):
        logprobs: Mapping[str, Any] = choice.get("logprobs") or {}
        tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
        if not tokens or not values or not str(choice.get("text")).startswith(text):
            raise no_echo(service)
        rows.append([[value, token, token] for value, token in zip(values, tokens)])
    return rows


def _shared(own: Row, row: Row) -> int:
    """How many leading tokens two texts have in common."""
    parts = (index for index, (a, b) in enumerate(zip(own, row)) if a[1] != b[1])
    return next(parts, min(len(own), len(row)))
