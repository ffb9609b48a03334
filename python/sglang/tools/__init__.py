"""Tools that a model calls while a program generates: ``gen(tools=...)``."""
