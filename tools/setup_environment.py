#!/usr/bin/env python3
"""Make the project's virtual environment ready, from nothing but Python and a package index.

    python3 tools/setup_environment.py --extra test --extra check

installs the package (editable) with the named extras of pyproject.toml at the versions of
constraints.txt. It uses `uv` when that is on the PATH, else `venv` and `pip`. Running it again does
nothing until one of these files, the Python, the place of the tree or the wish for extras changes.

The file keeps to syntax that Python 3.6 can read: an old Python must get as far as being told so.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

PYTHON_MIN = (3, 11)
PYTHON_NAMES = ["python3.14", "python3.13", "python3.12", "python3.11"]

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INPUTS = [os.path.join(ROOT, "pyproject.toml"), os.path.join(ROOT, "constraints.txt")]
STAMP_NAME = "syncline-setup.json"

# What pip and uv write when they cannot reach an index, in lower case.
NETWORK_SIGNS = [
    "temporary failure in name resolution",
    "name or service not known",
    "failed to establish a new connection",
    "network is unreachable",
    "connection refused",
    "connection timed out",
    "read timed out",
    "dns error",
    "error sending request",
    "failed to fetch",
    "could not connect",
    "(from versions: none)",
]


class SetupError(Exception):
    """The environment cannot be made; the text says what to do."""


def say(text: str) -> None:
    print("set-up: " + text, file=sys.stderr, flush=True)


def version_text(version: "tuple[int, ...]") -> str:
    return ".".join(str(part) for part in version)


# ---------------------------------------------------------------------------- which Python


def use_a_new_enough_python() -> None:
    """Return if this Python will do, else hand over to one that does, else say what is missing."""
    if sys.version_info[:2] >= PYTHON_MIN:
        return
    for name in PYTHON_NAMES:
        path = shutil.which(name)
        # A name on the PATH may be a stand-in for a version that is not installed: try it.
        if path and subprocess.call([path, "-c", ""], stderr=subprocess.DEVNULL) == 0:
            say(f"Python {sys.version.split()[0]} is too old, going on with {path}")
            os.execv(path, [path, *sys.argv])
    raise SetupError(
        f"Syncline needs Python {version_text(PYTHON_MIN)} or later, "
        f"this is {sys.version.split()[0]} ({sys.executable}).\n"
        "Install a newer one, then name it: make test PYTHON=python3.12"
    )


def version_of(python: str) -> "tuple[int, ...] | None":
    """None if it does not run, as after its base was removed."""
    program = "import sys; print(*sys.version_info[:3])"
    try:
        found = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return tuple(int(part) for part in found.stdout.split())


# ------------------------------------------------------------------------- the environment


class Environment:
    """A virtual environment in a folder, and the note in it of what was installed last."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.python = os.path.join(folder, "bin", "python")
        self._stamp_path = os.path.join(folder, STAMP_NAME)

    def version(self) -> "tuple[int, ...] | None":
        return version_of(self.python)

    def clear(self) -> None:
        if not os.path.exists(os.path.join(self.folder, "pyvenv.cfg")) and os.listdir(self.folder):
            raise SetupError(
                f"{self.folder} is in the way: it is no virtual environment.\n"
                "Move it away, or choose another folder with --environment"
            )
        say(f"{self.folder} has no Python that works here, making it anew")
        shutil.rmtree(self.folder)

    def read_stamp(self) -> "tuple[str, set[str]]":
        """The fingerprint of the last finished set-up and every extra ever asked for."""
        try:
            with open(self._stamp_path, encoding="utf-8") as file:
                stamp = json.load(file)
            return str(stamp["fingerprint"]), set(stamp["extras"])
        except (OSError, ValueError, KeyError, TypeError):
            # Never set up, or a note that cannot be read: set up again.
            return "", set()

    def write_stamp(self, fingerprint: str, extras: "set[str]") -> None:
        part = self._stamp_path + ".part"
        with open(part, "w", encoding="utf-8") as file:
            json.dump({"fingerprint": fingerprint, "extras": sorted(extras)}, file)
        os.replace(part, self._stamp_path)


def fingerprint_of(version: "tuple[int, ...] | None") -> str:
    """Of everything that decides what an installation gives, but for the extras."""
    digest = hashlib.sha256(repr((version, ROOT)).encode())
    for path in INPUTS:
        with open(path, "rb") as file:
            digest.update(file.read() + b"\0")
    return digest.hexdigest()


# ------------------------------------------------------------------------------ installers


def run(command: "list[str]", failure: str) -> None:
    """Run with its output shown as it comes. Raises SetupError, with a guess at the reason."""
    say("$ " + " ".join(command))
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        sys.stderr.write(line)
        seen.append(line.lower())
    if process.wait() == 0:
        return
    reason = "The lines above say why."
    if any(sign in line for line in seen for sign in NETWORK_SIGNS):
        reason = (
            "The package index could not be reached or does not have a package. Check the\n"
            "network, and where pip (pip config list) or uv (UV_INDEX_URL) looks for packages."
        )
    raise SetupError(failure + "\n" + reason)


