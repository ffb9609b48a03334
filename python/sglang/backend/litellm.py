"""LiteLLM: chat models of many services, through the ``litellm`` package."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from sglang.backend.openai.api_exchange import Exchange, OpenAIService, is_reasoning
from sglang.backend.openai.openai_backend import ExchangeBackend
from sglang.backend.service_backend import MAX_CONCURRENCY, MAX_RETRIES, TIMEOUT_SECONDS
from sglang.errors import lacking
from sglang.ir.chat_template import ChatTemplate, template_named


class LiteLLM(ExchangeBackend):
    """A chat model, called through ``litellm`` by its name ("groq/...", "bedrock/...", ...).

    Args:
        model_name: name in the spelling of ``litellm``.
        chat_template: a template or its name, for the text of roles.
        api_key: key of the service; None: ``litellm`` reads the service's environment variable.
        max_retries: as in ``OpenAI``.
        timeout: in seconds, as in ``OpenAI``.
        max_concurrency: as in ``OpenAI``.
        kwargs: further arguments of each ``litellm.acompletion``.

    Raises:
        Unsupported: the package is not installed.
    """

    name = "LiteLLM"
    key_variable = "the service's key variable"
    speculates = "chat"
    messages_only = calls_tools = True
    constraints = frozenset({"json_schema"})

    def __init__(
        self,
        model_name: str,
        chat_template: str | ChatTemplate | None = None,
        api_key: str | None = None,
        *,
        max_retries: int = MAX_RETRIES,
        timeout: float = TIMEOUT_SECONDS,
        max_concurrency: int = MAX_CONCURRENCY,
        **kwargs: Any,
    ) -> None:
        super().__init__(max_retries=max_retries, timeout=timeout, max_concurrency=max_concurrency)
        try:
            import litellm
        except ImportError as error:
            raise lacking("LiteLLM", "litellm", error) from error
        self._litellm = litellm
        if isinstance(chat_template, str):
            chat_template = template_named(chat_template)
        self.chat_template = chat_template or self.chat_template
        self.service = OpenAIService(
            self.name,
            model_name,
            official=False,
            reasoning=is_reasoning(model_name),
            image_token=self.chat_template.image_token,
        )
        self._arguments = {**kwargs, "max_retries": max_retries, "timeout": timeout}
        if api_key is not None:
            self._arguments["api_key"] = api_key

    async def loop_client(self) -> Any:
        """Return the ``litellm`` package in place of a client: it manages its own connections."""
        self.check_open()
        return self._litellm

    async def send(
        self, client: Any, path: str, body: dict[str, Any]
    ) -> tuple[Mapping[str, Any], str | None]:
        reply = await client.acompletion(**body, **self._arguments)
        return reply.model_dump(), None

    async def events(self, client: Any, exchange: Exchange) -> AsyncGenerator[Any, None]:
        async for chunk in await client.acompletion(**exchange.body, **self._arguments):
            yield chunk.model_dump()
