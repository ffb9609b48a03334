"""The runtime: engine, server, and the command ``sglang``.

The folder is ``python/srt``. It is imported as ``sglang.srt``: by a link in ``python/sglang``, or
by the package directories of ``pyproject.toml``. The modules ``server_args``, ``entrypoints``,
``constrained``, ``utils`` and ``hf_transformers_utils`` hold aliases under upstream's names.
"""
