"""The tables of request fields in docs/http.md, from their declarations.

python -m tools.parameters            print them
python -m tools.parameters --write    put them into the page
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sglang.ir.declaration import Parameter
from sglang.ir.sampling import PARAMETERS
from sglang.srt.requests.common_fields import declarations
from sglang.srt.runtime.generate_request import GenerateRequest
from sglang.srt.runtime.sessions import OpenSession, SessionParams
from sglang.srt.web.openai.embeddings import EmbeddingBody

PAGE = Path(__file__).resolve().parents[1] / "docs" / "http.md"
TABLES = {
    "| sampling parameter | default | value | |": PARAMETERS,
    "| field of `/generate` | value | |": declarations(GenerateRequest),
    "| field of `session_params` | value | |": declarations(SessionParams),
    "| field of `/open_session` | value | |": declarations(OpenSession),
    "| field of `/v1/embeddings` | value | |": declarations(EmbeddingBody),
}
"""By the head of the table in the page."""


def row(parameter: Parameter, default: bool) -> str:
    """One line of a table, with the default value or without."""
    cells = [f"`{parameter.name}`", parameter.expected, parameter.description]
    if default:
        shown = json.dumps(parameter.default)
        cells.insert(1, "" if parameter.default in ((), {}, None) else f"`{shown}`")
    return f"| {' | '.join(cells)} |"


def table(head: str) -> str:
    """The table of a head, without a newline at its end."""
    rows = [row(parameter, " default " in head) for parameter in TABLES[head].values()]
    return "\n".join([head, "|---" * head.count(" | ") + "|---|", *rows])


def inserted(page: str) -> str:
    """The page with its tables replaced. Raises ValueError where it lacks one."""
    for head in TABLES:
        begin = page.index(head)
        page = page[:begin] + table(head) + page[page.index("\n\n", begin) :]
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/http.md")
    if parser.parse_args().write:
        PAGE.write_text(inserted(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print("\n\n".join(map(table, TABLES)))


if __name__ == "__main__":
    main()
