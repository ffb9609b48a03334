"""A conversation of several turns: roles, and a state that remembers what was said."""

from __future__ import annotations

import sglang as sgl
from connect import connect


@sgl.function
def conversation(s, name, city):
    s += sgl.user(f"My name is {name}. I live in {city}.")
    s += sgl.assistant(sgl.gen("greeting", max_tokens=32))
    s += sgl.user("What is my name?")
    s += sgl.assistant(sgl.gen("name", max_tokens=32))
    with s.user():
        s += "Where do I live?"
    with s.assistant():
        s += sgl.gen("city", max_tokens=32)


def main() -> list[str]:
    state = conversation.run("Nora", "Lisbon", temperature=0)
    for message in state.messages():
        print(f"{message['role']:>10}: {message['content']}")
    return [state["greeting"], state["name"], state["city"]]


if __name__ == "__main__":
    connect()
    main()
