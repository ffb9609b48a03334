"""Routes over prompts: completions, embeddings, scores, tokens."""
