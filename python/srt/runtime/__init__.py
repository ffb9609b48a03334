"""The runtime: requests of text and media, for all HTTP APIs and for ``sglang.Engine``."""
