"""Conversations as requests to the model, and the parsing of their replies."""
