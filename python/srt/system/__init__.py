"""Processes, their logs, and where they import from: nothing of the engine."""
