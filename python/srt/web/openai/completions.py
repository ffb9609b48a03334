"""POST /v1/completions."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from statistics import fmean
from typing import Annotated, Any

from sglang.ir.declaration import Bounds
from sglang.ir.sampling import MAX_N, SamplingParams
from sglang.srt.core.messages import TopPairs
from sglang.srt.requests.common_fields import AddSpecialTokens, TopLogprobs
from sglang.srt.requests.completion.completion_request import (
    CompletionRequest,
    Logprobs,
    namespace_of,
)
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.completion_fields import CompletionFields, hidden_of, sampling_of
from sglang.srt.runtime.matched_prompt import matched
from sglang.srt.runtime.prompt_progress import PromptNews, reporting
from sglang.srt.runtime.prompts import places, prompts_of, read_prompt
from sglang.srt.runtime.stream_progress import StreamProgress
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import json_response
from sglang.srt.web.exchange.event_stream import Template, respond, unless_gone
from sglang.srt.web.exchange.json_body import read_body
from sglang.srt.web.openai.reply_fields import (
    Collected,
    ReplyHead,
    finish_fields,
    new_reply,
    token_text,
    usage,
)
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response

DEFAULT_MAX_TOKENS = 16
KIND = "text_completion"


class CompletionBody(CompletionFields, kw_only=True):
    """``prompt``: text, token ids, or a list of either; unset: the token that begins every
    sequence. A ``max_tokens`` of 0 with ``echo`` scores the prompt."""

    prompt: Any = None
    best_of: Annotated[
        int | None,
        Bounds(1, MAX_N),
        "Sample so many, of which the `n` with the highest mean log-probability come back.",
    ] = None
    echo: Annotated[bool | None, None, "The prompt's text comes first."] = None
    logprobs: TopLogprobs | None = None
    add_special_tokens: AddSpecialTokens | None = None
    return_token_ids: Annotated[
        bool | None, None, "`token_ids` and `prompt_token_ids` in each choice."
    ] = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None


INSTEAD = {
    "prompt_logprobs": "use echo: true with logprobs",
    "truncate_prompt_tokens": "shorten the prompt yourself, or send token ids",
}


async def completions(state: ServerState, request: Request) -> Response:
    body = await read_body(request, CompletionBody, state.body_limit)
    reply = new_reply(state, body, "cmpl")
    requests, echoes = await _requests(state, body, reply.id)
    if body.stream:
        return await respond(request, _events(state, body, reply, requests, echoes))
    results = await unless_gone(request, state.finish(requests))
    choices: list[dict[str, Any]] = []
    for one, echo, outputs in zip(requests, echoes, results):
        for output in _best(outputs, body.n or 1):
            writer = _ChoiceWriter(state, body, one, echo, len(choices))
            choices.append(writer.write(output, output.text, range(output.released)))
    return json_response({**reply.head(KIND), "choices": choices, "usage": usage(results)})


async def _requests(
    state: ServerState, body: CompletionBody, rid: str
) -> tuple[list[CompletionRequest], list[str]]:
    """Return the requests, and for each the text that ``echo`` puts before its answer. Raises
    RequestError."""
    _verify(body)
    prompts = _prompts(state, body.prompt)
    state.admit(len(prompts))
    sampling, logprobs = _sampling(body), _logprobs(body)
    salt = namespace_of(body.cache_salt, body.extra_key)
    whole = body.choices_scoring == "whole"
    adapter = state.runtime.adapters.of(body.model, body.lora_path)
    special = body.add_special_tokens is not False
    scope = state.runtime.scope(CALLER.get(), salt, adapter)
    requests, echoes = [], []
    for name, prompt in zip(places("prompt", prompts), prompts):
        found = None
        if isinstance(prompt, str) and not (body.echo and logprobs):
            found = await matched(state.runtime, scope, prompt, special)
        if found is None:
            ids = await read_prompt(state.runtime, prompt, name, special)
        else:
            ids = found.tokens
        request = CompletionRequest(
            ids, sampling, logprobs, rid, body.priority or 0, salt, score_choices=whole
        )
        resumed = None if found is None else found.resumed
        request = replace(request, adapter=adapter, resumed=resumed)
        requests.append(reporting(request) if body.return_progress else request)
        text = prompt if isinstance(prompt, str) else state.runtime.tokenizer.decode(ids)
        echoes.append(text if body.echo else "")
    return requests, echoes


def _verify(body: CompletionBody) -> None:
    """Raise RequestError for unsupported fields and combinations of fields."""
    for name, advice in INSTEAD.items():
        if getattr(body, name) is not None:
            raise RequestError(f"{name} is not available; {advice}.", name, "unsupported")
    if body.best_of is None:
        return
    count = 1 if body.n is None else body.n
    if body.best_of < count:
        raise RequestError(
            f"best_of is {body.best_of}; it must be at least n, which is {count}.", "best_of"
        )
    if body.stream and body.best_of > count:
        raise RequestError(
            f"best_of is {body.best_of} and n is {count}; a stream cannot choose the best before "
            "all have ended. Remove stream or best_of.",
            "best_of",
        )


def _prompts(state: ServerState, prompt: Any) -> list[Any]:
    if prompt is not None:
        return prompts_of(prompt, "prompt")
    start = state.runtime.tokenizer.bos_id
    if start is None:
        raise RequestError(
            "prompt is missing, and this model has no token that begins every sequence; give text "
            "or token ids.",
            "prompt",
        )
    return [[start]]


def _sampling(body: CompletionBody) -> SamplingParams:
    sampling = sampling_of(body, DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens)
    return replace(sampling, n=body.best_of or sampling.n)


def _logprobs(body: CompletionBody) -> Logprobs | None:
    if body.logprobs is not None:
        start, masked = 0 if body.echo else -1, bool(body.masked_logprobs)
        return Logprobs(top=body.logprobs, start=start, masked=masked)
    return Logprobs() if body.best_of else None


def _best(outputs: Sequence[Output], count: int) -> Sequence[Output]:
    """Return the ``count`` outputs with the highest mean log-probability, the best first. If there
    are no more than ``count``, return all in their own order."""
    if len(outputs) <= count:
        return outputs
    means = [fmean(out.logprobs) if out.logprobs else float("-inf") for out in outputs]
    order = sorted(range(len(outputs)), key=lambda i: -means[i])
    return [outputs[i] for i in order[:count]]


async def _events(
    state: ServerState,
    body: CompletionBody,
    reply: ReplyHead,
    requests: list[CompletionRequest],
    echoes: list[str],
) -> AsyncGenerator[dict[str, Any] | bytes, None]:
    options = body.stream_options
    counted = bool(options and options.include_usage)
    always = bool(options and options.continuous_usage_stats)
    head = {**reply.head(KIND), **({"usage": None} if counted else {})}
    interval, count = state.config.server.stream_interval, body.n or 1
    writers: dict[int, _ChoiceWriter] = {}
    collected = Collected(len(requests))
    async with aclosing(state.run(requests)) as items:
        async for index, output in items:
            collected.note(index, output)
            place = index * count + output.index
            if place not in writers:
                writers[place] = _ChoiceWriter(state, body, requests[index], echoes[index], place)
            writer = writers[place]
            if told := writer.prompt_news.of(output):
                nothing = {"index": place, "text": "", "logprobs": None, "finish_reason": None}
                yield {**head, "choices": [nothing], "prompt_progress": told}
            if not writer.sent.ready(output, interval):
                continue
            text, tokens = writer.sent.take(output)
            if writer.template is not None and output.finish is None:
                yield writer.template.event(text)
                continue
            choice = writer.write(output, text, tokens)
            if choice["logprobs"] and not choice["logprobs"]["tokens"]:  # the end without tokens
                choice["logprobs"] = None
            if always:
                head["usage"] = collected.usage()
            else:
                writer.template = writer.alike(head)
            yield {**head, "choices": [choice]}
    if counted:
        yield {**head, "choices": [], "usage": collected.usage()}


class _ChoiceWriter:
    """Writer of one completion, as a whole or in pieces. The first piece has the prompt's data.

    Attributes:
        sent: the part that was sent.
        prompt_news: progress reports about the prompt.
        template: template of the later pieces, except the last one; None if they differ in more
            than their text.
    """

    def __init__(
        self,
        state: ServerState,
        body: CompletionBody,
        request: CompletionRequest,
        echo: str,
        index: int,
    ) -> None:
        self._request, self._echo, self._index, self._begun = request, echo, index, False
        self._echoes, self._ids = bool(body.echo), bool(body.return_token_ids)
        wanted = body.logprobs is not None
        self._lines = _Lines(state, hidden_of(state.runtime, body)) if wanted else None
        self.sent, self.prompt_news = StreamProgress(), PromptNews()
        self.template: Template | None = None

    def write(self, output: Output, text: str, tokens: range) -> dict[str, Any]:
        """Return the next piece. ``tokens``: indices of the tokens of ``text``."""
        first, self._begun = not self._begun, True
        shown: dict[str, Any] = {"index": self._index, "text": text, "logprobs": None}
        if first:
            shown["text"] = self._echo + text
        if self._lines is not None:
            if first and self._echoes:
                self._lines.prompt(self._request, output, self._echo)
            self._lines.generated(output, tokens)
            shown["logprobs"] = self._lines.value()
        if self._ids:
            shown["token_ids"] = output.tokens[tokens.start : tokens.stop]
            shown["prompt_token_ids"] = self._request.prompt.tolist() if first else None
        return {**shown, **finish_fields(output)}

    def alike(self, head: dict[str, Any]) -> Template | None:
        """Return a template of all pieces except the first and the last, if these pieces differ
        only in their text; otherwise None."""
        if self._lines is not None or self._ids:
            return None
        choice = {"index": self._index, "text": Template.HOLE, "logprobs": None}
        return Template({**head, "choices": [{**choice, "finish_reason": None}]})


class _Lines:
    """Log-probabilities in OpenAI's legacy format: parallel lists. ``value`` returns the entries
    that were added since the last call."""

    def __init__(self, state: ServerState, hidden: Collection[int]) -> None:
        self._hidden = hidden  # tokens that are reported and not in the text
        self._table = state.runtime.tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0
        self._clear()

    def _clear(self) -> None:
        self._tokens: list[str] = []
        self._values: list[float | None] = []
        self._tops: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def prompt(self, request: CompletionRequest, output: Output, echo: str) -> None:
        """Add the prompt's tokens. ``echo``: the prompt's text, without additions of the tokenizer
        before it (a begin token, a space)."""
        found = output.prompt_logprobs
        if found is None:
            return
        tops: Iterable[TopPairs | None] = found.tops or [None] * len(found.logprobs)
        for token, value, top in zip(request.prompt, found.logprobs, tops):
            self._add(token, value, top, True)
        before = max(self._offset - len(echo), 0)
        self._offsets = [max(offset - before, 0) for offset in self._offsets]
        self._offset = len(echo)
        self._decoder.reset()

    def generated(self, output: Output, which: range) -> None:
        for i in which:
            token, top = output.tokens[i], output.tops[i] if output.tops else []
            self._add(token, output.logprobs[i], top, token not in self._hidden)

    def _add(self, token: int, value: float | None, top: TopPairs | None, shown: bool) -> None:
        self._tokens.append(token_text(self._bytes(token)))
        self._values.append(value)
        self._offsets.append(self._offset)
        self._offset += len(self._decoder.decode(self._bytes(token))) if shown else 0
        if value is None or top is None:
            self._tops.append(None)
            return
        entries = {token_text(self._bytes(other)): logprob for other, logprob in reversed(top)}
        entries[token_text(self._bytes(token))] = value
        self._tops.append(entries)

    def _bytes(self, token: int) -> bytes:
        return self._table[token] if token < len(self._table) else b""

    def value(self) -> dict[str, Any]:
        found = {
            "tokens": self._tokens,
            "token_logprobs": self._values,
            "top_logprobs": self._tops,
            "text_offset": self._offsets,
        }
        self._clear()
        return found
