"""The pages about settings, verbs and requests name all there are, as they are."""

import re
from typing import Any

import pytest
from starlette.routing import Route
from typer.main import get_command

from syncline.cli.main import app
from syncline.server.api import Api
from syncline.server.health import Health
from syncline.server.metrics import Metrics
from syncline.server.settings import SETTINGS, Settings
from tests.documents import ROOT, section


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def test_every_setting_is_on_its_page_with_its_default() -> None:
    found = {row[0]: row for row in rows(section(page("configuration.md"), "## Settings"))}
    assert list(found) == list(SETTINGS)
    for key, setting in SETTINGS.items():
        default = str(setting.default).lower() if setting.type is bool else str(setting.default)
        if isinstance(setting.default, tuple):
            default = ", ".join(setting.default)
        assert found[key][1] == default
        assert found[key][3] == setting.about.strip("`")
        if setting.type is int:
            assert found[key][2] == f"{setting.low} to {setting.high}"


def test_every_request_is_on_its_page() -> None:
    gate: Any = Api(Settings(), Health(), Metrics(), lambda: 0).app("")
    routes = {
        f"{method} {route.path}"
        for route in gate._app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    named = {row[0] for row in rows(page("operator-api.md")) if "/" in row[0]}
    assert named == routes


def test_every_verb_is_on_its_page() -> None:
    command: Any = get_command(app)
    first = [row[0] for row in rows(page("command-line.md"))]
    named = [name.removeprefix("syncline ") for name in first if name.startswith("syncline ")]
    # Groups of verbs come last in the program's own list.
    assert sorted(named) == sorted(command.commands)


def verbs(command: Any, before: str = "") -> dict[str, Any]:
    """Every verb, those of groups with the group's name in front."""
    found: dict[str, Any] = {}
    for name, each in command.commands.items():
        inside = verbs(each, f"{before}{name} ") if hasattr(each, "commands") else {}
        found |= inside or {before + name: each}
    return found


VERBS = verbs(get_command(app))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_json_and_help(verb: str) -> None:
    found = VERBS[verb]
    assert "--json" in {name for parameter in found.params for name in parameter.opts}
    assert found.help


def test_every_error_code_is_on_its_page() -> None:
    source = (ROOT / "src/syncline/server").rglob("*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in source)
    literal = set(re.findall(r'\d{3}, "([A-Z_]{4,})"|\d{3},\s+"([A-Z_]{4,})"', text))
    codes = {first or second for first, second in literal}
    named = set(re.findall(r"^\| \d{3} \| `([A-Z_]+)`", page("operator-api.md"), re.MULTILINE))
    # Those of a request that never reaches a handler are plain words of HTTP.
    assert codes - {"HTTP", "CONFIG"} <= named
