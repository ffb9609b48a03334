"""``python -m benchmark.grammars``: real regexes and JSON schemas through four libraries.

Ours, llguidance, xgrammar and outlines-core get the lists of ``test/data``: 300 regexes, 333
schemas, and the schemas of the JSON-Schema-Test-Suite (draft 2020-12, required). A constraint is
*right* where all its texts are judged as ``re`` and ``jsonschema`` judge them; else it is a wrong
accept (the worst: a wrong text may be generated), a wrong refuse, refused up front, or late. Then
what compiling and masks cost for a few constraints.

Each contender runs in a process of its own, under a limit of time and memory. One that is not
installed is skipped; ``--python xgrammar=PATH`` names the interpreter of an environment that has
it, and needs numpy there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from sglang.srt.commands.bench.stats import Spread

from benchmark.grammars.asked import Asked, Missing
from benchmark.grammars.contenders import CONTENDERS, Tokens
from benchmark.grammars.vocabulary import NAMES, vocabulary
from benchmark.grammars.work import Item, lists, table
from benchmark.harness import records
from benchmark.harness.command import command_parser
from benchmark.harness.machine import about, heading
from benchmark.harness.tables import columns

VERDICTS = ("right", "wrong accept", "wrong refuse", "refused", "late")
LISTS = ("regexes", "schemas", "suite")
ALLOWED = {"regexes": 0.98, "schemas": 0.86}  # least shares of ours


def _parser() -> argparse.ArgumentParser:
    out = command_parser("benchmark.grammars", __doc__)
    add = out.add_argument
    add("--contenders", nargs="*", default=list(CONTENDERS), choices=list(CONTENDERS))
    add("--python", nargs="*", default=[], metavar="NAME=PATH", help="interpreter of a contender")
    add("--lists", nargs="*", default=list(LISTS), choices=LISTS)
    add("--sample", type=int, default=0, help="items of each list; default: all")
    add("--vocabulary", default="bytes", choices=NAMES, help="of the lists; default: %(default)s")
    add("--table-vocabulary", default="tekken", choices=NAMES,
        help="of the timed constraints; default: %(default)s, 131 k tokens")  # fmt: skip
    add("--limit", type=float, default=10.0, help="seconds a constraint may take")
    add("--table", action=argparse.BooleanOptionalAction, default=True, help="time constraints")
    add("--seed", type=int, default=0, help="of the texts that are walked")
    add("--verbose", action="store_true", help="name what is not right")
    add("--output-file", default="", help="append one JSON line a contender and list")
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where ours has no wrong accept and is right often enough, else 1."""
    options = _parser().parse_args(arguments)
    work = lists(options.lists, options.sample)
    timed = table(options.seed) if options.table else []
    judged: dict[str, dict[str, Counter[str]]] = {title: {} for title in work}
    times: dict[str, dict[str, str]] = {item.name: {} for item in timed}
    out: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="grammars-") as folder:
        for name in options.contenders:
            try:
                if work:
                    with _asked(options, name, options.vocabulary, folder) as asked:
                        known = vocabulary(options.vocabulary)
                        for title, items in work.items():
                            found = _judge(asked, items, known, options.verbose)
                            judged[title][name] = found
                            out.append({"list": title, "contender": name, **found})
                if timed:
                    with _asked(options, name, options.table_vocabulary, folder) as asked:
                        known = vocabulary(options.table_vocabulary)
                        for item in timed:
                            line = asked.ask(item.kind, item.text, _encoded(item, known)[0], True)
                            times[item.name][name] = _shown(line)
                            figures = _figures(line)
                            out.append({"constraint": item.name, "contender": name, **figures})
            except Missing as error:
                print(f"{name} is skipped: {error}", file=sys.stderr)
    print(heading())
    _print(options, work, judged, times)
    if options.output_file:
        common = about(options)
        records.append(options.output_file, *({**line, **common} for line in out))
    return 0 if _good(judged) else 1


def _asked(options: argparse.Namespace, name: str, tokens: str, folder: str) -> Asked:
    """Open a contender, after writing its vocabulary. Raises Missing where it is not installed."""
    path = Path(folder) / f"{tokens}.json"
    if not path.exists():
        Tokens.write(path, tokens, vocabulary(tokens))
    pythons = dict(entry.split("=", 1) for entry in options.python)
    return Asked(name, path, pythons.get(name, sys.executable), options.limit)


