"""The options that benches share, and what is wrong with them in one sentence."""

import argparse
from collections.abc import Iterable
from pathlib import Path


def parser_of(
    bench: str, description: str | None, parts: Iterable[str], sizes: Iterable[str]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m bench.{bench}", description=description)
    parser.add_argument("--quick", action="store_true", help="a first look in a few minutes")
    parser.add_argument("--size", choices=list(sizes), default="full", help="how much is measured")
    parser.add_argument(
        "--only", action="append", choices=list(parts), help="one part; may be given again"
    )
    parser.add_argument("--details", type=Path, help="write every single measurement here, as JSON")
    return parser


def add_rounds(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--rounds", type=int, help=f"alternating rounds ({default})")


def add_folder(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--folder", type=Path, help=text)


def add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, help="the data of an earlier run")


def checked(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What was asked for; whoever asks for what cannot be is told so."""
    found = parser.parse_args()
    if getattr(found, "rounds", None) is not None and found.rounds < 1:
        parser.error("--rounds must be at least 1")
    folder = getattr(found, "folder", None)
    if folder is not None and not folder.is_dir():
        parser.error(f"--folder {folder} is not a folder")
    return found


DATA_FOLDER = "where the data goes; choose the disk that matters"
