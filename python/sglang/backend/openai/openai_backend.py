"""OpenAI: the models of OpenAI and Azure, and of every server that speaks like them."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any

from sglang.backend.base import Call, Choose, Commit, Completion, Prompt
from sglang.backend.base import StreamCall as StreamCall
from sglang.backend.openai.api_exchange import Exchange, OpenAIService, brief, is_reasoning
from sglang.backend.openai.apis import ChatExchange, ResponsesExchange, TextExchange
from sglang.backend.openai.selection import NoEcho, Steps, by_bias, by_echo, by_schema, no_echo
from sglang.backend.openai.server_kinds import PLAIN, ServerAnswers, kind_named, kind_of
from sglang.backend.openai.strict_schema import is_strict
from sglang.backend.openai.token_ids import ServiceTokenizer, TokenIds
from sglang.backend.output_constraint import JsonSchema, OutputConstraint
from sglang.backend.service_backend import (
    CONNECT_SECONDS,
    MAX_CONCURRENCY,
    MAX_RETRIES,
    TIMEOUT_SECONDS,
    ApiBackend,
    BadReply,
    said,
)
from sglang.errors import AuthenticationFailed, BadRequest, lacking
from sglang.ir.chat_template import ChatTemplate, template_named
from sglang.ir.choices import ChoicesMethod, Decision, token_length_normalized
from sglang.ir.params import GenParams

APIS: dict[str, type[Exchange]] = {
    "chat": ChatExchange,
    "completions": TextExchange,
    "responses": ResponsesExchange,
}
TEXT_MODELS = re.compile(r"(ft:)?(gpt-3\.5-turbo-instruct|davinci|babbage|text-)")
RESPONSES_MODELS = re.compile(r"(ft:)?(o\d-pro|gpt-\d.*-(pro|codex)|codex-)")
OFFICIAL_HOSTS = ("openai.com", ".azure.com")
REQUEST_ID = "x-request-id"
INTEGER_TOKENS = 24  # under a bias that lets little but a whole number be written


class ExchangeBackend(ApiBackend):
    """The calls of the interpreter as exchanges; a subclass sends them.

    Attributes:
        api: the class of exchange.
        service: the service at the other end.
        tokens: the tokenizer of a completion model.
        echoes: a completion model's service has not yet refused to score a prompt.
    """

    api: type[Exchange] = ChatExchange
    service: OpenAIService
    tokens: TokenIds | None = None
    echoes: bool = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.service.model})"

    async def send(
        self, client: Any, path: str, body: dict[str, Any]
    ) -> tuple[Mapping[str, Any], str | None]:
        """The reply and the service's id of the request."""
        raise NotImplementedError

    def events(self, client: Any, exchange: Exchange) -> AsyncGenerator[Any, None]:
        """The events of a streamed reply."""
        raise NotImplementedError

    async def acomplete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        if params.dtype == "int":
            params = await asyncio.to_thread(self._likely_integer, params)
        exchange = self.api(self.service, prompt, params)
        async with self.calling(prompt) as client:
            reply, exchange.request_id = await self.send(client, exchange.path, exchange.body)
            completions = exchange.completions(reply)
        for completion in completions:
            self.token_usage.add(completion.meta)
        return completions

    async def astream(self, prompt: Prompt, params: GenParams) -> AsyncGenerator[Completion, None]:
        exchange = self.api(self.service, prompt, replace(params, n=1), stream=True)
        async with (
            self.calling(prompt) as client,
            aclosing(self.events(client, exchange)) as events,
        ):
            async for event in events:
                if (grown := exchange.take(event)) is not None:
                    yield grown
            last = exchange.end()
        self.token_usage.add(last.meta)
        yield last

    async def achoose(
        self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
    ) -> Decision:
        try:
            with self._echo_refused():
                decision = await self._walked(prompt, self._deciding(prompt, options, method))
        except NoEcho:
            if not await asyncio.to_thread(self._can_bias, method):
                raise
            self.echoes = False
            decision = await self._walked(prompt, self._deciding(prompt, options, method))
        self.token_usage.add(decision.meta["usage"])
        return decision

    async def _walked(self, prompt: Prompt, steps: Steps) -> Decision:
        """The decision that ``steps`` come to."""
        reply = None
        async with self.calling(prompt) as client:
            while True:
                try:
                    path, body = steps.send(reply)
                except StopIteration as done:
                    decision: Decision = done.value
                    return decision
                reply, _ = await self.send(client, path, body)

    def enforces(self, constraint: OutputConstraint) -> bool:
        """A JSON schema that is not strict is sent too, but is only a hint to the service."""
        if not super().enforces(constraint):
            return False
        if self.service.kind is not PLAIN:
            return True
        return not isinstance(constraint, JsonSchema) or is_strict(constraint.schema)

    def request(self, call: Call) -> dict[str, Any]:
        """The body; of a select, of its first request. A commit sends nothing."""
        if isinstance(call, Commit):
            return {}
        if isinstance(call, Choose):
            return next(self._deciding(call.prompt, call.options, call.method))[1]
        stream = isinstance(call, StreamCall)
        params = replace(call.params, n=1) if stream else call.params
        if params.dtype == "int":
            params = self._likely_integer(params)
        return self.api(self.service, call.prompt, params, stream=stream).body

    def _deciding(self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod) -> Steps:
        if self.api is TextExchange:
            tokenizer = self.tokens.get() if self.tokens and not self.echoes else None
            if tokenizer is not None and _needs_no_scores(method):
                return by_bias(self.service, tokenizer, prompt, options)
            return by_echo(self.service, prompt, options, method)
        return by_schema(self.api, self.service, prompt, options, method)

    def _can_bias(self, method: ChoicesMethod) -> bool:
        known = self.tokens is not None and self.tokens.get() is not None
        return known and _needs_no_scores(method)

    def _likely_integer(self, params: GenParams) -> GenParams:
        """``params`` under which little but a whole number is written, where tokens are known."""
        if self.tokens is None or params.logit_bias is not None:
            return params
        if not (bias := self.tokens.integers()):
            return params
        limit = min(params.max_new_tokens or INTEGER_TOKENS, INTEGER_TOKENS)
        return replace(params, logit_bias=bias, max_new_tokens=limit)

    @contextmanager
    def _echo_refused(self) -> Iterator[None]:
        """Raise NoEcho in place of the block's BadRequest where a completion model's server refuses
        to echo."""
        try:
            yield
        except BadRequest as error:
            if self.api is TextExchange and re.search("echo|logprobs", said(error.__cause__)):
                raise no_echo(self.service) from error
            raise


