"""`python -m bench.pipeline`: what the jobs of the pipeline take, against others."""

import argparse
import json
import secrets
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

from bench.pipeline.plan import PLANS
from bench.pipeline.setting import Setting
from bench.support.arguments import add_folder, add_seed, checked, parser_of
from bench.support.figures import Figure, console, figures_table, json_line
from bench.support.processes import BenchError

# Each is a module of this package with `measure`, imported when its turn has come.
PARTS = ("digest", "reconcile", "audit", "compaction", "journal", "lag")


def arguments() -> argparse.Namespace:
    parser = parser_of("pipeline", __doc__, PARTS, PLANS)
    add_seed(parser)
    add_folder(parser, "where data is made (some 15 GB at full size); else temporary")
    return checked(parser)


def measure_of(part: str) -> Callable[[Setting], list[Figure]]:
    module = import_module(f"bench.pipeline.{part}")
    return cast(Callable[[Setting], list[Figure]], module.measure)


def main() -> int:
    asked = arguments()
    plan = PLANS["quick" if asked.quick else asked.size]
    seed = secrets.randbits(32) if asked.seed is None else asked.seed
    screen = console()
    screen.print(f"Size: {plan.name}. Data made from the seed {seed}.")
    if plan.name != "full":
        screen.print("[yellow]Less data than the full bench: a first look.[/]")
    figures: list[Figure] = []
    # Workers of Spark may still write when the folder goes.
    scratch = tempfile.TemporaryDirectory(
        prefix="syncline-bench-", dir=asked.folder, ignore_cleanup_errors=True
    )
    with scratch as folder, screen.status("starting") as status:
        setting = Setting(plan, screen, status, seed, Path(folder))
        try:
            for name in asked.only or PARTS:
                try:
                    figures += measure_of(name)(setting)
                except BenchError as error:
                    screen.print(f"[red]{name} could not be measured: {error}[/]")
                    return 1
        finally:
            setting.close()
    screen.print(figures_table("Promised", figures))
    if asked.details is not None:
        asked.details.write_text(json.dumps(setting.details, indent=1))
    sys.stdout.write(json_line("pipeline", figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
