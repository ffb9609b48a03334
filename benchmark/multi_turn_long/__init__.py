"""Four turns of chat with long answers."""
