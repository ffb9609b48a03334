"""Forecasts: the cost of a batch, computed before any request is sent.

    rehearsal    runs the program on given answers (script) and records its calls
    needs        the units (tokens) that each call makes the backend read
    cache_model  a radix tree that finds the cached prefix of each need among the earlier needs
    batch_plan   the sums, the prefix tree, the cost

A *unit* stands for a token: its id, or a unique number for an unknown token.
"""

from sglang.forecast.batch_plan import Comparison, Plan, Planned, plan

__all__ = ["Comparison", "Plan", "Planned", "plan"]
