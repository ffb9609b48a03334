"""Forecasts: the cost of a batch, before anything is sent.

    rehearsal  the program runs on answers of our own (script), its calls are kept
    needs      what each call has the backend read: units of the prompt, and how much may be a hit
    cache      one need after the other, against all that was read before: a walk of a radix tree
    planned    the sums, the tree, the cost

A *unit* is a token: its id, or a number of its own for an unknown token.
"""

from sglang.forecast.batch_plan import Comparison, Plan, Planned, plan

__all__ = ["Comparison", "Plan", "Planned", "plan"]
