"""OpenAI's APIs, and services that speak them."""

from sglang.backend.openai.openai_backend import OpenAI

__all__ = ["OpenAI"]
