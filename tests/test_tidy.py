"""The project is what it says it is: layers, pages, pins, and no trace of a machine."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from importlinter.cli import lint_imports
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import documents
from tests.conftest import ALLOWED_SKIPS, read_allowed_skips
from tests.documents import ROOT

SOURCE = ROOT / "src" / "syncline"
MODULES = sorted(SOURCE.rglob("*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")

# Spelt with a class in each, so that this file is not its own finding.
REGISTRIES = re.compile(
    r"[p]ypi\.(?:org|python)|[p]ythonhosted|[r]egistry\.npmjs|[r]egistry\.yarnpkg|[d]eb\.debian"
    r"|--(?:extra-)?[i]ndex-url[= ]|--[f]ind-links[= ]",
    re.IGNORECASE,
)
HOMES = re.compile(r"(?<![\w.~])/(?:[h]ome|[U]sers)/\w|(?<![\w.~])/[r]oot/")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str | None:
    """None for a file that is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


# -------------------------------------------------------------------------------------- layers


def test_layers_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert lint_imports(no_cache=True, no_logo=True) == 0


def test_stores_open_no_file_by_themselves() -> None:
    opened = [
        f"{name_of(path)}:{node.lineno}"
        for path in (SOURCE / "storage").rglob("*.py")
        if path.name != "files.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
    ]
    assert opened == []


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_module_says_what_it_is_for(module: Path) -> None:
    assert ast.get_docstring(ast.parse(module.read_text(encoding="utf-8")))


# --------------------------------------------------------------------------------------- pages


def test_every_promise_names_its_test() -> None:
    promises = documents.list_items(documents.section(README, "## What it promises"))
    assert promises
    assert [promise for promise in promises if not documents.named_tests(promise)] == []


@pytest.mark.parametrize("page", documents.pages(), ids=name_of)
def test_tests_named_on_a_page_exist(page: Path) -> None:
    named = documents.named_tests(page.read_text(encoding="utf-8"))
    assert [test_id for test_id in named if not documents.has_test(test_id)] == []


@pytest.mark.parametrize("page", documents.pages(), ids=name_of)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = documents.links(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", documents.pages(), ids=name_of)
def test_modules_named_on_a_page_exist(page: Path) -> None:
    named = re.findall(r"`syncline\.(?!toml`)([a-z_.]+)`", page.read_text(encoding="utf-8"))
    paths = [SOURCE / name.replace(".", "/") for name in named]
    assert [
        str(path) for path in paths if not (path.is_dir() or path.with_suffix(".py").exists())
    ] == []


def test_pages_named_in_the_code_exist() -> None:
    named = {
        page
        for module in MODULES
        for page in re.findall(r"\bdocs/[\w/-]+\.md", module.read_text(encoding="utf-8"))
    }
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []


@pytest.mark.parametrize("page", documents.pages(), ids=name_of)
def test_commands_named_on_a_page_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"serve", "test", "check", "bench"} <= targets
    named = set(
        re.findall(r"(?:`|^ *)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert named - targets == set()


def test_every_decision_is_on_the_list() -> None:
    folder = ROOT / "docs" / "decisions"
    records = {path.name for path in folder.glob("[0-9]*.md")}
    assert records
    assert set(documents.links((folder / "README.md").read_text(encoding="utf-8"))) == records


# ---------------------------------------------------------------------------------------- tree


def test_no_address_of_a_registry_in_the_tree() -> None:
    found = [
        f"{name_of(path)}: {match.group()}"
        for path in documents.project_files()
        for match in REGISTRIES.finditer(text_of(path) or "")
    ]
    assert found == []


def test_no_path_of_a_machine_in_the_tree() -> None:
    here = re.compile(rf"{re.escape(str(ROOT))}(?!\w)|{HOMES.pattern}")
    found = [
        f"{name_of(path)}: {match.group()}"
        for path in documents.project_files()
        for match in here.finditer(text_of(path) or "")
    ]
    assert found == []


def test_constraints_are_plain_pins_of_all_that_is_declared() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[a-z0-9-]+==[\w.]+", line)] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    declared = project["dependencies"] + [text for extra in extras for text in extra]
    names = {canonicalize_name(Requirement(text).name) for text in declared}
    assert names - {line.partition("==")[0] for line in pins} == set()


def test_allowed_skips_are_few_and_name_tests_that_exist() -> None:
    allowed = read_allowed_skips(ALLOWED_SKIPS)
    assert len(allowed) <= 10
    files = {entry.test.partition("::")[0] for entry in allowed}
    assert [file for file in files if not (ROOT / file).is_file()] == []
