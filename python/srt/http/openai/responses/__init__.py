"""The Responses routes."""
