"""Constraints under upstream's module names."""

from sglang.srt.constrained.outlines_backend import build_regex_from_object

__all__ = ["build_regex_from_object"]
