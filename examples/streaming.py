"""Streaming: the text is read while the program still writes it."""

from __future__ import annotations

import sglang as sgl
from connect import connect


@sgl.function
def listing(s, items):
    s += sgl.user("Write as a numbered list: " + items)
    s += sgl.assistant(sgl.gen("list", max_tokens=64))


def main() -> list[str]:
    state = listing.run("lamp, clock, rope and book", temperature=0, stream=True)
    for piece in state.text_iter("list"):
        print(piece, end="", flush=True)
    print()
    return list(state["list"].splitlines())


if __name__ == "__main__":
    connect()
    main()
