"""Reading the project's own files: its tree, and what its Markdown pages claim and show."""

import ast
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Left out where there is no git to ask: what .gitignore names.
_UNTRACKED = {".git", ".venv", ".hypothesis", "__pycache__", "build", "data", "dist"}

_TEST_ID = re.compile(r"\btests/[\w/]+\.py::test_\w+")
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
_MARK = re.compile(r"<!-- (runs|prints) -->\n+```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def project_files() -> list[Path]:
    """Every file that is or would be tracked."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
        paths = [ROOT / name.decode() for name in listed.split(b"\0") if name]
    else:
        paths = [
            path for path in ROOT.rglob("*") if not _UNTRACKED & {*path.relative_to(ROOT).parts}
        ]
    return sorted(path for path in paths if path.is_file())


def pages() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".md"]


def section(text: str, title: str) -> str:
    """What stands under a heading, up to the next of its level."""
    level, _, _ = title.partition(" ")
    _, found, rest = text.partition(f"\n{title}\n")
    assert found, f"there is no heading {title!r}"
    return re.split(rf"^{level} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def list_items(text: str) -> list[str]:
    """The items of the lists in it, each with its further lines."""
    return [item.strip() for item in re.split(r"^- ", text, flags=re.MULTILINE)[1:]]


def named_tests(text: str) -> list[str]:
    return _TEST_ID.findall(text)


def links(text: str) -> list[str]:
    """The files that it links to."""
    return [target for target in _LINK.findall(text) if not re.match(r"\w+:", target)]


def has_test(test_id: str) -> bool:
    file, _, name = test_id.partition("::")
    path = ROOT / file
    if not path.exists():
        return False
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, functions) and node.name == name for node in ast.walk(tree))


@dataclass(frozen=True, slots=True)
class Example:
    """A block of code marked with `<!-- runs -->`, and what `<!-- prints -->` after it shows."""

    page: Path
    number: int
    language: str
    code: str
    prints: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}-{self.number}"


def examples() -> Iterator[Example]:
    for page in pages():
        blocks = _MARK.findall(page.read_text(encoding="utf-8"))
        for number, (mark, language, code) in enumerate(blocks):
            if mark == "runs":
                following = blocks[number + 1 : number + 2]
                prints = following[0][2] if following and following[0][0] == "prints" else None
                yield Example(page, number, language, code, prints)
