"""Inferlets: programs that hold the pages, forward passes and distributions of their generation.

    async def main(ctx):
        text = await Context(ctx).fill("Hello, ")
        return await text.generate_until(max_tokens=10)

``sglang inferlet run file.py`` runs it, ``Engine.inferlet`` too. Standard library only.
"""

from sglang.inferlet.ctx import Ctx
from sglang.inferlet.dist import Dist
from sglang.inferlet.page_context import PageContext as Context
from sglang.inferlet.samplers import Greedy, Nucleus, Sampler
from sglang.inferlet.turns import CallError, Turns

__all__ = ["CallError", "Context", "Ctx", "Dist", "Greedy", "Nucleus", "Sampler", "Turns"]