class UvInstaller:
    """`uv`: much faster than pip, and keeps what it fetched."""

    def __init__(self, uv: str) -> None:
        self._uv = uv

    def make(self, environment: Environment) -> None:
        # --seed puts pip into it, for people who want to add something by hand.
        run(
            [self._uv, "venv", "--seed", "--python", sys.executable, environment.folder],
            "The virtual environment could not be made.",
        )

    def install(self, environment: Environment, what: "list[str]") -> None:
        run(
            [self._uv, "pip", "install", "--python", environment.python, *what],
            "The packages could not be installed.",
        )


class PipInstaller:
    """What every Python has."""

    def make(self, environment: Environment) -> None:
        try:
            import ensurepip  # noqa: F401
            import venv  # noqa: F401
        except ImportError as error:
            raise SetupError(
                f"This Python cannot make virtual environments ({error}). On Debian and Ubuntu:\n"
                f"  apt-get install python{version_text(sys.version_info[:2])}-venv\n"
                "or put `uv` on the PATH."
            ) from error
        run(
            [sys.executable, "-m", "venv", environment.folder],
            "The virtual environment could not be made.",
        )

    def install(self, environment: Environment, what: "list[str]") -> None:
        pip = [environment.python, "-m", "pip"]
        if subprocess.call([*pip, "--version"], stdout=subprocess.DEVNULL) != 0:
            run(
                [environment.python, "-m", "ensurepip", "--upgrade"],
                "The environment has no pip and it could not be added.",
            )
        quiet = ["--quiet", "--disable-pip-version-check"]
        run([*pip, "install", *quiet, *what], "The packages could not be installed.")


def choose_installer(tool: str) -> "UvInstaller | PipInstaller":
    uv = shutil.which("uv")
    if tool == "uv" and uv is None:
        raise SetupError("`uv` is not on the PATH. Install it, or leave out --tool")
    if uv is None or tool == "pip":
        return PipInstaller()
    return UvInstaller(uv)


# ------------------------------------------------------------------------------- the work


@contextlib.contextmanager
def one_at_a_time() -> "Iterator[None]":
    """Two set-ups at once (make -j) wait for one another. This file itself is the lock."""
    import fcntl

    with open(os.path.abspath(__file__), "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def known_extras() -> "set[str]":
    import tomllib

    with open(INPUTS[0], "rb") as file:
        return set(tomllib.load(file)["project"]["optional-dependencies"])


def listed(names: "set[str]") -> str:
    return ", ".join(sorted(names))


def set_up(folder: str, wanted: "set[str]", tool: str) -> None:
    unknown = wanted - known_extras()
    if unknown:
        raise SetupError(
            f"No extra is called {listed(unknown)}; there are: {listed(known_extras())}"
        )
    environment = Environment(folder)
    version = environment.version()
    is_usable = version is not None and version[:2] >= PYTHON_MIN
    if version is not None and is_usable and version[:2] != sys.version_info[:2]:
        say(f"{folder} has Python {version_text(version)} and keeps it; remove it to change that")
    fingerprint, extras = environment.read_stamp()
    if is_usable and fingerprint == fingerprint_of(version) and wanted <= extras:
        return

    extras = (extras & known_extras()) | wanted
    installer = choose_installer(tool)
    if not is_usable:
        if os.path.exists(folder):
            environment.clear()
        say(f"making a virtual environment in {folder}")
        installer.make(environment)
    # Until the end is reached nothing is promised, but what was asked for is kept.
    environment.write_stamp("unfinished", extras)
    say(f"installing syncline with {listed(extras) or 'no extras'} (minutes at first)")
    package = f"{ROOT}[{','.join(sorted(extras))}]" if extras else ROOT
    installer.install(environment, ["--constraint", INPUTS[1], "--editable", package])
    environment.write_stamp(fingerprint_of(environment.version()), extras)
    say(f"ready: {environment.folder}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Make the project's virtual environment ready. Does nothing if it is."
    )
    parser.add_argument(
        "--extra", action="append", default=[], metavar="NAME", help="an extra of pyproject.toml"
    )
    parser.add_argument(
        "--environment",
        default=os.path.join(ROOT, ".venv"),
        metavar="FOLDER",
        help="default: .venv",
    )
    parser.add_argument("--tool", choices=["auto", "uv", "pip"], default="auto")
    arguments = parser.parse_args()
    try:
        use_a_new_enough_python()
        with one_at_a_time():
            set_up(os.path.abspath(arguments.environment), set(arguments.extra), arguments.tool)
    except SetupError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("stopped; run it again to go on")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
