"""Displays of a run as text and HTML, and the timeline."""
