"""Routes between text and tokens: /tokenize, /detokenize, /tokenizer_info, /apply-template."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec
from sglang.srt.core.ints import Ints, ints
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.conversations.conversation import (
    ChatPrompt,
    Tokenizing,
    prompt_of,
    verify_template,
)
from sglang.srt.runtime.conversations.tool_use import read_tools
from sglang.srt.runtime.offload import entries, offload
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import json_response
from sglang.srt.web.exchange.event_stream import unless_gone
from sglang.srt.web.exchange.json_body import read_body
from sglang.srt.web.openai.reply_fields import token_text
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response

PIECE = 1 << 14  # entries of an array that are converted at once


class TemplateBody(msgspec.Struct, kw_only=True):
    """A conversation in the form of ``/v1/chat/completions``."""

    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeBody(TemplateBody, kw_only=True):
    """One of ``prompt``, ``text``, ``content`` (three names of the same field) and ``messages``.

    ``add_special_tokens`` is true by default; for messages it is false, because the chat template
    writes its own special tokens.
    """

    prompt: str | list[str] | None = None
    text: str | list[str] | None = None
    content: str | list[str] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """Ids, or a list of lists of ids."""

    tokens: list[Any]
    model: str | None = None
    skip_special_tokens: bool = True


async def tokenize(state: ServerState, request: Request) -> Response:
    """Return the token ids of one text, of each text in a list, or of a conversation."""
    body = await read_body(request, TokenizeBody, state.body_limit)
    return json_response(await unless_gone(request, _tokenized(state, body)))


async def _tokenized(state: ServerState, body: TokenizeBody) -> dict[str, Any]:
    names = ("prompt", "text", "content", "messages")
    given = [getattr(body, name) for name in names if getattr(body, name) is not None]
    if len(given) != 1:
        raise RequestError("Give prompt, a text or a list of texts, or messages.", "prompt")
    if body.messages is not None:
        ids = (await _prompt(state, body)).ids
        before = ints(state.runtime.tokenizer.before if body.add_special_tokens else ())
        rows = [ids if ids[: len(before)] == before else before + ids]
    else:
        texts = given[0] if isinstance(given[0], list) else given
        special = body.add_special_tokens is not False
        rows = [await state.runtime.completion.encoder.encode(text, special) for text in texts]
    found: dict[str, Any] = {
        "tokens": [await offload(len(row), _array, row, array.tolist) for row in rows],
        "count": [len(row) for row in rows],
        "max_model_len": state.runtime.info.context_length,
    }
    if body.return_token_strs:
        texts_of = partial(token_texts, state.runtime.tokenizer)
        found["token_strs"] = [await offload(len(row), _array, row, texts_of) for row in rows]
    if body.messages is not None or isinstance(given[0], str):
        found |= {name: value[0] for name, value in found.items() if isinstance(value, list)}
    return found


async def detokenize(state: ServerState, request: Request) -> Response:
    """Return the text of token ids, or of each list of token ids."""
    body = await read_body(request, DetokenizeBody, state.body_limit)
    return json_response(await unless_gone(request, _detokenized(state, body)))


async def _detokenized(state: ServerState, body: DetokenizeBody) -> dict[str, Any]:
    nested = bool(body.tokens) and isinstance(body.tokens[0], list)
    texts = []
    for row in body.tokens if nested else [body.tokens]:
        if not isinstance(row, list):
            raise RequestError(
                f"tokens mixes {row!r:.40} with lists of ids; give ids, or lists of ids.", "tokens"
            )
        ids = await state.runtime.prompt(row, "tokens")
        for token in (min(ids, default=0), max(ids, default=0)):
            if not 0 <= token < state.runtime.info.vocab_size:
                raise RequestError(
                    f"tokens holds {token}; ids are 0 to {state.runtime.info.vocab_size - 1}.",
                    "tokens",
                )
        decode = state.runtime.tokenizer.decode
        texts.append(await offload(len(ids), decode, ids, body.skip_special_tokens))
    shown = texts if nested else texts[0]
    return {"text": shown, "prompt": shown}


async def apply_template(state: ServerState, request: Request) -> Response:
    """Return the prompt of a conversation as text."""
    body = await read_body(request, TemplateBody, state.body_limit)
    return json_response({"prompt": (await _prompt(state, body)).text})


async def tokenizer_info(state: ServerState, request: Request) -> Response:
    """Return facts of the vocabulary; special tokens also under their names in
    tokenizer_config.json."""
    tokenizer = state.runtime.tokenizer
    specials = {role: text for role, text in tokenizer.specials.items() if text}
    return json_response(
        {
            "vocab_size": tokenizer.vocab_size,
            "special_tokens": specials,
            "special_ids": sorted(tokenizer.special_ids),
            "bos_token_id": tokenizer.bos_id,
            "eos_token_ids": list(state.runtime.info.eos),
            "chat_template": tokenizer.chat_template,
            "model_max_length": state.runtime.info.context_length,
            **specials,
        }
    )


def token_texts(tokenizer: Tokenizer, ids: Iterable[int]) -> list[str]:
    """Return ``token_text`` of each id; "" for an id beyond the vocabulary."""
    table = tokenizer.token_bytes
    return [token_text(table[token]) if token < len(table) else "" for token in ids]


def _array(row: Ints, objects: Callable[[Ints], list[Any]]) -> msgspec.Raw:
    """Return the converted ids as a JSON array. It is made in pieces, because the objects of
    millions of entries take many times the memory of their text."""
    pieces = [
        msgspec.json.encode(objects(row[start : start + PIECE]))[1:-1]
        for start in range(0, len(row), PIECE)
    ]
    return msgspec.Raw(b"".join((b"[", b",".join(pieces), b"]")))


async def _prompt(state: ServerState, body: TemplateBody) -> ChatPrompt:
    """Return the prompt of a body's messages. Raises RequestError."""
    variables = body.chat_template_kwargs or {}
    verify_template(body.chat_template, variables)
    form = state.runtime.tool_format
    use = await offload(entries(body.tools), read_tools, body.tools, None, None, form)
    generation, go_on = body.add_generation_prompt, bool(body.continue_final_message)
    tokenizing = Tokenizing(owner=CALLER.get().tenant)
    return await prompt_of(
        state.runtime, body.messages or [], use, variables, generation, go_on, tokenizing
    )
