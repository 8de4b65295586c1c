"""Write constraints.txt: the versions of everything that pyproject.toml leads to, as installed now.

Run it (`make constraints`) in an environment with every extra, after the tests have passed in it.
The lines are plain `name==version`: no addresses, no hashes, so that any index of packages will do.
"""

import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "constraints.txt"

# The oldest Python that we support may need a package that this one does not.
OLDEST_PYTHON = {"python_version": "3.11", "python_full_version": "3.11.0"}

HEADER = """\
# The versions that the tests passed with. Made by `make constraints`.
"""


def applies(requirement: Requirement, extra: str) -> bool:
    if requirement.marker is None:
        return True
    here = {"extra": extra}
    return requirement.marker.evaluate(here) or requirement.marker.evaluate(OLDEST_PYTHON | here)


def declared() -> list[Requirement]:
    """Everything that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    named = project["dependencies"] + [text for extra in extras for text in extra]
    return [Requirement(text) for text in named]


def needed_by(requirement: Requirement) -> Iterator[Requirement]:
    for text in distribution(requirement.name).requires or []:
        further = Requirement(text)
        if any(applies(further, extra) for extra in {"", *requirement.extras}):
            yield further


def pins() -> dict[str, str]:
    """Name to version, for everything declared and all that it leads to.

    Raises PackageNotFoundError for one that is not installed.
    """
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = declared()
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key not in seen:
            seen.add(key)
            found[key[0]] = distribution(requirement.name).version
            waiting.extend(needed_by(requirement))
    return found


def main() -> int:
    try:
        lines = [f"{name}=={version}\n" for name, version in sorted(pins().items())]
    except PackageNotFoundError as error:
        print(f"{error.name} is not installed; install it here, then run this again")
        return 1
    TARGET.write_text(HEADER + "".join(lines))
    print(f"{TARGET.name}: {len(lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
