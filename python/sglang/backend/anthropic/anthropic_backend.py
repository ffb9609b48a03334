"""Anthropic: Claude models through the messages API and its official package.

    system turns       the ``system`` parameter of every call
    other turns        ``messages``; turns of one role that follow one another become one
    an assistant turn that the program has begun
                       the last message, which the model continues (models before Claude 4.6)
    no roles           one user message

The API has sampling parameters (temperature, top_p, top_k) up to its version 2023-06-01, for models
before Claude Opus 4.7. They are sent only where the program sets them, and then by that version.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from sglang.backend.anthropic import anthropic_messages as wire
from sglang.backend.anthropic.anthropic_messages import MessagesReply, MessagesRequest
from sglang.backend.base import Call, Choose, Commit, Completion, Prompt, StreamCall
from sglang.backend.service_backend import (
    CONNECT_SECONDS,
    MAX_CONCURRENCY,
    MAX_RETRIES,
    TAIL_CHARACTERS,
    TIMEOUT_SECONDS,
    ApiBackend,
)
from sglang.errors import AuthenticationFailed, BackendError, lacking, refusal
from sglang.ir.chat_template import ChatTemplate, template_named
from sglang.ir.choices import ChoicesMethod, Decision, token_length_normalized
from sglang.ir.params import DEFAULTS, GenParams, strings

# Names of the models that have a temperature.
COOLABLE = re.compile(r"claude-(\d|instant|[a-z]+-4(-[0-6])?(-20\d{6}|-latest)?$)")
ERROR_STATUS = {
    "invalid_request_error": 400, "authentication_error": 401, "permission_error": 403,
    "not_found_error": 404, "rate_limit_error": 429, "overloaded_error": 529,
}  # fmt: skip
ADVICE = {
    "prefill": "begin the gen right after s.assistant, or use num_api_spec_tokens",
    "temperature|top_p|top_k": "give at most one of temperature, top_p and top_k, and none to "
    "Claude Opus 4.7 and later models",
}
CHOICE_TOKENS = 4096  # room for the thinking of models that always think


class Anthropic(ApiBackend):
    """A Claude model.

    ``gen(json_schema=...)`` and ``select`` are structured outputs; ``select`` has no
    log-probabilities, and its meta_info says by ``decided_by`` how it was decided.

    Args:
        model_name: for instance "claude-sonnet-5".
        chat_template: a template or its name, for ``s.text()``; the model sees the API's own.
        api_key: by default the ``anthropic`` package finds credentials (``ANTHROPIC_API_KEY``).
        max_retries: of a refused or lost call, with backoff and as Retry-After says.
        timeout: seconds without a reply, or between two events of a stream.
        max_concurrency: calls in flight at a time.
        cache_prompt: ask the API to cache the system turns.
        extra_body: fields of every request, such as ``thinking`` or ``output_config``.
        client_args: further arguments of the package's asynchronous client.

    Raises:
        Unsupported: the ``anthropic`` package is not installed.
    """

    name = "Anthropic"
    key_variable = "ANTHROPIC_API_KEY"
    constraints = frozenset({"json_schema"})
    speculates = "chat"
    messages_only = calls_tools = True

    def __init__(
        self,
        model_name: str,
        chat_template: str | ChatTemplate | None = None,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        max_retries: int = MAX_RETRIES,
        timeout: float = TIMEOUT_SECONDS,
        max_concurrency: int = MAX_CONCURRENCY,
        cache_prompt: bool = False,
        extra_body: Mapping[str, Any] | None = None,
        **client_args: Any,
    ) -> None:
        super().__init__(max_retries=max_retries, timeout=timeout, max_concurrency=max_concurrency)
        try:
            import anthropic
        except ImportError as error:
            raise lacking("Anthropic", "anthropic", error) from error
        self.model_name = model_name
        self.address = base_url or ""
        if isinstance(chat_template, str):
            chat_template = template_named(chat_template)
        self.chat_template = chat_template or self.chat_template
        self._package = anthropic
        self._cache_prompt = cache_prompt
        self._extra_body = dict(extra_body or {})
        self._client_args = {
            **client_args,
            "api_key": api_key,
            "base_url": base_url,
            "max_retries": max_retries,
        }
        self.call_timeout = anthropic.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS))

    def open_client(self) -> Any:
        return self._package.AsyncAnthropic(**self._client_args)

    # Calls

    async def acomplete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        asked = self._asked(prompt, params)
        calls = [asyncio.ensure_future(self._complete(prompt, asked)) for _ in range(asked.n)]
        try:
            return await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()

    async def astream(self, prompt: Prompt, params: GenParams) -> AsyncGenerator[Completion, None]:
        asked, reply = self._asked(prompt, params, stream=True), MessagesReply()
        async with self.calling(prompt) as client:
            async with await self._create(client, asked) as events:
                reply.request_id = events.response.headers.get("request-id")
                async for event in events:
                    if reply.add(event):
                        yield asked.so_far(reply)
            last = self._finished(asked, reply)
        yield last

    async def achoose(
        self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
    ) -> Decision:
        asked = self._asked_to_choose(prompt, options, method)
        async with self.calling(prompt) as client:
            return wire.decision(self._read(asked, await self._create(client, asked)), options)

    def request(self, call: Call) -> dict[str, Any]:
        if isinstance(call, Commit):
            return {}
        if isinstance(call, Choose):
            return self._asked_to_choose(call.prompt, call.options, call.method).body
        return self._asked(call.prompt, call.params, stream=isinstance(call, StreamCall)).body

    async def _complete(self, prompt: Prompt, asked: MessagesRequest) -> Completion:
        async with self.calling(prompt) as client:
            return self._read(asked, await self._create(client, asked))

    async def _create(self, client: Any, asked: MessagesRequest) -> Any:
        """Make the call with an explicit timeout: the client refuses a long call without one."""
        return await client.messages.create(**asked.arguments, timeout=self.call_timeout)

    def _read(self, asked: MessagesRequest, message: Any) -> Completion:
        reply = MessagesReply(getattr(message, "_request_id", None))
        reply.add_message(message)
        return self._finished(asked, reply)

    def _finished(self, asked: MessagesRequest, reply: MessagesReply) -> Completion:
        self.token_usage.add(reply.meta())
        return asked.completion(reply)

    # Requests

    def _asked(
        self, prompt: Prompt, params: GenParams, question: str = "", stream: bool = False
    ) -> MessagesRequest:
        """Return the API's request for a prompt. Raises Unsupported for what the API cannot do."""
        wire.check(params)
        system, messages = wire.conversation(prompt, self.chat_template.image_token, question)
        cut = wire.cut_prefill(messages)
        blank = tuple(stop for stop in strings(params.stop) if stop.isspace())
        stops = [stop for stop in strings(params.stop) if stop not in blank]
        tokens = params.max_new_tokens
        body = {
            **self._extra_body,
            "model": self.model_name,
            "max_tokens": DEFAULTS.max_new_tokens if tokens is None else tokens,
            "messages": [{**m, "content": wire.simplest(m["content"])} for m in messages],
            **wire.sampling(params),
            **wire.tools(prompt),
        }
        if system and self._cache_prompt:
            system[-1]["cache_control"] = {"type": "ephemeral"}
        if system:
            body["system"] = wire.simplest(system)
        if stream:
            body["stream"] = True
        if stops:
            body["stop_sequences"] = stops
        if params.json_schema is not None:
            config = body.get("output_config", {})
            body["output_config"] = {**config, "format": wire.output_format(params.json_schema)}
        return MessagesRequest(body, cut, blank, params.n or 1)

    def _asked_to_choose(
        self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
    ) -> MessagesRequest:
        """A structured output whose one field is the choice, requested by a user turn at the end.

        Not a forced tool call, nor a begun assistant turn: newer models refuse both.
        """
        if method.name != token_length_normalized.name and not method.generates:
            raise self.lacks(
                f"log-probabilities, and so no {method.name}",
                "use token_length_normalized, or Engine or RuntimeEndpoint",
            )
        params = GenParams(
            max_new_tokens=CHOICE_TOKENS,
            temperature=0.0 if COOLABLE.match(self.model_name) else None,
            json_schema=wire.choice_schema(options),
        )
        return self._asked(prompt, params, wire.question(options))

    # Errors

    def translated(self, error: Exception, prompt: Prompt) -> BackendError | None:
        """Add advice to the error. An error within a stream has status 200 and counts by its
        type."""
        tail = prompt.text[-TAIL_CHARACTERS:] or None
        if _is_keyless(error):
            advice = f"set {self.key_variable} or give api_key="
            return AuthenticationFailed(f"{self.name} has no credentials; {advice} ({error})")
        plain = super().translated(error, prompt)
        if plain is None or plain.status not in (200, 400):
            return plain
        kind, said = wire.fault(error)
        if plain.status == 200:
            message, status = f"{self.name} ended the stream: {said}", ERROR_STATUS.get(kind, 500)
        else:
            hints = [hint for pattern, hint in ADVICE.items() if re.search(pattern, said)]
            message, status = (
                "; ".join([f"{self.name} answered 400: {said.rstrip('.')}", *hints]),
                400,
            )
        return refusal(status)(message, status, request_id=plain.request_id, prompt_tail=tail)


def _is_keyless(error: Exception) -> bool:
    """Whether the package has found no credentials, which it says in two ways."""
    if isinstance(error, TypeError):
        return "authentication method" in str(error)
    return any(kind.__name__ == "CredentialsError" for kind in type(error).__mro__)
