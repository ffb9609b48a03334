"""The Chat Completions route, which continues a conversation."""
