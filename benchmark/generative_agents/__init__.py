"""Calls in the form of the generative agents."""
