"""Four turns of chat with answers of a few tokens."""
