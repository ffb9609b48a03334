"""The body of /v1/messages: Anthropic's fields, and SGLang's own."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from sglang.ir.sampling import PARAMETERS
from sglang.srt.runtime.completion_fields import CompletionFields
from sglang.srt.runtime.conversations.chat_request import MaxCalls
from sglang.srt.runtime.parking.kv_hints import KvHintsField


class _Block(msgspec.Struct, tag_field="type"):
    """A content block. Fields without effect on this server, such as ``cache_control``, are
    ignored."""


class TextBlock(_Block, tag="text"):
    text: str


class ThinkingBlock(_Block, tag="thinking"):
    thinking: str


class RedactedThinkingBlock(_Block, tag="redacted_thinking"):
    pass


class ImageSource(msgspec.Struct):
    type: Literal["base64", "url"]
    media_type: str = "image/png"
    data: str = ""
    url: str = ""

    @property
    def address(self) -> str:
        return self.url if self.type == "url" else f"data:{self.media_type};base64,{self.data}"


class ImageBlock(_Block, tag="image"):
    source: ImageSource | None = None


class DocumentBlock(_Block, tag="document"):
    pass


class SearchResultBlock(_Block, tag="search_result"):
    pass


class ToolUseBlock(_Block, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


ResultPart = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock


class ToolResultBlock(_Block, tag="tool_result"):
    tool_use_id: str
    content: str | list[ResultPart] | None = None
    is_error: bool | None = None


class McpToolUseBlock(_Block, tag="mcp_tool_use"):
    """A call that the server has run."""

    id: str
    name: str
    input: dict[str, Any]


class McpToolResultBlock(_Block, tag="mcp_tool_result"):
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


Block = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | McpToolUseBlock
    | McpToolResultBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
)


class Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class CustomTool(msgspec.Struct):
    """``type``: "custom", "toolbox" or missing. Other types are tools that Anthropic runs."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(msgspec.Struct, tag_field="type", tag="json_schema"):
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct):
    format: JsonFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class MessagesBody(CompletionFields, kw_only=True):
    """A ``max_tokens`` of 0 only fills the cache. To count tokens, ``max_tokens`` is not needed."""

    messages: list[Message]
    system: str | list[TextBlock] | None = None
    stop_sequences: Annotated[
        list[str] | None, PARAMETERS["stop"].bounds, PARAMETERS["stop"].description
    ] = None
    tools: list[CustomTool] | None = None
    tool_choice: ToolChoice | None = None
    max_calls: MaxCalls | None = None
    kv_hints: KvHintsField | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    thread: Any = None
    mcp_servers: Any = None
    compaction: Any = None

    @property
    def thinks(self) -> bool:
        """Whether the request wants the model to think before it answers."""
        return self.thinking is not None and self.thinking.type != "disabled"

    @property
    def shows_thinking(self) -> bool:
        """Whether the reply has thinking blocks."""
        return self.thinks and self.thinking.display != "omitted"  # type: ignore[union-attr]
