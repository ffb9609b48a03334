"""Structured output by asking for it: a biography becomes a dict."""

from __future__ import annotations

import json
from typing import Any

import sglang as sgl
from connect import connect

BIOGRAPHY = (
    "Clara Stone works as a painter. Clara is 34 years old. Clara lives in Madrid. "
    "Clara has a pet rabbit. Clara is brave and loyal."
)


@sgl.function
def sheet(s, text, keys):
    s += sgl.user(f"{text}\nExtract the character as JSON with the keys {', '.join(keys)}.")
    s += sgl.assistant("{" + sgl.gen("rest", max_tokens=96))
    return json.loads("{" + s["rest"])


def main() -> dict[str, Any]:
    state = sheet.run(BIOGRAPHY, ["name", "age", "role", "city"], temperature=0)
    print(json.dumps(state.ret_value, indent=2))
    return state.ret_value


if __name__ == "__main__":
    connect()
    main()
