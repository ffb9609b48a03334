"""Contexts that wait for a tool: the server keeps their tokens, the engine a claim on their KV."""
