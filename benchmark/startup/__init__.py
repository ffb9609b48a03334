"""How long a user waits for the first token."""
