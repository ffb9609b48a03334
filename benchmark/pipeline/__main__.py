"""Claim: over four stages, gLLM's token throttling serves 1.7 times the rate of Sarathi-Serve's
policy on the same runtime at 80 % attainment, with at most 0.4 times its time a token.

    python -m benchmark.pipeline [rates] [scaling] [ablation] [sensitivity] [long-prompt] [planning]
    python -m benchmark.pipeline rates --workload azure --capacity 120000 --rates 2,3,4,5
    python -m benchmark.pipeline --calibrate costs.json [--model PATH]

The engine is the real one; time is virtual. Its stages compute nothing: they say how long a pass
would take, after a file of costs. The one that is shipped is an assumption; ``--calibrate`` writes
one that is measured on this machine. Every generation is checked to have its tokens. Means over
the seeds:

    inside, whole   tokens a second, prompts and answers: inside the arrival window, and from the
                    first arrival to the last token
    SLO             share of the requests within both limits (``--slo``)
    bubble          share of the stages' time inside the arrival window without a pass
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmark.harness.command import command_parser
from benchmark.models import EMBEDDED
from benchmark.pipeline import figures
from benchmark.pipeline.figures import COLUMNS, Point, Scope, reach
from benchmark.pipeline.loads import LENGTHS
from benchmark.pipeline.virtual_pipeline import ASSUMED, ModelCosts

FIGURES = ("rates", "scaling", "ablation", "sensitivity", "long-prompt", "planning")
ATTAINED = 0.8


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def words(text: str) -> list[str]:
    return text.split(",")


def parser() -> argparse.ArgumentParser:
    made = command_parser("benchmark.pipeline", __doc__, None)
    made.add_argument("figures", nargs="*", default=["rates", "long-prompt"], metavar="figure",
                      help=f"some of {', '.join(FIGURES)}")  # fmt: skip
    made.add_argument("--workload", choices=sorted(LENGTHS), default="sharegpt")
    made.add_argument("--rates", type=numbers, default=[1, 4, 8, 12, 16], help="requests a second")
    made.add_argument("--arms", type=words, default=["sarathi", "throttle", "balance"],
                      help='budgets by word; "throttle w/o UT" leaves a term out')  # fmt: skip
    made.add_argument("--stages", type=int, default=4)
    made.add_argument("--capacity", type=int, default=400_000, help="tokens of KV memory")
    made.add_argument("--seconds", type=float, default=60.0, help="of arrivals; gLLM has 128")
    made.add_argument("--seeds", type=int, default=5)
    made.add_argument("--slo", type=numbers, default=[1.0, 0.25],
                      help="most seconds to the first token, and a token after it")  # fmt: skip
    made.add_argument("--costs", type=Path, default=ASSUMED, help="file of costs")
    made.add_argument("--calibrate", type=Path, metavar="FILE", help="measure and write the costs")
    made.add_argument("--model", default=str(EMBEDDED), help="checkpoint to calibrate with")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the points too")
    made.add_argument("--plot", type=Path, metavar="FILE", help="draw the rates (matplotlib)")
    return made


def shown(points: Iterable[Point]) -> list[Point]:
    """Print points as a table while they come."""
    found: list[Point] = []
    for point in points:
        if not found:
            print(f"\nfigure {point.figure}\n{'':22}{'':18}", *(f"{c:>12}" for c in COLUMNS))
        found.append(point)
        row = (f"{value:>12.3f}" if value < 100 else f"{value:>12.0f}" for value in point.values)
        print(f"{point.setting:22}{point.arm:18}", *row, flush=True)
    return found


def ratios(points: Sequence[Point], first: str, second: str) -> None:
    """Print one arm over another, setting by setting, and the rates that both reach."""
    pairs = {(p.setting, p.arm): p for p in points}
    print(f"\n{first} / {second}")
    for setting in dict.fromkeys(p.setting for p in points):
        one, two = pairs.get((setting, first)), pairs.get((setting, second))
        if one is not None and two is not None:
            row = (f"{a / b if b else 0:>12.3f}" for a, b in zip(one.values, two.values))
            print(f"{setting:40}", *row)
    high, low = reach(points, first, ATTAINED), reach(points, second, ATTAINED)
    print(f"rate at {ATTAINED:.0%} attainment: {high:.2f} against {low:.2f} a second")


def plot(points: Sequence[Point], path: Path) -> None:
    """Plot every column but the last against the rate."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(12, 6))
    for axis, column in zip(axes.flat, COLUMNS):
        for word in dict.fromkeys(point.arm for point in points):
            own = [point for point in points if point.arm == word]
            at = [float(point.setting.removesuffix("/s")) for point in own]
            axis.plot(at, [point[column] for point in own], marker="o", label=word)
        axis.set_title(column)
        axis.set_xlabel("requests a second")
    axes.flat[0].legend()
    figure.tight_layout()
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    wrong = [name for name in options.figures if name not in FIGURES]
    if wrong:
        parser().error(f"figure is {wrong[0]!r}; use some of {', '.join(FIGURES)}")
    if options.calibrate is not None:
        from benchmark.pipeline.calibrate import calibrate

        costs, error = calibrate(options.model)
        options.calibrate.write_text(json.dumps(costs, indent=2) + "\n")
        print(json.dumps(costs, indent=2))
        print(f"error of the fit on other passes: {error:.1%}")
        return
    scope = Scope(
        ModelCosts.read(options.costs), options.stages, options.seconds, options.seeds,
        (options.slo[0], options.slo[1]),
    )  # fmt: skip
    points: list[Point] = []
    for name in options.figures:
        if name == "rates":
            found = shown(figures.rates(scope, options.arms, options.workload, options.rates,
                                        options.capacity))  # fmt: skip
            for first, second in (("throttle", "sarathi"), ("balance", "throttle")):
                if {first, second} <= set(options.arms):
                    ratios(found, first, second)
            if options.plot is not None:
                plot(found, options.plot)
        elif name == "scaling":
            found = shown(figures.scaling(scope, options.arms, 32.0))
        elif name == "ablation":
            found = shown(figures.ablation(scope, 5.0, 120_000))
        elif name == "sensitivity":
            found = shown(figures.sensitivity(scope, 5.0, 120_000))
        elif name == "planning":
            found = []
            print("\nprocessor ms a plan that a budget adds, 512 requests and 512 prompts")
            for word, ms in figures.planning(scope, ("throttle", "balance", "turns", "sarathi")):
                print(f"{word:20}{ms:>10.3f}", flush=True)
        else:
            found = []
            print(f"\n{'one prompt alone':20}{'tokens':>8}{'TTFT s':>10}{'x one stage':>14}")
            stage = 0.0
            for tokens, arm, seconds in figures.alone(scope):
                stage = seconds if arm == "one stage" else stage
                print(f"{arm:20}{tokens:>8}{seconds:>10.3f}{stage / seconds:>14.2f}", flush=True)
        points += found
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(point) for point in points]) + "\n")


if __name__ == "__main__":
    main()
