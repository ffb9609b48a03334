"""MT-bench: two turns of chat."""
