"""Anthropic's messages API."""

from sglang.backend.anthropic.anthropic_backend import Anthropic

__all__ = ["Anthropic"]
