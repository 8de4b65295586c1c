"""`python -m bench.reconcile`: what it takes to find out how two sets of ids differ."""

import argparse
import json
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

from bench.reconcile import effort, fixed, spread
from bench.reconcile.plan import PLANS
from bench.reconcile.setting import Setting
from bench.support.figures import Figure, console, figures_table, json_line
from bench.support.processes import BenchError

PARTS: dict[str, Callable[[Setting], list[Figure]]] = {
    "fixed": fixed.measure,
    "spread": spread.measure,
    "effort": effort.measure,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.reconcile", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a first look in a few minutes")
    parser.add_argument("--size", choices=PLANS, default="full", help="how much is measured")
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="one part; may be given again"
    )
    parser.add_argument("--seed", type=int, help="the sets of an earlier run")
    parser.add_argument("--details", type=Path, help="write every single measurement here, as JSON")
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    plan = PLANS["quick" if asked.quick else asked.size]
    seed = secrets.randbits(32) if asked.seed is None else asked.seed
    screen = console()
    screen.print(f"Size: {plan.name}. Sets made from the seed {seed}.")
    if plan.name != "full":
        screen.print("[yellow]Fewer sets than the full bench: a first look.[/]")
    figures: list[Figure] = []
    with screen.status("starting") as status:
        setting = Setting(plan, screen, status, seed)
        for name in asked.only or PARTS:
            try:
                figures += PARTS[name](setting)
            except BenchError as error:
                screen.print(f"[red]{name} could not be measured: {error}[/]")
                return 1
    screen.print(figures_table("Promised", figures))
    if asked.details is not None:
        asked.details.write_text(json.dumps(setting.details, indent=1))
    sys.stdout.write(json_line("reconcile", figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
