"""Structured output: a biography becomes an object of a type."""

from __future__ import annotations

import sglang as sgl
from connect import connect
from pydantic import BaseModel

BIOGRAPHY = (
    "Clara Stone works as a painter. Clara is 34 years old. Clara lives in Madrid. "
    "Clara has a pet rabbit. Clara is brave and loyal."
)


class Sheet(BaseModel):
    name: str
    age: int
    role: str
    city: str


@sgl.function
def sheet(s, text):
    keys = ", ".join(Sheet.model_fields)
    s += sgl.user(f"{text}\nExtract the character as JSON with the keys {keys}.")
    s += sgl.assistant(sgl.gen("sheet", max_tokens=96, schema=Sheet))


def main() -> Sheet:
    found: Sheet = sheet.run(BIOGRAPHY, temperature=0).value("sheet")
    print(repr(found))
    return found


if __name__ == "__main__":
    connect()
    main()
