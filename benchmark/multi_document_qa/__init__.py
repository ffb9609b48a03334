"""Questions about several documents, which are encoded side by side."""