class OpenAI(ExchangeBackend):
    """A model behind one of OpenAI's APIs, through the official ``openai`` client.

    Args:
        is_chat_model: False: /completions. None: by the model's name.
        chat_template: a template or its name, for roles with a completion model.
        is_azure: through Azure; ``azure_endpoint``, ``api_version`` and the like are client
            arguments, or come from the environment.
        api: "chat", "completions", "responses", or "auto": by the model's name.
        base_url: of another server that speaks like OpenAI (llama-server, vLLM, Ollama, our own).
        api_key: else ``OPENAI_API_KEY``; another server need not have one.
        max_retries: after 408, 409, 429, 5xx and lost connections, with backoff, as Retry-After
            says.
        timeout: seconds without an answer, or without the next piece of a stream.
        max_concurrency: calls at a time, of all threads and event loops.
        continue_final_message: tell the server (vLLM, ours) to go on in the assistant's turn that
            the program has begun. Without it, an answer that repeats the beginning loses it.
        tokenizer: of a completion model: ``encode`` to ids and ``decode``, for ``logit_bias``; for
            models of OpenAI's own service it is tiktoken's, where that can be had.
        server: the kind of server at ``base_url``, which says what it enforces and by which fields:
            "sglang", "upstream", "vllm", "vllm<0.11", "llama.cpp" or "ollama". None: found out,
            once, when a program first constrains a text; "": it enforces JSON schemas of chats.
        extra_body: fields of every request, as a server's own.
        client_args: further arguments of the package's asynchronous client.

    Raises:
        Unsupported: the package is not installed.
        AuthenticationFailed: there is no key.
    """

    name = "OpenAI"
    key_variable = "OPENAI_API_KEY"

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template: str | ChatTemplate | None = None,
        is_azure: bool = False,
        *,
        api: str = "auto",
        base_url: str | None = None,
        api_key: str | None = None,
        max_retries: int = MAX_RETRIES,
        timeout: float = TIMEOUT_SECONDS,
        max_concurrency: int = MAX_CONCURRENCY,
        continue_final_message: bool = False,
        tokenizer: ServiceTokenizer | None = None,
        server: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        **client_args: Any,
    ) -> None:
        super().__init__(max_retries=max_retries, timeout=timeout, max_concurrency=max_concurrency)
        try:
            import openai
        except ImportError as error:
            raise lacking("OpenAI", "openai", error) from error
        if is_azure:
            self._client_class: Any = openai.AsyncAzureOpenAI
            self.key_variable = "AZURE_OPENAI_API_KEY"
        else:
            self._client_class = openai.AsyncOpenAI
            elsewhere = base_url or os.environ.get("OPENAI_BASE_URL")
            if elsewhere and not api_key and not os.environ.get(self.key_variable):
                api_key = "none"
        given = {"base_url": base_url, "api_key": api_key}
        self._arguments = {
            **client_args,
            **{name: value for name, value in given.items() if value is not None},
            "max_retries": max_retries,
            "timeout": openai.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
        }
        try:
            self._spare = self._client_class(**self._arguments)
        except openai.OpenAIError as error:
            raise AuthenticationFailed(f"OpenAI: {error}") from error
        self.address = str(url := self._spare.base_url)
        official = is_azure or str(url.host).endswith(OFFICIAL_HOSTS)
        if isinstance(chat_template, str):
            chat_template = template_named(chat_template)
        self.chat_template = chat_template or self.chat_template
        self._kind = PLAIN if official or server == "" else kind_named(server) if server else None
        self._asking = threading.Lock()
        self._speak(_api(model_name, api, is_chat_model, official))
        self.tokens = TokenIds(model_name, tokenizer, official)
        self.service = OpenAIService(
            self.name,
            model_name,
            official,
            explicit=not official and not is_reasoning(model_name),
            reasoning=is_reasoning(model_name),
            continues=continue_final_message,
            image_token=self.chat_template.image_token,
            kind=self._kind or PLAIN,
            extra=dict(extra_body or {}),
        )
        self._reply = type("Reply", (openai.BaseModel,), {})
        self._stream = openai.AsyncStream[object]

    def _speak(self, api: type[Exchange]) -> None:
        """Set what follows from the API: a completion model is sent a text, which it continues."""
        self.api = api
        self.continues = api is TextExchange
        self.speculates = "text" if self.continues else "chat"
        self.messages_only = self.calls_tools = not self.continues

    @property
    def constraints(self) -> frozenset[str]:  # type: ignore[override]
        """Kinds of constraints that the server enforces. The first reader finds out its kind."""
        with self._asking:
            if self._kind is None:
                answers = ServerAnswers(self.address, str(self._arguments.get("api_key") or ""))
                kind = kind_of(answers)
                self._kind = kind if answers.reached else None  # else the next reader tries again
                self.service = replace(self.service, kind=kind)
        return self.service.kind.constraints(not self.continues)

    def open_client(self) -> Any:
        spare, self._spare = self._spare, None
        return spare or self._client_class(**self._arguments)

    async def send(
        self, client: Any, path: str, body: dict[str, Any]
    ) -> tuple[Mapping[str, Any], str | None]:
        return _plain(await client.post(path, cast_to=self._reply, body=body))

    async def events(self, client: Any, exchange: Exchange) -> AsyncGenerator[Any, None]:
        kinds = {"cast_to": object, "stream_cls": self._stream}
        stream = await client.post(exchange.path, body=exchange.body, stream=True, **kinds)
        async with stream:
            exchange.request_id = stream.response.headers.get(REQUEST_ID)
            async for event in stream:
                yield event


def _needs_no_scores(method: ChoicesMethod) -> bool:
    return method is token_length_normalized or method.generates


def _api(model: str, api: str, is_chat_model: bool | None, official: bool) -> type[Exchange]:
    """Return the exchange of an API's name, with "auto" by the model. Raises ValueError for an
    unknown name, or one that ``is_chat_model`` contradicts."""
    if api == "auto":
        api = "chat"
        if is_chat_model is False or (is_chat_model is None and TEXT_MODELS.match(model)):
            api = "completions"
        elif official and RESPONSES_MODELS.match(model):
            api = "responses"
    elif api not in APIS:
        raise ValueError(f"api is {api!r}; use one of {['auto', *APIS]}")
    elif is_chat_model is not None and is_chat_model is (api == "completions"):
        raise ValueError(f"api={api!r} and is_chat_model={is_chat_model} exclude one another")
    return APIS[api]


def _plain(reply: Any) -> tuple[Mapping[str, Any], str | None]:
    """The reply as it was sent, and its id. Raises BadReply where it was no JSON object."""
    fields = getattr(reply, "model_extra", None)
    if fields is None:
        raise BadReply(f"it is {brief(reply)}, not a JSON object")
    return fields, getattr(reply, "_request_id", None)
