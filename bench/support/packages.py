"""Peers from the distribution's packages, installed where that is allowed.

Python packages come with the extra `bench`; servers such as Redis do not.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping

_SECONDS_MAX = 600


def install_missing(programs: Mapping[str, str], say: Callable[[str], None]) -> None:
    """`programs`: what is run, and the Debian package that has it."""
    packages = sorted({package for name, package in programs.items() if shutil.which(name) is None})
    if not packages:
        return
    names = " ".join(packages)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say(f"Missing: {names}. Install it with the distribution's tools to measure that peer.")
        return
    say(f"Installing {names} with apt-get")
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-yq", *packages]):
        try:
            subprocess.run(
                command,
                env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_SECONDS_MAX,
                check=True,
            )
        except (subprocess.SubprocessError, OSError) as error:
            say(f"That did not work ({error}); the bench goes on without it")
            return
