"""The modules of upstream's ``sglang.srt`` that programs import; the runtime itself is ``srt``.

Each re-exports, or calls, what is defined elsewhere. None imports torch before it is used.
"""
