"""Plain loops over arrays, compiled by numba where it is installed.

Nothing depends on it: each kernel has its form in NumPy, and both give the same bits.

Invariants:
- A kernel never loads numba and never compiles. Whoever has much to do, and a thread of its own to
  do it in, calls `prepare` first; until that is over, the others go on with NumPy.
- Loops are compiled for the kinds of their arguments as they are declared here, and for no others:
  no call can start a second compilation.
- What was compiled is kept on the disk where that can be written (next to the source or in the
  folder of the user, as numba finds it), and made anew in each process where it cannot.

`NUMBA_DISABLE_JIT=1` in the environment keeps to NumPy, as does `switched_off`.
"""

import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pickle import PickleError
from typing import Any, Final, Generic, ParamSpec

_P = ParamSpec("_P")

# Ids of a set from which on it pays to load numba: what three sessions over so many save (0.3 us an
# id each) is what loading takes. Measured with bench.reconcile.
ROWS_WORTHWHILE: Final = 1 << 19

# Without the disk each of these would be an error of ours, so they are only forgiven with it: a
# folder that cannot be written, files that were cut off or are of somebody else.
_CACHE_ERRORS: Final = (
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    EOFError,
    ImportError,
    PickleError,
)


@dataclass(frozen=True, slots=True)
class Argument:
    """A number, or an array of them without gaps. `kind` is as numba calls it."""

    kind: str
    dimension_count: int = 0
    is_written: bool = False


WORD: Final = Argument("uint64")
WORDS: Final = Argument("uint64", 1)
WORD_ROWS: Final = Argument("uint64", 2)
WORDS_OUT: Final = Argument("uint64", 1, is_written=True)
WORD_ROWS_OUT: Final = Argument("uint64", 2, is_written=True)
INDICES: Final = Argument("int64", 1)
SMALL_WORDS: Final = Argument("uint32", 1)
SMALL_WORD_ROWS: Final = Argument("uint32", 2)
SMALL_WORD_ROWS_OUT: Final = Argument("uint32", 2, is_written=True)


class Loop(Generic[_P]):
    """One loop, in plain Python that numba can compile, and its compiled form once there is one.

    Constants that it uses must stand in its own file: what the disk holds is known by that alone.
    """

    def __init__(self, plain: Callable[_P, None], *arguments: Argument) -> None:
        self.plain = plain
        self.arguments = arguments
        self._compiled: Callable[_P, None] | None = None
        _loops.append(self)

    @property
    def compiled(self) -> Callable[_P, None] | None:
        """None: not prepared, or switched off. Then NumPy does it."""
        return self._compiled if _switch.is_on else None

    def compile(self, numba: Any) -> None:
        if self._compiled is None:
            self._compiled = _compile(numba, self)


class _Switch:
    is_on = True
    # Why there is nothing compiled and never will be in this process.
    reason = ""


_loops: Final[list[Loop[...]]] = []
_switch: Final = _Switch()


def is_installed() -> bool:
    """Says so without loading it."""
    return find_spec("numba") is not None


def is_ready() -> bool:
    """Whether kernels use their compiled forms from here on."""
    return bool(_loops) and all(loop.compiled is not None for loop in _loops)


def why_not() -> str:
    """After `prepare` said no: the reason, for people."""
    return _switch.reason


def prepare(row_count: int = ROWS_WORTHWHILE) -> bool:
    """Make the compiled forms ready, if that pays for sets of so many ids; says whether they are.

    It takes half a second where the disk has them, some seconds where it does not, and nothing
    once it is done: call it in a worker thread and never in one that runs an event loop.
    """
    if row_count >= ROWS_WORTHWHILE and _switch.is_on and not _switch.reason and not is_ready():
        _switch.reason = _prepare()
    return is_ready()


@contextmanager
def switched_off() -> Generator[None]:
    """NumPy alone, for this whole process: for tests and for comparisons."""
    was_on, _switch.is_on = _switch.is_on, False
    try:
        yield
    finally:
        _switch.is_on = was_on


def _prepare() -> str:
    if not is_installed():
        return "numba is not installed"
    try:
        numba = importlib.import_module("numba")
    except (ImportError, OSError) as error:
        # It refuses a NumPy that is newer than it knows, and systems that let nobody make code.
        return f"numba cannot be loaded: {error}"
    if numba.config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set"
    try:
        for loop in _loops:
            loop.compile(numba)
    except numba.core.errors.NumbaError as error:
        return f"numba {numba.__version__} cannot compile: {error}"
    return ""


def _compile(numba: Any, loop: Loop[_P]) -> Callable[_P, None]:
    signature = numba.types.void(*(_numba_type(numba, each) for each in loop.arguments))
    compiled: Callable[_P, None]
    # Other threads go on meanwhile; integers wrap around as in NumPy.
    try:
        compiled = numba.njit(signature, nogil=True, cache=True)(loop.plain)
    except _CACHE_ERRORS:
        compiled = numba.njit(signature, nogil=True)(loop.plain)
    return compiled


def _numba_type(numba: Any, argument: Argument) -> object:
    kind = getattr(numba.types, argument.kind)
    if not argument.dimension_count:
        return kind
    # What is only read may be read-only and lie anywhere, as ids within bytes do; it need not.
    is_read = not argument.is_written
    return numba.types.Array(
        kind, argument.dimension_count, "C", readonly=is_read, aligned=not is_read
    )
