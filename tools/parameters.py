"""The table of sampling parameters in docs/http.md, from their declaration.

python -m tools.parameters            print it
python -m tools.parameters --write    put it into the page
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from sglang.ir.declaration import Parameter
from sglang.ir.sampling import PARAMETERS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "http.md"
HEAD = "| sampling parameter | default | value | |"


def row(parameter: Parameter) -> str:
    """One line of the table."""
    default = json.dumps(parameter.default)
    shown = "" if parameter.default in ((), {}, None) else f"`{default}`"
    return f"| `{parameter.name}` | {shown} | {parameter.expected} | {parameter.description} |"


def table() -> str:
    """The table, without a newline at its end."""
    return "\n".join([HEAD, "|---|---|---|---|", *map(row, PARAMETERS.values())])


def inserted(page: str) -> str:
    """The page with its table replaced. Raises ValueError where it has none."""
    begin = page.index(HEAD)
    end = page.index("\n\n", begin)
    return page[:begin] + table() + page[end:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/http.md")
    if parser.parse_args().write:
        PAGE.write_text(inserted(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table())


if __name__ == "__main__":
    main()
