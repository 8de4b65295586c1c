"""`python -m bench.log`: everything that the log promises, beside its peers."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench.log import counters, creation, in_process, restart, sockets
from bench.log.plan import PLANS
from bench.log.setting import Setting
from bench.support.figures import Figure, console, figures_table, json_line
from bench.support.packages import install_missing
from bench.support.processes import BenchError

SECTIONS: dict[str, Callable[[Setting], list[Figure]]] = {
    "counters": counters.measure,
    "in-process": in_process.measure,
    "socket": sockets.measure,
    "restart": restart.measure,
    "creation": creation.measure,
}


# What is run, and the package that has it.
PROGRAMS = {
    "redis-server": "redis-server",
    "redis-benchmark": "redis-tools",
    "mkfs.ext4": "e2fsprogs",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.log", description=__doc__)
    parser.add_argument("--rounds", type=int, help="alternating rounds (5, quick: 1)")
    parser.add_argument(
        "--quick", action="store_true", help="a first look in a few minutes: smaller sets"
    )
    parser.add_argument("--size", choices=PLANS, default="full", help="how much is measured")
    parser.add_argument(
        "--only", action="append", choices=SECTIONS, help="one section; may be given again"
    )
    parser.add_argument(
        "--folder", type=Path, help="where the data goes; choose the disk that matters"
    )
    parser.add_argument("--details", type=Path, help="write every single measurement here, as JSON")
    parser.add_argument(
        "--no-install", action="store_true", help="do not install peers that are missing"
    )
    found = parser.parse_args()
    if found.rounds is not None and found.rounds < 1:
        parser.error("--rounds must be at least 1")
    if found.folder is not None and not found.folder.is_dir():
        parser.error(f"--folder {found.folder} is not a folder")
    return found


def main() -> int:
    asked = arguments()
    plan = PLANS["quick" if asked.quick else asked.size]
    if asked.rounds is not None:
        plan = replace(plan, round_count=asked.rounds, restart_round_count=asked.rounds)
    screen = console()
    screen.print(f"Size: {plan.name}, rounds: {plan.round_count}.")
    if plan.name != "full":
        screen.print("[yellow]Smaller sets and fewer rounds than the full bench: a first look.[/]")
    if not asked.no_install:
        install_missing(PROGRAMS, screen.print)
    folder = asked.folder or Path(tempfile.gettempdir())
    figures: list[Figure] = []
    with screen.status("starting") as status:
        setting = Setting(plan, folder, screen, status)
        for name in asked.only or SECTIONS:
            try:
                figures += SECTIONS[name](setting)
            except BenchError as error:
                screen.print(f"[red]{name} could not be measured: {error}[/]")
                return 1
    screen.print(figures_table("Promised", figures))
    if asked.details is not None:
        asked.details.write_text(json.dumps(setting.details, indent=1))
    sys.stdout.write(json_line("log", figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
