"""Peers from npm, installed once into a cache folder outside the tree.

The versions are those of `peers/package-lock.json`. A new lock file gets a new folder.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

_RECIPE = Path(__file__).parent / "peers"
_LOCKED = ("package.json", "package-lock.json", ".npmrc")
_SECONDS_MAX = 900


def cache_folder() -> Path:
    parent = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    lock = b"".join((_RECIPE / name).read_bytes() for name in _LOCKED)
    return Path(parent) / "syncline-bench" / hashlib.sha256(lock).hexdigest()[:16]


def install_npm_peers(say: Callable[[str], None]) -> None:
    """Leaves things as they are where Node.js is missing or the packages cannot be had."""
    folder = cache_folder()
    if why_no_npm_peers() is None:
        return
    if shutil.which("node") is None or shutil.which("npm") is None:
        say("Node.js and npm are not here: install them to measure Hocuspocus and y-websocket.")
        return
    say(f"Installing the npm peers into {folder}; once, a minute or two")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as text:
        for path in _RECIPE.iterdir():
            shutil.copy(path, text)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(
            command, cwd=text, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False
        )
        if done.returncode != 0:
            say(f"That did not work; the bench goes on without: {done.stderr.strip()[-500:]}")
            return
        # A folder under its name is a complete one.
        shutil.rmtree(folder, ignore_errors=True)
        Path(text).rename(folder)
        Path(text).mkdir()


def why_no_npm_peers() -> str | None:
    if shutil.which("node") is None:
        return "Node.js is not installed"
    if not (cache_folder() / "node_modules" / "@hocuspocus" / "server").is_dir():
        return "the npm packages are not installed"
    return None


def peer_script(name: str) -> Path:
    """One of our own scripts, beside the packages that it imports."""
    target = cache_folder() / name
    shutil.copy(_RECIPE / name, target)
    return target


def node_version() -> str | None:
    """The peers' speed depends on it."""
    if shutil.which("node") is None:
        return None
    done = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip()
