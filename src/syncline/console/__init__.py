"""The pages that a router shows to people: a shared diagram to try, and a live view of documents.

They are built from web/ (`make pages`) into static/, and are the same for every router; what they
show comes from `/sync` and from the operator's API, like everybody else's.
"""

from collections.abc import Iterator, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

# Where the pages stand; everything else is below /assets/.
ENTRANCES = {"/": "diagram.html", "/console": "console.html"}


def load_pages() -> Mapping[str, tuple[str, bytes]]:
    """Path to file name and content, read once."""
    static = files("syncline.console") / "static"
    found = {f"/assets/{name}": (name, content) for name, content in _walk(static, "")}
    for path, name in ENTRANCES.items():
        found[path] = found.pop(f"/assets/{name}")
    return found


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            yield from _walk(entry, f"{name}/")
        else:
            yield name, entry.read_bytes()
