"""A conversation to be continued, and the Chat Completions route."""
