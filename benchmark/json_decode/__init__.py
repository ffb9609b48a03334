"""Gain of jump-forward for JSON decoded under a constraint, and costs of constraints."""
