"""Gains of tokens guessed ahead, and texts without a gain."""
