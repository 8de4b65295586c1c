"""Build the pages of web/ into the package: `make pages`. Needs Node.js with npm.

The result is committed, so that a router serves its pages without any of this; a test builds it
again and compares.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "web" / "pages"
TARGET = ROOT / "src" / "syncline" / "console" / "static"


def built(folder: Path) -> dict[str, bytes]:
    """Compile, and give every file that belongs into the package, by its name there."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is missing; install Node.js 20 or later")
    if not (PAGES / "node_modules").exists():
        subprocess.run([npm, "ci", "--no-audit", "--no-fund"], cwd=PAGES, check=True)
    compiler = PAGES / "node_modules" / ".bin" / "tsc"
    subprocess.run([compiler, "-p", "tsconfig.json", "--outDir", folder], cwd=PAGES, check=True)
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.js")
    }
    static = PAGES / "static"
    return found | {path.name: path.read_bytes() for path in static.iterdir()}


def main() -> None:
    output = PAGES / "build"
    shutil.rmtree(output, ignore_errors=True)
    shutil.rmtree(TARGET, ignore_errors=True)
    for name, content in built(output).items():
        path = TARGET / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    print(f"built {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
