"""`python -m bench.reconcile`: what it takes to find out how two sets of ids differ."""

import argparse
import json
import secrets
import sys
from collections.abc import Callable

from bench.reconcile import effort, fixed, spread
from bench.reconcile.plan import PLANS
from bench.reconcile.setting import Setting
from bench.support.arguments import add_seed, checked, parser_of
from bench.support.figures import Figure, console, figures_table, json_line
from bench.support.processes import BenchError

PARTS: dict[str, Callable[[Setting], list[Figure]]] = {
    "fixed": fixed.measure,
    "spread": spread.measure,
    "effort": effort.measure,
}


def arguments() -> argparse.Namespace:
    parser = parser_of("reconcile", __doc__, PARTS, PLANS)
    add_seed(parser)
    return checked(parser)


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