def _encoded(item: Item, known: Any) -> tuple[list[list[int]], list[int]]:
    """Token ids of all variants of all texts, and how many variants each text has."""
    texts = [*item.yes, *item.no]
    flat = [variant for text in texts for variant in text]
    return known.encode(flat), [len(text) for text in texts]


def _judge(asked: Asked, items: Sequence[Item], known: Any, verbose: bool) -> Counter[str]:
    found: Counter[str] = Counter()
    for item in items:
        ids, lengths = _encoded(item, known)
        line = asked.ask(item.kind, item.text, ids, False)
        verdict, why = _verdict(item, line, lengths)
        found[verdict] += 1
        if "forced" in line:
            found["forced tokens"] += line["forced"][0]
            found["tokens"] += line["forced"][1]
        if verbose and verdict != "right":
            print(f"{asked.name}: {verdict}: {item.name:.100}: {why}", file=sys.stderr)
    return found


def _verdict(item: Item, line: dict[str, Any], lengths: list[int]) -> tuple[str, str]:
    if "accepted" not in line:
        return ("late", "") if "late" in line else ("refused", line["refused"])
    ends = list(accumulate(lengths))
    taken = [any(line["accepted"][end - size : end]) for end, size in zip(ends, lengths)]
    for text, accepted in zip(item.no, taken[len(item.yes) :]):
        if accepted:
            return "wrong accept", text[0]
    for text, accepted in zip(item.yes, taken):
        if not accepted:
            return "wrong refuse", text[0]
    return "right", ""


def _figures(line: dict[str, Any]) -> dict[str, Any]:
    if "ms" not in line:
        return line
    cold, warm = Spread.of(line["cold"]), Spread.of(line["warm"])
    assert cold is not None
    assert warm is not None
    return {
        "ms": line["ms"],
        "mask_us": {"mean": cold.mean, "p99": cold.p99, "warm": warm.mean},
        "taken": all(line["accepted"]),
        "forced": line["forced"],
    }


def _shown(line: dict[str, Any]) -> str:
    figures = _figures(line)
    if "ms" not in figures:
        return "late" if "late" in line else "refused"
    mask = figures["mask_us"]
    wrong = "" if figures["taken"] else " (refuses a text)"
    return (
        f"{figures['ms']:.1f} ms | {mask['mean']:.0f} / {mask['p99']:.0f} us, "
        f"{mask['warm']:.1f} warm{wrong}"
    )


def _print(
    options: argparse.Namespace,
    work: dict[str, list[Item]],
    judged: dict[str, dict[str, Counter[str]]],
    times: dict[str, dict[str, str]],
) -> None:
    for title, by_name in judged.items():
        print(f"\n{len(work[title])} {title}, vocabulary {options.vocabulary}")
        lines = [["", *VERDICTS]]
        lines += [[name, *(str(found[v]) for v in VERDICTS)] for name, found in by_name.items()]
        print(columns(lines))
        for name, found in by_name.items():
            if found["forced tokens"]:
                share = found["forced tokens"] / found["tokens"]
                print(f"{name} need not sample {share:.1%} of the tokens of accepted texts")
    if times:
        print(f"\nvocabulary {options.table_vocabulary}, times of the processor")
        print("compile ms | mask us: mean / p99 of a first walk, mean of a second")
        names = [name for name in options.contenders if any(name in row for row in times.values())]
        rows = [[title, *(row.get(name, "") for name in names)] for title, row in times.items()]
        print(columns([["", *names], *rows]))


def _good(judged: dict[str, dict[str, Counter[str]]]) -> bool:
    """Whether ours never accepts what is wrong, and is right as often as is claimed."""
    good = True
    for title, by_name in judged.items():
        found = by_name.get("sglang")
        if found is None:
            continue
        total = sum(found[verdict] for verdict in VERDICTS)
        if found["wrong accept"]:
            print(f"{title}: {found['wrong accept']} wrong accepts")
            good = False
        if found["right"] < ALLOWED.get(title, 0.0) * total:
            print(f"{title}: {found['right']} of {total} right; {ALLOWED[title]:.0%} are claimed")
            good = False
    return good


if __name__ == "__main__":
    sys.exit(main())
