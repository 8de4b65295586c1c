"""Plain loops over arrays, compiled by numba where it is installed.

Nothing depends on it: each kernel has its form in NumPy, and both give the same bits.
"""

import importlib
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import ParamSpec

_P = ParamSpec("_P")


@cache
def is_available() -> bool:
    return find_spec("numba") is not None


def compiled(loop: Callable[_P, None]) -> Callable[_P, None] | None:
    """The same function, compiled; None without numba."""
    return _compile(loop) if is_available() else None


@cache
def _compile(loop: Callable[_P, None]) -> Callable[_P, None]:
    # No reordering of floating point, and integers wrap around as in NumPy.
    translated: Callable[_P, None] = importlib.import_module("numba").njit(nogil=True)(loop)
    return translated
