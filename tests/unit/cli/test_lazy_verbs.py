"""Verbs come when they are called, and the list of them tells what they say of themselves."""

import json
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from syncline.cli.main import VERBS, app

HEAVY = {"numpy", "OpenSSL", "cryptography", "nacl", "xxhash", "pycrdt", "uvicorn", "starlette"}
# What a process has imported when the verb is done; standard output is the verb's own.
SCRIPT = """
import json, sys
from syncline.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
sys.stderr.write(json.dumps(sorted(sys.modules)))
"""


def run(*arguments: str) -> tuple[str, set[str]]:
    """What it prints, and the modules that it took."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout, set(json.loads(done.stderr))


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["queue", "--help"], ["service", "--help"]]
)
def test_what_needs_nothing_heavy_takes_nothing_heavy(arguments: list[str]) -> None:
    _, modules = run(*arguments)
    assert modules & HEAVY == set()


def test_the_version_needs_no_verb() -> None:
    printed, modules = run("--version")
    assert printed.startswith("syncline ")
    assert not {verb.place.partition(":")[0] for verb in VERBS.values()} & modules


def test_the_help_names_all_verbs_in_order() -> None:
    printed, _ = run("--help")
    named = [word for line in printed.splitlines() for word in line.split()[1:2] if word in VERBS]
    assert named == list(VERBS)


@pytest.mark.parametrize("name", VERBS)
def test_the_list_says_what_the_verb_says_of_itself(name: str) -> None:
    command: Any = get_command(app)
    first, *_ = command.commands[name].help.split("\n\n")
    assert " ".join(first.split()) == VERBS[name].about


def test_the_help_leaves_the_verbs_as_they_are() -> None:
    command: Any = get_command(app)
    with command.make_context("syncline", [], resilient_parsing=True) as context:
        command.get_help(context)
    assert len(command.commands) == len(VERBS)
    assert command.commands["tail"].params


def test_a_verb_that_is_not_there_is_none() -> None:
    command: Any = get_command(app)
    assert command.commands.get("nonsense") is None
