"""The modules of upstream's ``sglang.lang``, by name: each re-exports what is defined elsewhere."""
