"""Logs, metrics and spans of requests."""
