"""Selection among texts by an API of OpenAI: by structured output, by echoed prompts, or token by
token under a bias.

Each is a generator: it yields ``(path, body)``, is sent the reply, and returns the Decision.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence, Set
from typing import Any, TypeAlias

from sglang.backend.base import Prompt
from sglang.backend.openai.api_exchange import Exchange, OpenAIService, brief, mapping, usage_of
from sglang.backend.openai.token_ids import BIAS, MAX_BIAS, ServiceTokenizer, end_of
from sglang.backend.service_backend import BadReply
from sglang.errors import Unsupported
from sglang.ir.choices import ChoicesMethod, Decision, OptionScores, token_length_normalized
from sglang.ir.params import GenParams

Steps: TypeAlias = Generator[tuple[str, dict[str, Any]], Any, Decision]
Row: TypeAlias = list[list[Any]]
SHOWN = 8  # tokens in a message
COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens")


def by_schema(
    api: type[Exchange], service: OpenAIService, prompt: Prompt, options: Sequence[str],
    method: ChoicesMethod,
) -> Steps:  # fmt: skip
    """The reply may be nothing but one of the options. There are no log-probabilities of them.

    Raises Unsupported for a method that needs some.
    """
    if method is not token_length_normalized and not method.generates:
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
    service: OpenAIService, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
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
        first = min(_common(_ids(own), _ids(row)) for row in rows)
    tokens = [row[first:] for row in rows]
    alone: list[Row] = []
    if method.unconditional:
        texts = ["".join(entry[1] for entry in row) for row in tokens]
        reply = yield _echo(service, texts)
        alone = _rows(service, reply, texts)
        usage = {name: usage.get(name, 0) + usage_of(reply).get(name, 0) for name in COUNTS}
    decision = method(OptionScores(options, tokens, [[] for _ in options], alone))
    decision.meta.update(decided_by="log-probabilities", usage=usage)
    return decision


def by_bias(
    service: OpenAIService, tokenizer: ServiceTokenizer, prompt: Prompt, options: Sequence[str]
) -> Steps:
    """Token by token: at each one a request whose ``logit_bias`` leaves the next tokens of the
    options that still agree with what was taken. The first token is the last one that all have in
    common with the prompt's. There are no log-probabilities.

    An option that is the beginning of another is taken where the text may end there, which needs
    the id that ends a text; without it the longer one is.
    """
    own = list(tokenizer.encode(prompt.text)) if prompt.text else []
    rows = [list(tokenizer.encode(prompt.text + option)) for option in options]
    step = min(_common(own, row) for row in rows)
    taken, end = rows[0][:step], end_of(tokenizer)
    alive, usage = list(range(len(options))), dict.fromkeys(COUNTS, 0)
    while len({tuple(rows[i]) for i in alive}) > 1:
        following = {rows[i][step] for i in alive if len(rows[i]) > step}
        complete = [i for i in alive if len(rows[i]) == step]
        allowed = {*following, end} if complete and end is not None else following
        token = next(iter(allowed))
        if len(allowed) > 1:
            reply = yield _biased(service, taken, allowed)
            usage = {name: usage[name] + usage_of(reply).get(name, 0) for name in COUNTS}
            token = _taken(service, tokenizer, reply, allowed, end)
        if token == end and complete:
            alive = complete
            break
        alive = [i for i in alive if rows[i][step : step + 1] == [token]]
        taken.append(token)
        step += 1
    return Decision(options[alive[0]], {"decided_by": "logit bias", "usage": usage})


class NoEcho(Unsupported):
    """The server gives no log-probabilities of a prompt."""


def no_echo(service: OpenAIService) -> NoEcho:
    """The error for a server that gives no log-probabilities of a prompt."""
    return NoEcho(
        f"{service.name}'s {service.model} has no echo with logprobs, by which select scores the "
        "options of a completion model; give OpenAI(tokenizer=) and leave choices_method out, so "
        "that it selects by logit_bias, or use a chat model"
    )


def _biased(
    service: OpenAIService, prompt: list[int], allowed: Set[int]
) -> tuple[str, dict[str, Any]]:
    """A request for one of the tokens ``allowed``."""
    if len(allowed) > MAX_BIAS:
        raise Unsupported(
            f"the options begin with {len(allowed)} different tokens and {service.name} takes a "
            f"bias of at most {MAX_BIAS}; give fewer options, or use Engine or RuntimeEndpoint"
        )
    body = {
        "model": service.model,
        "prompt": prompt or "",
        "max_tokens": 1,
        "temperature": 0.0,
        "logit_bias": {str(token): BIAS for token in sorted(allowed)},
    }
    return "/completions", body


def _taken(
    service: OpenAIService,
    tokenizer: ServiceTokenizer,
    reply: Any,
    allowed: Set[int],
    end: int | None,
) -> int:
    """The token that a reply is. Raises BadReply where it is none of those allowed."""
    choices = mapping(reply, "reply").get("choices")
    text = choices[0].get("text") if choices else None
    texts = {token: tokenizer.decode([token]) for token in sorted(allowed) if token != end}
    if text == "" and end is not None and end in allowed:
        return end
    found = [token for token, its in texts.items() if its == text]
    if not found:  # a tokenizer may take the space before a word off
        found = [token for token, its in texts.items() if its.strip() == str(text).strip()]
    if len(found) != 1:
        shown = list(texts.values())[:SHOWN]
        raise BadReply(f"it is {text!r}, which is not one of the tokens biased for: {shown}")
    return found[0]


def _common(own: Sequence[int], row: Sequence[int]) -> int:
    """Return the number of leading tokens that two texts share."""
    parts = (index for index, (a, b) in enumerate(zip(own, row)) if a != b)
    return next(parts, min(len(own), len(row)))


def _echo(service: OpenAIService, texts: Sequence[str]) -> tuple[str, dict[str, Any]]:
    body = {
        "model": service.model,
        "prompt": list(texts),
        "max_tokens": 0,
        "temperature": 0.0,
        "logprobs": 1,
        "echo": True,
    }
    return "/completions", body


def _rows(service: OpenAIService, reply: Any, texts: Sequence[str]) -> list[Row]:
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


def _ids(row: Row) -> list[Any]:
    return [entry[1] for entry in row]
