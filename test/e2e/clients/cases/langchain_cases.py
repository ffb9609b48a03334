"""``langchain-openai``: chat, streams, tools, typed outputs, embeddings."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict

QUESTION = "What is 17 + 25?"


class Lamp(BaseModel):
    """A lamp."""

    model_config = ConfigDict(extra="forbid")

    color: Literal["red", "blue"]
    lit: bool


@tool
def get_weather(city: Literal["Paris", "Oslo"]) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@pytest.fixture
def chat(url: str, key: str) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{url}/v1", api_key=key, model="m", temperature=0, max_retries=0, timeout=60
    )


def test_invoke(chat: ChatOpenAI) -> None:
    answer = chat.invoke([HumanMessage(QUESTION)])
    assert answer.content == "42"
    assert answer.usage_metadata["total_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"


def test_chain(chat: ChatOpenAI) -> None:
    prompt = ChatPromptTemplate.from_messages([("human", "What is {a} + {b}?")])
    chain = prompt | chat | StrOutputParser()
    assert chain.batch([{"a": 17, "b": 25}, {"a": 1, "b": 1}]) == ["42", "2"]

    async def main() -> list[str]:
        parts = [part async for part in chain.astream({"a": 17, "b": 25})]
        return [await chain.ainvoke({"a": 17, "b": 25}), "".join(parts)]

    assert asyncio.run(main()) == ["42", "42"]


def test_stream(chat: ChatOpenAI) -> None:
    chunks = list(chat.stream(QUESTION, stream_usage=True))
    assert "".join(chunk.content for chunk in chunks) == "42"
    assert sum(chunk.usage_metadata is not None for chunk in chunks) == 1


def test_tools(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
    said = [SystemMessage("Use tools."), HumanMessage("Weather in Paris?")]
    answer = bound.invoke(said)
    (call,) = answer.tool_calls
    assert call["name"] == "get_weather"
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert result.content in ("sunny in Paris", "sunny in Oslo")
    assert chat.bind_tools([get_weather]).invoke([*said, answer, result], max_tokens=8)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat: ChatOpenAI, method: str) -> None:
    lamps = chat.with_structured_output(Lamp, method=method)
    assert isinstance(lamps.invoke("The blue lamp is lit."), Lamp)


def test_responses_api(chat: ChatOpenAI) -> None:
    answer = chat.model_copy(update={"use_responses_api": True}).invoke(QUESTION)
    assert answer.text


def test_completion_and_logprobs(chat: ChatOpenAI, url: str, key: str) -> None:
    llm = OpenAI(base_url=f"{url}/v1", api_key=key, model="m", temperature=0, max_tokens=4)
    assert llm.invoke(f"Question: {QUESTION}\nAnswer:").startswith(" 42")
    found = chat.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    assert found.response_metadata["logprobs"]["content"]


def test_embeddings(url: str, key: str) -> None:
    """The client sends token ids of another vocabulary without
    ``check_embedding_ctx_length=False``."""
    found = OpenAIEmbeddings(
        base_url=f"{url}/v1", api_key=key, model="m", check_embedding_ctx_length=False
    )
    vectors = found.embed_documents(["the lamp", "the rope"])
    assert len(vectors) == 2
    assert vectors[0] == pytest.approx(found.embed_query("the lamp"), abs=1e-5)
