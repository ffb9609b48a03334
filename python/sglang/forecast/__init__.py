"""Forecasts: the cost of a batch, before anything is sent.

    rehearsal    the program runs on given answers (script), its calls are kept
    needs        units of the prompts that each call has the backend read
    cache_model  one need after the other, against all earlier ones: a walk of a radix tree
    batch_plan   the sums, the tree, the cost

A *unit* is a token: its id, or a number of its own for an unknown token.
"""

from sglang.forecast.batch_plan import Comparison, Plan, Planned, plan

__all__ = ["Comparison", "Plan", "Planned", "plan"]
