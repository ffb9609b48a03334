"""Contexts that wait for a tool. The server keeps their tokens, the engine a claim on their KV."""
